"""Edges of a block by pairs of relation and row, relation by relation: of the pairs that have edges, and no others.

Letters: ``E`` edges, ``R`` relations, ``P`` pairs, at most ``E`` of them; ``Vd`` destinations, ``Vs`` sources. Results
are computed once per block and cached with its edges.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.backend import as_numpy, gpu_dispatch, parallel_kernel, prange, serial_kernel
from outgrow.ops.csc import transpose
from outgrow.ops.memory_pool import as_input_rows, as_output_rows

Array = NDArray[Any]

CHUNK_ROWS = 1 << 13
"""Pairs that are computed at a time: few, so that their rows stay small beside those of all nodes."""


class PairChunk(NamedTuple):
    """The edges of some consecutive pairs.

    Attributes:
        rows: ``[p]`` int64, row of each pair in the block.
        indptr: ``[p + 1]`` int64, from 0.
        indices: ``[e]``, row at the other end of each edge.
        edge: ``[e]``, position of each edge in the block.
        spans: For each relation among the pairs its number, its first pair here, and the one after its last.
    """

    rows: Tensor
    indptr: Tensor
    indices: Tensor
    edge: Tensor
    spans: tuple[tuple[int, int, int], ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class PairEdges:
    """Edges by pairs of relation and row; within a pair they have the order of the block.

    Attributes:
        rows: ``[P]`` int64, row of each pair in the block: ascending within a relation, none twice.
        indptr: ``[P + 1]`` int64, ends of the edges of each pair.
        indices: ``[E]`` int32 or int64, row at the other end of each edge.
        edge: ``[E]`` int32 or int64, position of each edge in the block.
        borders: ``[R + 1]``: the first pair of each relation, and the number of pairs.
    """

    rows: Tensor
    indptr: Tensor
    indices: Tensor
    edge: Tensor
    borders: tuple[int, ...]

    @property
    def num_edges(self) -> int:
        """``E``."""
        return len(self.indices)

    def chunks(self, most: int = CHUNK_ROWS) -> Iterator[PairChunk]:
        """Yield all pairs in order, at most ``most`` at a time."""
        for first in range(0, len(self.rows), most):
            last = min(first + most, len(self.rows))
            # On a device the host waits for a number that it reads: the ends of all pairs are known.
            begin = int(self.indptr[first]) if first else 0
            end = int(self.indptr[last]) if last < len(self.rows) else self.num_edges
            spans = ((r, max(a, first), min(b, last)) for r, (a, b) in enumerate(pairwise(self.borders)))
            yield PairChunk(
                rows=self.rows[first:last],
                indptr=self.indptr[first : last + 1] - begin,
                indices=self.indices[begin:end],
                edge=self.edge[begin:end],
                spans=tuple((r, a - first, b - first) for r, a, b in spans if b > a),
            )


def in_edge_pairs(edges: Edges, num_relations: int) -> PairEdges:
    """Return the in-edges by pairs of relation and destination; made once for the edges of a block.

    Raises:
        InputError: A relation is missing or not in ``[0, num_relations)``.
    """
    relation = validate_relations(edges, num_relations)
    slot = f"in-edges of {num_relations} relations by pair"
    if slot not in edges.cache:
        edges.cache[slot] = _group(edges.indptr, edges.indices, None, relation, num_relations)
    return cast(PairEdges, edges.cache[slot])


def out_edge_pairs(edges: Edges, num_relations: int) -> PairEdges:
    """Return the out-edges by pairs of relation and source; made once for the edges of a block.

    Raises:
        InputError: A relation is missing or not in ``[0, num_relations)``.
    """
    relation = validate_relations(edges, num_relations)
    slot = f"out-edges of {num_relations} relations by pair"
    if slot not in edges.cache:
        # Not kept: nothing else of these edges needs it.
        back = transpose(edges)
        edges.cache[slot] = _group(back.indptr, back.indices, back.edge, relation, num_relations)
    return cast(PairEdges, edges.cache[slot])


def _group(indptr: Tensor, indices: Tensor, edge: Tensor | None, relation: Tensor, num_relations: int) -> PairEdges:
    counts, rows, ends, order = sort_by_pair(indptr, edge, relation, num_relations)
    # The host must know the borders: each relation has a product of its own.
    borders = (0, *counts.cumsum(0).tolist())
    narrow = torch.int32 if len(indices) < 2**31 else torch.int64
    return PairEdges(
        rows=rows,
        indptr=ends,
        indices=indices[order],
        edge=(order if edge is None else edge[order]).to(narrow),
        borders=borders,
    )


def count_relation_pairs(indptr: Tensor, relation: Tensor, num_relations: int) -> Tensor:
    """Return ``[R]`` int64: the rows that have edges of each relation.

    Args:
        indptr: ``[V + 1]`` int64, on the CPU.
        relation: ``[E]`` integer, in ``[0, num_relations)``.
        num_relations: ``R``.
    """
    scratch, ends = np.empty((3, num_relations), dtype=np.int64), as_numpy(indptr)
    _count_pairs(ends, None, as_numpy(relation), (0, len(ends) - 1), (ends[0], ends[-1]), scratch)
    return torch.from_numpy(scratch[0])


@gpu_dispatch
def sort_by_pair(
    indptr: Tensor, edge: Tensor | None, relation: Tensor, num_relations: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return edges of rows sorted by relation, and by row within a relation; equal ones keep their order.

    Args:
        indptr: ``[V + 1]`` int64.
        edge: ``[E]`` position of the relation of each edge; None if it is that of the edge.
        relation: ``[E]`` integer, in ``[0, num_relations)``.
        num_relations: ``R``.

    Returns:
        ``[R]`` int64, the number of pairs of each relation; ``[P]`` int64, the row of each pair; ``[P + 1]`` int64, the
        ends of its edges; ``[E]`` int64, the position of each edge among the given ones.
    """
    given = as_numpy(indptr)
    scratch, borders = np.empty((3, num_relations), dtype=np.int64), np.empty(num_relations + 1, dtype=np.int64)
    every, span = (0, len(given) - 1), (given[0], given[-1])
    positions = None if edge is None else as_numpy(edge)
    found = sort_by_relation(given, positions, as_numpy(relation), every, span, scratch, borders)
    rows, ends, order = map(torch.from_numpy, found)
    return torch.from_numpy(np.diff(borders)), rows, ends, order


