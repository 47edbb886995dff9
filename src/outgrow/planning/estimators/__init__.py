"""One file per strategy."""
