"""Outputs of a model without gradients, for evaluation and prediction: in chunks, in batches, or as a strategy does."""
