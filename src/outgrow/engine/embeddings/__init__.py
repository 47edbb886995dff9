"""Node embeddings in training: rows with their owners, exchange of rows and gradients, row-wise optimizers."""
