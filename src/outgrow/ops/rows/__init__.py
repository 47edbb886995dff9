"""Transfer of rows between arrays in memory and files."""
