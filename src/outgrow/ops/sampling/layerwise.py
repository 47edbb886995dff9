"""Layer-wise importance sampling (FastGCN): all rows choose their edges from one set of nodes.

Nodes are drawn with replacement, with probabilities ``q`` proportional to the squared norms of the columns of
the normalised adjacency ``A[v, u] = w_uv / sqrt(d_u d_v)``; rows keep the edges whose source was drawn. Of
``t`` draws, ``m`` of which were node ``u``, an edge from ``u`` represents ``m / (t q_u)`` edges, so that a sum over
the kept edges is, on average, that over all. Chen, Ma, Xiao: FastGCN: fast learning with graph convolutional
networks via importance sampling, ICLR 2018, section 3.1.

Unlike in the paper, the edge of a node to itself is always kept, as one edge: its source is a row of the block
whatever was drawn. A node whose out-edges all have weight 0 is never drawn. Letters: ``V`` nodes, ``E`` edges,
``s`` distinct nodes that were drawn.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.ops.backend import as_numpy, as_tensor, serial_kernel
from outgrow.ops.sampling.bitset import WORD_BITS, Words, has_bit, set_bits
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, fill_uniform


class DrawnNodes(NamedTuple):
    """The set of nodes of a layer.

    Attributes:
        nodes: ``[s]`` int64, distinct and ascending.
        sample_weight: ``[s]`` float32, how many in-edges an edge from each of them represents.
    """

    nodes: Ids
    sample_weight: NDArray[np.float32]


def column_share_bounds(indptr: Tensor, indices: Tensor, weight: Tensor | None, degree: Tensor) -> Tensor:
    """Return ``[V]`` float64: running sums of each node's share of the squared column norms, the last is 1.

    The norm of node ``u`` is ``sum over out-edges u -> v of w_uv^2 / (d_u d_v)``; a degree of 0 or less counts as 1.
    All are 0 if there are no edges, or none with a weight.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[E]`` int32 or int64.
        weight: ``[E]`` float32, finite; None if all are 1.
        degree: ``[V]`` float64, weighted in-degrees.
    """
    scale = as_numpy(degree.where(degree > 0, 1.0).reciprocal())
    norm = np.zeros(len(scale))
    _add_column_norms(as_numpy(indptr), as_numpy(indices), None if weight is None else as_numpy(weight), scale, norm)
    np.cumsum(np.multiply(norm, scale, out=norm), out=norm)
    if len(norm) and norm[-1] > 0:
        norm /= norm[-1]
    return as_tensor(norm)


@serial_kernel
def _add_column_norms(
    indptr: Ids, indices: Array, weight: Array | None, scale: NDArray[np.float64], norm: NDArray[np.float64]
) -> None:
    # Serial, so that sums do not depend on threads: one pass over the edges for a run.
    for v in range(len(indptr) - 1):
        factor = scale[v]
        for e in range(indptr[v], indptr[v + 1]):
            size = 1.0 if weight is None else np.float64(weight[e])
            norm[indices[e]] += size * size * factor


def draw_nodes(bounds: NDArray[np.float64], draws: int, key: int) -> DrawnNodes:
    """Draw nodes with replacement.

    Args:
        bounds: Result of `column_share_bounds`.
        draws: ``t``.
        key: Key of (seed, epoch, step, layer).
    """
    if not len(bounds) or bounds[-1] == 0:
        return DrawnNodes(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.float32))
    uniform = np.empty(draws)
    fill_uniform(np.uint64(key), uniform)
    nodes, times = np.unique(np.searchsorted(bounds, uniform, side="right"), return_counts=True)
    # The difference of the bounds is the probability with which the search above finds a node.
    share = bounds[nodes] - np.where(nodes > 0, bounds[nodes - 1], 0.0)
    return DrawnNodes(nodes, (times / (draws * share)).astype(np.float32))


def mark_nodes(drawn: DrawnNodes, words: Words) -> None:
    """Add the nodes to an empty set of numbers below ``V``."""
    set_bits(drawn.nodes, words)


def clear_nodes(drawn: DrawnNodes, words: Words) -> None:
    """Empty the set again."""
    words[drawn.nodes // WORD_BITS] = 0


@serial_kernel
def count_kept_edges(rows: Rows, indices: Array, words: Words) -> int:
    """Count the edges that `keep_marked_edges` keeps."""
    nodes, first, degree = rows
    kept = 0
    for i in range(len(nodes)):
        for e in range(first[i], first[i] + degree[i]):
            source = indices[np.uint64(e)]
            kept += source == nodes[i] or has_bit(words, 0, np.uint64(source))
    return kept


@serial_kernel
def keep_marked_edges(
    rows: Rows, indices: Array, drawn: Ids, sample_weight: NDArray[np.float32], words: Words, out: Out
) -> int:
    """Keep the edges from drawn nodes, and those from a node to itself.

    Args:
        rows: See `outgrow.ops.sampling.uniform.Rows`.
        indices: Source of every edge of the graph.
        drawn: ``[s]``, see `DrawnNodes`.
        sample_weight: ``[s]``, see `DrawnNodes`.
        words: The drawn nodes as a set.
        out: See `outgrow.ops.sampling.uniform.Out`; written.

    Returns:
        ``E``.
    """
    nodes, first, degree = rows
    indptr, chosen, stands_for = out
    at = 0
    indptr[0] = 0
    for i in range(len(nodes)):
        for e in range(first[i], first[i] + degree[i]):
            source = indices[np.uint64(e)]
            if source == nodes[i]:
                chosen[at], stands_for[at] = e, 1
                at += 1
            elif has_bit(words, 0, np.uint64(source)):
                chosen[at], stands_for[at] = e, sample_weight[np.searchsorted(drawn, source)]
                at += 1
        indptr[i + 1] = at
    return at
