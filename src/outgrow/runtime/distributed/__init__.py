"""Processes and collectives."""
