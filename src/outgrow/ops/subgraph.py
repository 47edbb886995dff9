"""Subgraphs of some rows of a graph's in-edges, with or without self-loops.

No result is as large as all edges of the graph. With self-loops, a graph is a *view* of itself: every row has
lost its self-loops and ends with one. The view is never built: it needs only the number of loops
in the rows before each row.

Letters: ``V`` nodes of the graph, ``n`` selected rows, ``E`` edges in them. All tensors are on the CPU.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.csc import self_loop_edges, self_loop_weights
from outgrow.ops.kernels.work_split import EDGE, balanced_work
from outgrow.ops.rows.edge_rows import gather_edge_features
from outgrow.ops.subgraph_kernels import (
    copy_edge_values,
    count_loops,
    count_part_loops,
    count_sources_below,
    mark_edge_sources,
    partition_edges,
    sum_row_weights,
    write_edge_ids,
)

Array = NDArray[Any]


class RowSlices(NamedTuple):
    """Selected rows of a graph, or of its view with self-loops, one after another.

    Attributes:
        nodes: ``[n]`` int64; ascending if `is_consecutive` is used.
        start: ``[n]`` int64, the id of the first edge of each row in the graph, or in the view.
        indptr: ``[n + 1]`` int64, where each row begins among those picked.
    """

    nodes: Tensor
    start: Tensor
    indptr: Tensor

    @property
    def is_consecutive(self) -> bool:
        """Whether the nodes are a range; then so are their edges."""
        return are_consecutive(self.nodes)

    @property
    def first_edge(self) -> int:
        """Id of the first edge; 0 if there are no rows."""
        return int(self.start[0]) if len(self.start) else 0

    @property
    def num_edges(self) -> int:
        """``E``."""
        return int(self.indptr[-1])


def are_consecutive(nodes: Tensor) -> bool:
    """Whether nodes in ascending order are a range."""
    return len(nodes) == 0 or int(nodes[-1] - nodes[0]) == len(nodes) - 1


def row_slices(indptr: Tensor, nodes: Tensor) -> RowSlices:
    """Return the rows of some nodes of a graph with row pointers ``indptr [V + 1]``."""
    start = indptr[nodes]
    return RowSlices(nodes, start, _sizes_to_indptr(indptr[nodes + 1] - start))


def add_self_loops(rows: RowSlices, before: Tensor) -> RowSlices:
    """Return the same rows in the view with self-loops; ``before`` is from `count_loops_before`."""
    lost = before[rows.nodes]
    sizes = rows.indptr.diff() - (before[rows.nodes + 1] - lost) + 1
    return RowSlices(rows.nodes, rows.start - lost + rows.nodes, _sizes_to_indptr(sizes))


def count_loops_before(indptr: Tensor, indices: Tensor) -> Tensor:
    """Return ``[V + 1]``: the number of self-loops in all rows before each; int32 if that is wide enough.

    Reads all edges of the graph once, in order.
    """
    ends = as_numpy(indptr)
    parts = balanced_work(ends)
    loops = np.zeros(len(ends), dtype=np.int32)
    count_loops(parts, ends, as_numpy(indices), loops[1:], np.empty(len(parts), dtype=np.int32))
    narrow = np.int32 if loops.sum(dtype=np.int64) < 2**31 else np.int64
    return as_tensor(np.cumsum(loops, dtype=narrow))


def mark_sources(rows: RowSlices, indices: Tensor, place_V: Tensor) -> None:
    """Replace ``NOT_PRESENT`` by ``IS_SOURCE`` in a table of all nodes, at the sources of some rows."""
    ends = as_numpy(rows.indptr)
    mark_edge_sources(balanced_work(ends), ends, as_numpy(rows.start), as_numpy(indices), as_numpy(place_V))


def row_edge_ids(rows: RowSlices) -> Tensor | None:
    """Return ``[E]`` int64: edge ids of some rows; None if consecutive from `RowSlices.first_edge`."""
    if rows.is_consecutive:
        return None
    ends = as_numpy(rows.indptr)
    out = np.empty(rows.num_edges, dtype=np.int64)
    write_edge_ids(balanced_work(ends), ends, as_numpy(rows.start), out)
    return as_tensor(out)


def in_subgraph(edges: Edges, rows: RowSlices, looped: RowSlices | None, place_V: Tensor, num_src: int) -> Edges:
    """Return the edges of some rows, with the sources renumbered.

    Args:
        edges: Edges of the graph.
        rows: The rows in the graph.
        looped: The rows in the view with self-loops; None to leave loops as they are.
        place_V: ``[V]`` integer, the source row of each node that is a source. Nodes of ``rows`` have the
            first rows.
        num_src: Number of source rows.

    Returns:
        The edges. Where no loop is added and the rows are a range, they share memory with those given, except
        for sources that change their number. A loop of the view has the weight and the features that it has in the
        graph, 1 and those of `gather_edge_features` if it is added, and relation -1.
    """
    plan = _CopyPlan.from_rows(rows, looped, edges.indices)
    narrow = _index_dtype(num_src)
    # If every source keeps its number, copying suffices, and for consecutive rows not even that.
    kept = edges.indices.dtype == narrow and torch.equal(place_V[:num_src], torch.arange(num_src, dtype=place_V.dtype))
    out = Edges(
        indptr=plan.out.indptr,
        indices=plan.copy_values(edges.indices, None if kept else place_V, narrow),
        num_src=num_src,
        relation=None if edges.relation is None else plan.copy_values(edges.relation),
        weight=None if edges.weight is None else plan.copy_values(edges.weight),
        features=None if edges.features is None else _copy_features(plan, edges, edges.features),
        feature_sizes=edges.feature_sizes,
    )
    if looped is not None:
        # The kernel has left the last entry of each row open. Selected nodes have the first source rows.
        last = looped.indptr[1:] - 1
        out.indices[last] = torch.arange(len(last), dtype=out.indices.dtype)
        if out.relation is not None:
            out.relation[last] = -1
        if out.weight is not None:
            out.weight[last] = _loop_weights(edges, rows.nodes)
    return out


def partition_by_source(edges: Edges, first: int) -> tuple[Edges, Edges, Tensor]:
    """Split the edges by source row: before ``first``, and from it on, counted from ``first``.

    Returns:
        Both, with all destinations in each and edges in order, and ``[E]`` the position that each edge of the
        one and then of the other had; int32 where that is wide enough.
    """
    ends, src = as_numpy(edges.indptr), as_numpy(edges.indices)
    parts = balanced_work(ends)
    counts = np.empty(len(parts), dtype=np.int64)
    count_sources_below(parts, ends, src, first, counts)
    total = int(counts.sum())
    # The kernel writes where rows begin; the last entry, the total, is set here.
    low_ptr = np.full(len(ends), total)
    high_ptr = np.full(len(ends), len(src) - total)
    order = torch.empty(len(src), dtype=_index_dtype(len(src)))
    indices = torch.empty_like(edges.indices)
    pointers = np.cumsum(counts) - counts, low_ptr, high_ptr
    partition_edges(parts, ends, src, first, *pointers, as_numpy(order), as_numpy(indices))

    def build_edges(chosen: slice, indptr: Array, num_src: int) -> Edges:
        at = order[chosen]
        relation = None if edges.relation is None else edges.relation.index_select(0, at)
        weight = None if edges.weight is None else edges.weight.index_select(0, at)
        return Edges(
            indptr=as_tensor(indptr),
            indices=indices[chosen],
            num_src=num_src,
            relation=relation,
            weight=weight,
            features=None if edges.features is None else edges.features.index_select(0, at),
            feature_sizes=edges.feature_sizes,
        )

    low = build_edges(slice(0, total), low_ptr, first)
    return low, build_edges(slice(total, None), high_ptr, edges.num_src - first), order


def subgraph_degrees(edges: Edges, nodes: Tensor, before: Tensor | None) -> Tensor:
    """Return ``[n]`` float64: `outgrow.ops.csc.in_degree` of some nodes of a graph, to the last bit.

    Args:
        edges: Edges of the graph.
        nodes: ``[n]`` int64, in any order.
        before: Result of `count_loops_before`, for degrees in the view with self-loops; None for those in
            the graph. The view of a weighted graph takes ``8 V`` bytes for a moment.
    """
    rows = row_slices(edges.indptr, nodes)
    seen = rows if before is None else add_self_loops(rows, before)
    if edges.weight is None:
        return seen.indptr.diff().double()
    all_ends = as_numpy(edges.indptr)
    if before is not None:
        all_ends = all_ends - as_numpy(before)
        all_ends += np.arange(len(all_ends))
    # The parts of the full graph cut some rows, and pieces round differently from whole rows.
    cuts = np.ascontiguousarray(balanced_work(all_ends)[1:, EDGE])
    ends = as_numpy(rows.indptr)
    out = np.empty(len(nodes))
    given = as_numpy(edges.indptr), as_numpy(edges.indices), as_numpy(edges.weight)
    loops = None if before is None else as_numpy(_loop_weights(edges, nodes))
    sum_row_weights(balanced_work(ends), ends, as_numpy(nodes), as_numpy(seen.start), *given, cuts, loops, out)
    return as_tensor(out)


def _loop_weights(edges: Edges, nodes: Tensor) -> Tensor:
    """Return ``[n]``: the weight of the self-loop of each node in the view with self-loops."""
    assert edges.weight is not None
    given = as_numpy(edges.indptr), as_numpy(edges.indices), as_numpy(edges.weight)
    return as_tensor(self_loop_weights(*given, as_numpy(nodes)))


def _copy_features(plan: _CopyPlan, edges: Edges, features_ED: Tensor) -> Tensor:
    """Return the features of the edges that a plan copies, from those of the graph; a range without loops is a view."""
    if plan.out is plan.rows:
        return plan.copy_rows(features_ED)
    at = plan.copy_edge_ids()
    # The kernel has left the last entry of each row open.
    loops = self_loop_edges(as_numpy(edges.indptr), as_numpy(edges.indices), as_numpy(plan.rows.nodes))
    at[plan.out.indptr[1:] - 1] = as_tensor(loops)
    return gather_edge_features(features_ED, at)


class _CopyPlan(NamedTuple):
    """Operands of the copy kernel, the rows it reads and the rows it writes."""

    operands: tuple[Array, Array, Array, Array, Array, Array | None]
    rows: RowSlices
    out: RowSlices

    @staticmethod
    def from_rows(rows: RowSlices, looped: RowSlices | None, indices: Tensor) -> _CopyPlan:
        ends = as_numpy(rows.indptr)
        parts = balanced_work(ends)
        given = parts, ends, as_numpy(rows.start), as_numpy(rows.nodes), as_numpy(indices)
        if looped is None:
            return _CopyPlan((*given, None), rows, rows)
        # Two passes: a part can write only once the loops in all parts before it are known.
        lost = np.empty(len(parts), dtype=np.int64)
        count_part_loops(*given, lost)
        return _CopyPlan((*given, np.cumsum(lost) - lost), rows, looped)

    def copy_values(self, values: Tensor, place_V: Tensor | None = None, dtype: torch.dtype | None = None) -> Tensor:
        """Return ``[E]``: ``values`` of edges or their table entries; those of added loops are not set."""
        if place_V is None and self.out is self.rows and self.rows.is_consecutive:
            return values[self.rows.first_edge : self.rows.first_edge + self.rows.num_edges]
        out = torch.empty(self.out.num_edges, dtype=dtype or values.dtype)
        copy_edge_values(
            *self.operands, None if place_V is None else as_numpy(place_V), as_numpy(values), as_numpy(out)
        )
        return out

    def copy_rows(self, rows_ED: Tensor) -> Tensor:
        """Return ``[E', De]``: rows of edges, where no loops are added; a view of those of consecutive edges."""
        ids = row_edge_ids(self.rows)
        if ids is None:
            return rows_ED[self.rows.first_edge : self.rows.first_edge + self.rows.num_edges]
        return rows_ED.index_select(0, ids)

    def copy_edge_ids(self) -> Tensor:
        """Return ``[E']`` int64: positions of the edges in the graph; those of added loops are not set."""
        out = torch.empty(self.out.num_edges, dtype=torch.int64)
        copy_edge_values(*self.operands, None, None, as_numpy(out))
        return out


def _sizes_to_indptr(sizes: Tensor) -> Tensor:
    out = torch.zeros(len(sizes) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=out[1:])
    return out


def _index_dtype(count: int) -> torch.dtype:
    return torch.int32 if count < 2**31 else torch.int64
