"""The bottom layer shared between a CPU and a device: what is drawn, what the CPU makes of it, what is reused."""
