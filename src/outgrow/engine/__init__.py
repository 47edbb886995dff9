"""What at least two strategies share (layer 3)."""
