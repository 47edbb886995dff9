"""Access to the machine: hardware, memory, storage and processes (layer 2)."""