@gpu_dispatch
def add_rows(out_VF: Tensor, rows: Tensor, values_NF: Tensor) -> None:
    """Add ``values[n]`` to ``out[rows[n]]``, in place; ``rows`` are ``[N]`` distinct int64."""
    _add_rows_kernel(
        as_output_rows(out_VF[:, None]), as_numpy(rows), as_input_rows(values_NF[:, None]), out_VF.shape[1]
    )


@parallel_kernel
def _add_rows_kernel(out: Array, rows: Array, values: Array, columns: int) -> None:
    for n in prange(len(rows)):
        row = rows[n]
        for f in range(columns):
            out[row, f] += values[n, f]


@serial_kernel
def _count_pairs(
    indptr: Array, edge: Array | None, relation: Array, rows: tuple[int, int], span: tuple[int, int], scratch: Array
) -> None:
    """Write the pairs and the edges of each relation, and its last row, to ``scratch``; see `sort_by_relation`."""
    begin, end = span
    scratch[:2] = 0
    scratch[2] = -1
    for v in range(rows[0], rows[1]):
        for i in range(max(begin, indptr[v]), min(end, indptr[v + 1])):
            r = relation[i if edge is None else edge[i]]
            # Without branches: no processor predicts which edges begin a pair.
            scratch[0, r] += scratch[2, r] != v
            scratch[1, r] += 1
            scratch[2, r] = v


@serial_kernel
def sort_by_relation(
    indptr: Array,
    edge: Array | None,
    relation: Array,
    rows: tuple[int, int],
    span: tuple[int, int],
    scratch: Array,
    borders: Array,
) -> tuple[Array, Array, Array]:
    """Sort the edges of some rows by relation, and by row within a relation; equal ones keep their order.

    Args:
        indptr: ``[M + 1]``.
        edge: ``[E]`` position of the relation of each edge; None if it is that of the edge.
        relation: ``[E]``.
        rows: The first row, and the one after the last.
        span: The first edge, and the one after the last.
        scratch: ``[3, R]``, overwritten.
        borders: ``[R + 1]``, written: the first pair of each relation.

    Returns:
        ``[p]`` the row of each pair, from 0; ``[p + 1]`` the ends of its edges; ``[e]`` the edges in order.
    """
    _count_pairs(indptr, edge, relation, rows, span, scratch)
    begin, end = span
    num_relations = len(borders) - 1
    pairs, edges = 0, 0
    for r in range(num_relations):
        borders[r] = pairs
        of_pairs, of_edges = scratch[0, r], scratch[1, r]
        scratch[0, r], scratch[1, r], scratch[2, r] = pairs - 1, edges, -1
        pairs += of_pairs
        edges += of_edges
    borders[num_relations] = pairs
    row, ends, order = np.empty(pairs, np.int64), np.zeros(pairs + 1, np.int64), np.empty(edges, np.int64)
    for v in range(rows[0], rows[1]):
        for i in range(max(begin, indptr[v]), min(end, indptr[v + 1])):
            r = relation[i if edge is None else edge[i]]
            p, at = scratch[0, r] + (scratch[2, r] != v), scratch[1, r]
            row[p] = v - rows[0]
            order[at] = i
            ends[p + 1] = at + 1
            scratch[0, r], scratch[1, r], scratch[2, r] = p, at + 1, v
    return row, ends, order
