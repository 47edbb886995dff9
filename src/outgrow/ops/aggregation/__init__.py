"""The closed set of aggregations, op and kernels side by side."""
