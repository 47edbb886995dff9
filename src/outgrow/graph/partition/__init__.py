"""Partitions: which nodes each worker owns."""
