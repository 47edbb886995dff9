"""The twins of the CPU kernels on CUDA: one module for each, whose functions have the same names and arguments.

They take contiguous tensors on one device, write what they are given as ``out``, launch on the current stream and wait
for nothing. Sums run in a fixed order and no two programs add to one number, so the same input gives the same bits.
They accumulate in float64 where the result is float64, else in float32.
"""
