"""Columns dealt out to workers instead of nodes (layer 3)."""
