"""What kernels are made of."""
