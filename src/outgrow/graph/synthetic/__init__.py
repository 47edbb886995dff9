"""Generators of graphs of any size: every draw is a pure function of a seed and an edge or node number."""
