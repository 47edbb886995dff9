"""How fast this machine computes and moves what an epoch must compute and move at least."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from epoch_parts import FLOAT, Part
from rivals.common import Arrays

_LINE = 16
_TRIES = 5
_STREAM = 1 << 26
SQUARE = 2048


@dataclass(frozen=True, kw_only=True)
class Rates:
    """What this machine does per second.

    Attributes:
        copy: Bytes read and written by a copy of 256 MB.
        triad: The same of ``a = b + s * c``.
        gather: By number of columns: bytes of float32 rows read by the graph's own indices, in edge order.
        products: By shape ``m x k x n``: flops of a torch float32 product.
        square: Flops of the product of two large square matrices.
    """

    copy: float
    triad: float
    gather: dict[int, float]
    products: dict[str, float]
    square: float

    def bound(self, part: Part) -> float:
        """Least seconds of a part."""
        moved = part.streamed / max(self.copy, self.triad)
        if part.gathered:
            moved += part.gathered / self.gather[part.width]
        return max(moved, part.flops / self.products[_shape(part.product)]) if part.product else moved


def measure_rates(arrays: Arrays, widths: Sequence[int], counted: Sequence[Part]) -> Rates:
    """Measure this machine: the best of five each."""
    a, b, c = (np.full(_STREAM, value, dtype=np.float32) for value in (0, 1, 2))
    copy, triad = _streams()
    gather = {}
    for width in widths:
        rows = np.ones((len(arrays.labels), width), dtype=np.float32)
        readers = [partial(read, arrays.indices, rows) for read in _readers(width)]
        seconds = min(_best(read) for read in (*readers, _summed_by_kernel(arrays, width)))
        gather[width] = len(arrays.indices) * width * FLOAT / seconds
    products = {_shape(part.product): _product_rate(*part.product) for part in counted if part.product}
    return Rates(
        copy=2 * a.nbytes / _best(lambda: copy(a, b)),
        triad=3 * a.nbytes / _best(lambda: triad(a, b, c)),
        gather=gather,
        products=products,
        square=_product_rate(SQUARE, SQUARE, SQUARE),
    )


def _best(work: Callable[[], Any]) -> float:
    work()
    seconds = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return min(seconds)


def _streams() -> tuple[Callable[..., None], Callable[..., None]]:
    import numba

    @numba.njit(parallel=True)
    def copy(a: Any, b: Any) -> None:
        for i in numba.prange(len(a)):
            a[i] = b[i]

    @numba.njit(parallel=True)
    def triad(a: Any, b: Any, c: Any) -> None:
        for i in numba.prange(len(a)):
            a[i] = b[i] + np.float32(3) * c[i]

    return copy, triad


def _readers(width: int) -> list[Callable[[Any, Any], Any]]:
    """Read and add up rows: their width known to the compiler, or not. Which is faster differs from width to width."""
    import numba

    threads = numba.get_num_threads()

    @numba.njit(parallel=True, fastmath=True)
    def read(indices: Any, rows: Any, columns: int) -> Any:
        total = 0.0
        for part in numba.prange(threads):
            mine = np.float32(0)
            for e in range(len(indices) * part // threads, len(indices) * (part + 1) // threads):
                row = rows[indices[e]]
                for f in range(columns):
                    mine += row[f]
            total += float(mine)
        return total

    @numba.njit(parallel=True, fastmath=True)
    def read_fixed(indices: Any, rows: Any) -> Any:
        total = 0.0
        for part in numba.prange(threads):
            mine = np.float32(0)
            for e in range(len(indices) * part // threads, len(indices) * (part + 1) // threads):
                row = rows[indices[e]]
                for f in range(width):
                    mine += row[f]
            total += float(mine)
        return total

    return [lambda indices, rows: read(indices, rows, width), read_fixed]


def _summed_by_kernel(arrays: Arrays, width: int) -> Callable[[], None]:
    """The library's own kernel: rows on whole cache lines, asked for ahead. It writes sums too, so it does more."""
    import torch

    from outgrow.ops.aggregation.spmm import spmm
    from outgrow.ops.memory_pool import pooled_empty_rows

    indptr, indices = torch.from_numpy(arrays.indptr), torch.from_numpy(arrays.indices)
    rows, sums = (pooled_empty_rows(len(arrays.labels), (1, width), torch.empty(0)).fill_(1) for _ in range(2))
    return partial(spmm, indptr, indices, None, None, rows, sums)


def _product_rate(m: int, k: int, n: int) -> float:
    """Flops per second of a product as it occurs, or with unused columns up to a whole cache line if that is faster.

    A gradient of a weight multiplies by a transposed matrix.
    """
    import torch

    left = torch.ones(k, m).T if k > max(m, n) else torch.ones(m, k)
    seconds = []
    for columns in {n, -(-n // _LINE) * _LINE}:
        right, out = torch.ones(k, columns), torch.empty(m, columns)
        seconds.append(_best(partial(torch.mm, left, right, out=out)))
    return 2 * m * k * n / min(seconds)


def _shape(product: tuple[int, int, int] | None) -> str:
    assert product is not None
    return "x".join(map(str, product))
