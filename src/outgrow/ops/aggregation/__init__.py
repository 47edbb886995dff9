"""Aggregations over in-edges, each op beside its kernels."""
