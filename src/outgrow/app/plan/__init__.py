"""Queries to the planner, and their answers for people and as JSON."""
