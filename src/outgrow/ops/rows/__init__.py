"""Moving rows: memory and files."""
