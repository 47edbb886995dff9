"""Training loop for all strategies: optimizer, evaluation, early stopping, checkpoints (layer 5)."""
