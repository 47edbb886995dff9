"""Kernels: aggregations, gather, sparse products, keyed random numbers, one backend gate (layer 1)."""
