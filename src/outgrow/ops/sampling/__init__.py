"""Kernels of neighbour sampling."""
