"""Results derived from in-edges once: sums of weights, the transpose, the view with self-loops.

Letters: ``V`` nodes, ``E`` edges, ``R`` rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.gpu.spmm import spmm


def weighted_in_degree(indptr: Tensor, weight: Tensor, out_V: Tensor) -> None:
    """Compute ``out[v] = sum over in-edges e of weight[e]``.

    Args:
        indptr: ``[V + 1]`` int64.
        weight: ``[E]`` floating.
        out_V: ``[V]`` float64, written.
    """
    edges = torch.arange(len(weight), device=weight.device)
    spmm(indptr, edges, None, None, weight[:, None, None], out_V[:, None, None])


def transpose_csc(indptr: Tensor, indices: Tensor, num_src: int, num_dst: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the out-edges of the sources of a block, in edge order within a source.

    Args:
        indptr: ``[num_dst + 1]`` int64.
        indices: ``[E]`` int32 or int64, below ``num_src``.
        num_src: Number of sources.
        num_dst: Number of destinations.

    Returns:
        ``indptr [num_src + 1]`` int64; the destination ``[E]`` of each out-edge and its position ``[E]``
        among the in-edges, both int32 where all numbers fit.
    """
    narrow = torch.int32 if max(len(indices), num_dst) < 2**31 else torch.int64
    out_ptr, edge = sort_by_row(indices, num_src)
    dst = edge_destinations(indptr, len(indices)).to(narrow)[edge]
    return out_ptr, dst, edge.to(narrow)


def replace_self_loops(indptr: Tensor, indices: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor, Tensor | None]:
    """Return the in-edges with exactly one self-loop of every node, at the end of its row.

    A node that has a self-loop keeps its weight, the last one that of several; an added loop has weight 1.
    Waits for the device, which alone knows how many edges there are.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[E]`` int32 or int64.
        weight: ``[E]`` of any type, or None.

    Returns:
        ``indptr [V + 1]``, ``indices [E']`` and ``weight [E']`` (None if it was).
    """
    dst = edge_destinations(indptr, len(indices))
    kept = torch.nonzero(indices != dst).view(-1)
    # Kept edges before each row.
    before = torch.searchsorted(kept, indptr)
    nodes = torch.arange(len(indptr), device=indptr.device)
    new_ptr = before + nodes
    at = torch.arange(len(kept), device=indptr.device) + dst[kept]
    new = indices.new_empty(len(kept) + len(indptr) - 1)
    new[at] = indices[kept]
    new[new_ptr[1:] - 1] = nodes[:-1].to(indices.dtype)
    if weight is None:
        return new_ptr, new, None
    new_weight = weight.new_ones(len(new))
    new_weight[at] = weight[kept]
    loops = torch.nonzero(indices == dst).view(-1)
    # The largest position is that of the last loop of a node, in whichever order the device writes.
    last = nodes.new_full((len(indptr) - 1,), -1).scatter_reduce_(0, dst[loops], loops, "amax")
    found = last >= 0
    new_weight[new_ptr[1:][found] - 1] = weight[last[found]]
    return new_ptr, new, new_weight


def edge_destinations(indptr: Tensor, num_edges: int) -> Tensor:
    """Return ``[E]`` int64: row of each edge."""
    rows = torch.arange(len(indptr) - 1, device=indptr.device)
    return rows.repeat_interleave(indptr.diff(), output_size=num_edges)


def sort_by_row(row: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return the edges of each row: ``indptr [R + 1]`` and positions ``[E]``, int64, ascending within a row.

    Args:
        row: ``[E]`` of any integer type.
        num_rows: ``R``.
    """
    # Stable, so that edges of a row keep their order, and with it the order of every sum.
    ordered, position = torch.sort(row, stable=True)
    rows = torch.arange(num_rows, device=row.device).clamp(max=torch.iinfo(row.dtype).max).to(row.dtype)
    # By bisection: ``bincount`` would make the host wait for the device.
    ends = torch.searchsorted(ordered, rows, right=True)
    return torch.cat([ends.new_zeros(1), ends]), position
