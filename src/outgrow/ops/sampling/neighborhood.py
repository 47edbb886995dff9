"""In-neighbours of a set of nodes, without drawing any: which nodes a layer needs to compute others."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, serial_kernel
from outgrow.ops.kernels.numerics import prefetch_line

_SOURCES_AHEAD = 32


def with_in_neighbors(nodes_N: Tensor, indptr: Tensor, indices: Tensor) -> tuple[Tensor, int]:
    """Return nodes and all their in-neighbours, and the number of in-edges of the nodes.

    Args:
        nodes_N: ``[N]`` int64, distinct.
        indptr: ``[V + 1]`` int64.
        indices: ``[E]`` int32 or int64; may be memory-mapped, and is read in the order of the nodes.

    Returns:
        ``[M]`` int64, ascending and distinct, and the number of edges.
    """
    marked = torch.zeros(len(indptr) - 1, dtype=torch.bool)
    marked[nodes_N] = True
    count = _mark_sources(as_numpy(nodes_N), as_numpy(indptr), as_numpy(indices), marked.view(torch.uint8).numpy())
    return marked.nonzero()[:, 0], int(count)


@serial_kernel
def _mark_sources(
    nodes: NDArray[np.int64], indptr: NDArray[np.int64], indices: NDArray[Any], marked: NDArray[np.uint8]
) -> int:
    """Set the mark of every source of an in-edge of the nodes; return the number of these edges."""
    count = 0
    lines = marked.reshape((len(marked), 1))
    for i in range(len(nodes)):
        first, last = indptr[nodes[i]], indptr[nodes[i] + 1]
        count += last - first
        for e in range(first, last):
            prefetch_line(lines, indices[np.uint64(min(e + _SOURCES_AHEAD, last - 1))], 0)
            marked[np.uint64(indices[np.uint64(e)])] = 1
    return count
