"""Asking the planner."""
