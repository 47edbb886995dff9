"""Runs: planning, training, resuming, and the files of a run directory."""
