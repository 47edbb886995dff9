"""Training chunk by chunk: which rows a wave of chunks needs, where they lie, and what is computed with them."""
