"""Generators of graphs of any size; every random number is a function of a seed and an edge or node number."""
