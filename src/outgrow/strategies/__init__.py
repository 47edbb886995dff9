"""Strategies: ways to train the same model on the same graph (layer 4)."""
