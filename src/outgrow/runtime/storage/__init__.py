"""Storage of rows outside device memory, and temporary folders."""
