"""Outputs of a model without gradients: whole layers in memory, layers in chunks from and to disk, and batches."""
