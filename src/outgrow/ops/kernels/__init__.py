"""Building blocks of CPU kernels."""
