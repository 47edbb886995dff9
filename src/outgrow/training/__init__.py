"""The loop above every strategy: optimizer, evaluation, early stopping, checkpoints (layer 5)."""
