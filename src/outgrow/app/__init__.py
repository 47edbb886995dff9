"""What a user touches: the API, the command line, run directories (layer 6)."""
