"""Kernels: aggregations, gather, sparse products, keyed random numbers, compilation (layer 1)."""
