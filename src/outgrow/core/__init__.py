"""Records and words that every other layer shares (layer 0)."""
