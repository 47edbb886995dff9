"""Products of dense rows with weights in bfloat16.

Both factors are rounded to bfloat16 (8 bits of mantissa), and so is the sum of their products over a chunk of rows. The
result has the weight's type, and so have sums over chunks, biases and all that follows; parameters and rows stay as
they are. Letters: ``N`` rows, ``D`` input width, ``O`` output width.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

from outgrow.ops.buffers import empty_rows

_BFLOAT16_CHUNK_ROWS = 1 << 15
_narrow = False


@contextmanager
def products_in_bfloat16(wanted: bool = True) -> Iterator[None]:
    """Compute every product of dense rows with weights in bfloat16, in all threads, until the context ends."""
    global _narrow
    before, _narrow = _narrow, wanted
    try:
        yield
    finally:
        _narrow = before


def narrow() -> bool:
    """Whether products are to be computed in bfloat16."""
    return _narrow


def narrow_product(x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """``[N, O]``: ``x @ weight``, of the weight's type."""
    y_NO = empty_rows(len(x_ND), (weight_DO.shape[1],), weight_DO)
    factor = weight_DO.bfloat16()
    for rows in _chunks(x_ND):
        y_NO[rows] = x_ND[rows].bfloat16() @ factor
    return y_NO


def add_narrow_product(y_NO: Tensor, x_ND: Tensor, weight_DO: Tensor) -> Tensor:
    """``y + x @ weight``, written to ``y``."""
    factor = weight_DO.bfloat16()
    for rows in _chunks(x_ND):
        y_NO[rows] += x_ND[rows].bfloat16() @ factor
    return y_NO


def narrow_weight_gradient(x_ND: Tensor, grad_NO: Tensor) -> Tensor:
    """``[D, O]``: ``x.T @ grad``, of the gradient's type."""
    total = grad_NO.new_zeros(x_ND.shape[1], grad_NO.shape[1])
    for rows in _chunks(x_ND):
        total += x_ND[rows].bfloat16().T @ grad_NO[rows].bfloat16()
    return total


def _chunks(x_ND: Tensor) -> Iterator[slice]:
    return (slice(first, first + _BFLOAT16_CHUNK_ROWS) for first in range(0, len(x_ND), _BFLOAT16_CHUNK_ROWS))
