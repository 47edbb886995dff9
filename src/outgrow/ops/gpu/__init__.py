"""CUDA counterparts of the CPU kernels: a module for each, whose functions have the same signatures.

They take tensors on one device, write to the contiguous ``out``, launch on the current stream and wait for
nothing. Sums run in a fixed order and no two programs add to one number, so the same input gives the same
bits. They accumulate in float64 if the result is float64, else in float32.
"""

from outgrow.core.errors import InputError

try:
    from triton import __version__ as version
except ImportError:
    version = None

if version is None or tuple(map(int, version.split(".")[:2])) < (3, 3):
    raise InputError(
        "tensors on a GPU need Triton, which compiles their kernels",
        needed="the package triton, 3.3 or newer",
        got="no such package" if version is None else f"triton {version}",
        repair="install torch 2.7 or newer, built for CUDA, which brings triton along; or: pip install 'triton>=3.3'",
    )
