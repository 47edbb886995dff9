"""Neighbour sampling."""
