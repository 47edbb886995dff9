"""The machine: its hardware, its memory, its processes (layer 2)."""
