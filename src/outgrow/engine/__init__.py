"""Parts of training that at least two strategies share (layer 3)."""
