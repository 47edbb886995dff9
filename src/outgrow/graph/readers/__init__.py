"""Readers of graph files and objects, one file each."""
