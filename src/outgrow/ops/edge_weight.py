"""Weights of edges that read the graph only: means and the symmetric normalisation. Computed once per block."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.backend import array, kernel, prange


def mean_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """``[E, 1]``: weight of each edge over the degree of its destination."""
    return _kept(block, "mean", dtype, 1.0 / block.dst_degree, None)


def symmetric_weight(block: Block, dtype: torch.dtype) -> Tensor:
    """``[E, 1]``: weight of each edge over the root of the product of both degrees (Kipf & Welling, ICLR 2017)."""
    return _kept(block, "symmetric", dtype, block.dst_degree.rsqrt(), block.src_degree.rsqrt())


def _kept(block: Block, name: str, dtype: torch.dtype, dst_factor: Tensor, src_factor: Tensor | None) -> Tensor:
    edges, slot = block.edges, f"{name} {dtype}"
    if slot not in edges.derived:
        out = torch.empty(edges.num_edges, 1, dtype=dtype)
        _scale(
            array(edges.indptr),
            array(edges.indices),
            None if edges.weight is None else array(edges.weight),
            array(dst_factor),
            None if src_factor is None else array(src_factor),
            out.view(-1).numpy(),
        )
        edges.derived[slot] = out
    return cast(Tensor, edges.derived[slot])


@kernel
def _scale(
    indptr: NDArray[np.int64],
    indices: NDArray[Any],
    weight: NDArray[Any] | None,
    dst_factor: NDArray[np.float64],
    src_factor: NDArray[np.float64] | None,
    out: NDArray[Any],
) -> None:
    for v in prange(len(indptr) - 1):
        for e in range(indptr[v], indptr[v + 1]):
            value = dst_factor[v]
            if src_factor is not None:
                value *= src_factor[indices[e]]
            if weight is not None:
                value *= weight[e]
            out[e] = value if np.isfinite(value) else 0.0
