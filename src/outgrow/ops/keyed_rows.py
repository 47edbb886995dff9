"""Initial rows of node embeddings: keyed draws, so that whoever owns a node draws the same row."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, parallel_kernel, prange
from outgrow.ops.rng import hash64, uniform01


def draw_uniform_rows(nodes_N: Tensor, columns: int, bound: float, key: int, dtype: torch.dtype) -> Tensor:
    """Return ``[N, columns]``: numbers uniform in [-bound, bound), functions of (key, node, column) alone.

    Args:
        nodes_N: ``[N]`` int64, global ids of the nodes.
        columns: Numbers in a row.
        bound: Largest absolute value.
        key: 64-bit key.
        dtype: float32 or float64; both have the same numbers, to rounding.
    """
    out = np.empty((len(nodes_N), columns), dtype=np.float64 if dtype == torch.float64 else np.float32)
    _draw_uniform_kernel(as_numpy(nodes_N.cpu()), np.uint64(key), float(bound), out)
    return torch.from_numpy(out).to(dtype)


@parallel_kernel
def _draw_uniform_kernel(nodes: NDArray[np.int64], key: np.uint64, bound: float, out: NDArray[Any]) -> None:
    for n in prange(len(nodes)):
        row_key = hash64(key, np.uint64(nodes[n]))
        for f in range(out.shape[1]):
            out[n, f] = bound * (2.0 * uniform01(hash64(row_key, np.uint64(f))) - 1.0)
