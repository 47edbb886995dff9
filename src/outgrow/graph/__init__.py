"""Graphs: topology, features, stores, readers, data sets and generators (layer 2)."""
