"""Device, memory, threads."""
