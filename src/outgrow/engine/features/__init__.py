"""Feature fetching, one protocol."""
