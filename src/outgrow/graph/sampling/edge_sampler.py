"""Sampling of in-edges for one layer, by one of several samplers, by weight, or with a fan-out for each relation."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.topology import GraphView, SelfLoopView, Topology
from outgrow.ops.backend import as_numpy
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.sampling.bitset import WORD_BITS, Bits
from outgrow.ops.sampling.by_relation import relation_degrees, sample_by_relation
from outgrow.ops.sampling.labor import sample_labor
from outgrow.ops.sampling.layerwise import clear_nodes, count_kept_edges, draw_nodes, keep_marked_edges, mark_nodes
from outgrow.ops.sampling.self_loops import find_looped_row_bounds, resolve_looped_edges
from outgrow.ops.sampling.uniform import Ids, Out, Rows, find_row_bounds, sample_uniform
from outgrow.ops.sampling.weighted import sample_weighted
from outgrow.ops.sampling.with_replacement import sample_with_replacement

Fanout = int | tuple[int, ...]
"""Number of in-edges that a node keeps, or the number for each relation; -1 keeps all.

With sampler ``fastgcn`` it is the number of nodes that are drawn for a layer.
"""

NEIGHBOR, WITH_REPLACEMENT, LABOR, FASTGCN = "neighbor", "neighbor-with-replacement", "labor", "fastgcn"
SAMPLERS = (NEIGHBOR, WITH_REPLACEMENT, LABOR, FASTGCN)
"""Names of the samplers; the first is the default."""

_ALL = int(np.iinfo(np.int64).max)


class FoundEdges(NamedTuple):
    """Edges of a `SelfLoopView` in the graph.

    Attributes:
        edges: ``[E]`` int64, positions among the edges of the graph; of a self-loop that of the last one which its
            node has there, or `outgrow.ops.sampling.self_loops.ADDED`.
        sources: ``[E]`` int64, the source of each edge.
    """

    edges: Ids
    sources: Ids


class SampledEdges(NamedTuple):
    """Sampled in-edges of ``n`` nodes.

    Attributes:
        indptr: ``[n + 1]``, ends of the rows.
        edges: ``[E]`` int64, positions among the edges of the view, ascending in each row.
        sample_weight: ``[E]``, number of in-edges that each edge represents; None if it is 1 for all.
        relation_degree: ``[E]``, total weight of the row's in-edges of the same relation in the view; None if
            ``sample_weight`` is None or edges have no relation.
        found: Where these edges are in the graph, if the view is not in memory; else None.
    """

    indptr: Ids
    edges: Ids
    sample_weight: NDArray[np.float32] | None
    relation_degree: NDArray[np.float64] | None
    found: FoundEdges | None = None


class EdgeSampler:
    """Sampler of the in-edges of one layer.

    Attributes:
        unmade: The view, if its edges are not in memory; ``indptr``, ``indices`` and ``weight`` are then those of
            the graph.
        looped: The view, if it has self-loops.
        features: ``[E, De]`` features of the edges of the graph, which is not the view; None if there are none.
        feature_sizes: See `outgrow.graph.topology.Topology.feature_sizes`.

    Args:
        view: The graph as the layer uses it.
        fanout: See `Fanout`.
        weighted: Whether edges are sampled with probabilities by weight.
        sampler: One of `SAMPLERS`.

    Raises:
        InputError: A fan-out of 0 or below -1; fan-outs by relation that do not match the edges, or in
            combination with ``weighted`` or a sampler other than ``neighbor``; ``weighted`` with ``fastgcn``;
            weights that are missing, negative or not finite.
    """

    def __init__(self, view: GraphView, fanout: Fanout, *, weighted: bool = False, sampler: str = NEIGHBOR) -> None:
        self.weighted = weighted
        validate_choice("sampler", sampler, dict.fromkeys(SAMPLERS))
        _require_fanout(fanout)
        # What keeps all edges is the same for all samplers.
        self.sampler = NEIGHBOR if fanout == -1 else sampler
        # Draws that do not depend on edges need only the number of edges of a row: no copy of the graph is made.
        by_number = isinstance(fanout, int) and self.sampler in (NEIGHBOR, WITH_REPLACEMENT) and not weighted
        self.unmade: SelfLoopView | None = None
        self.looped = view if isinstance(view, SelfLoopView) else None
        # Features are looked up in the graph: a view would hold a copy of all of them.
        graph = view if isinstance(view, Topology) else view.graph
        self.features, self.feature_sizes = graph.edge_features, graph.feature_sizes
        if self.looped is None:
            held = graph
        elif by_number and graph.relation is None:
            self.unmade, held = self.looped, graph
        else:
            held = graph.without_edge_features.with_self_loops
        self.view: Topology = held
        self.indptr = as_numpy(held.indptr)
        self.indices = as_numpy(held.indices)
        self.relation = None if held.relation is None else as_numpy(held.relation)
        self.weight = None if held.weight is None else as_numpy(held.weight)
        if isinstance(fanout, int):
            self.max_edges = _edge_limit(fanout)
            self.max_per_relation = None
        else:
            # The last entry is that of relation -1, added self-loops, of which all are kept.
            self.max_per_relation = np.array([*map(_edge_limit, fanout), _ALL])
            # Bounds the edges of a row, so that results can be allocated before sampling; 1 is for the self-
            # loop.
            self.max_edges = _ALL if _ALL in self.max_per_relation[:-1] else int(self.max_per_relation[:-1].sum()) + 1
            self._require_relations(weighted=weighted, sampler=sampler)
        if sampler == FASTGCN:
            _require_importance(self.weight, weighted=weighted)
        if weighted:
            _require_weight(self.weight)

    @cached_property
    def num_relations(self) -> int:
        """``R``, one more than the largest relation of an edge."""
        return 0 if self.relation is None else int(self.relation.max(initial=-1)) + 1

    @cached_property
    def bitset_size(self) -> int:
        """Bound on the numbers in the bit set that `sample` needs."""
        if self.sampler == FASTGCN:
            return self.view.num_nodes
        largest = int(np.diff(self.indptr).max(initial=0)) + (self.unmade is not None)
        # Each relation with too many edges uses whole words of its own, so up to a word each is lost.
        return largest if self.max_per_relation is None else largest + WORD_BITS * len(self.max_per_relation)

    def prepare(self) -> None:
        """Compute what `sample` needs of the graph; else threads that sample at the same time would each compute it."""
        if self.sampler == FASTGCN:
            _ = self.view.column_share_bounds
        looped = self.unmade if self.features is None else self.looped
        if looped is not None:
            _ = looped.given_loops

    def sample(self, nodes: Ids, key: int, bits: Bits, pool: ArrayPool) -> SampledEdges:
        """Sample in-edges of nodes.

        Args:
            nodes: ``[n]``.
            key: Key of (seed, epoch, step, layer).
            bits: An empty set for numbers below `bitset_size`; empty again afterwards.
            pool: Provides the memory of the results.
        """
        # One array for both results: fewer requests to the pool for each hop.
        found = pool.empty_array(2 * len(nodes), np.int64)
        rows = nodes, found[: len(nodes)], found[len(nodes) :]
        if self.unmade is None:
            room, every = find_row_bounds(rows, self.indptr, self.max_edges)
        else:
            room, every = find_looped_row_bounds(rows, self.indptr, self.unmade.given_loops, self.max_edges)
        if self.sampler == FASTGCN:
            return self._sample_from_drawn_nodes(rows, key, bits, pool)
        out = allocate_result(len(nodes), room, pool)
        draw = (np.uint64(key), bits)
        weight = self.weight if self.weighted else None
        if self.max_per_relation is not None:
            assert self.relation is not None
            kept = sample_by_relation(rows, self.relation, self.max_per_relation, *draw, out)
        elif self.sampler == WITH_REPLACEMENT:
            kept = sample_with_replacement(rows, weight, self.max_edges, *draw, out)
            return self._make_result(rows, out, kept, pool)
        # Weights and sources are read only if a row is cut: keeping all edges is cheaper and needs no order.
        elif self.sampler == LABOR and room < every:
            kept = sample_labor(rows, self.indices, weight, self.max_edges, *draw, out)
        elif weight is not None and room < every:
            kept = sample_weighted(rows, weight, self.max_edges, *draw, out)
        else:
            kept = sample_uniform(rows, self.max_edges, *draw, out)
        # All edges were kept, so every sample weight is 1: layers take their faster path without weights.
        if kept == every:
            return SampledEdges(out[0], out[1], None, None, self._find_edges(rows, out[0], out[1], pool))
        return self._make_result(rows, out, kept, pool)

    def _sample_from_drawn_nodes(self, rows: Rows, key: int, bits: Bits, pool: ArrayPool) -> SampledEdges:
        # A function of the key alone: whoever samples the layer in this step draws the same nodes.
        drawn = draw_nodes(as_numpy(self.view.column_share_bounds), self.max_edges, key)
        words, _ = bits
        mark_nodes(drawn, words)
        # Counted first: few of the in-edges are kept, and rows of drawn nodes are long.
        out = allocate_result(len(rows[0]), count_kept_edges(rows, self.indices, words), pool)
        kept = keep_marked_edges(rows, self.indices, *drawn, words, out)
        clear_nodes(drawn, words)
        return self._make_result(rows, out, kept, pool)

    def _make_result(self, rows: Rows, out: Out, kept: int, pool: ArrayPool) -> SampledEdges:
        indptr, edges, sample_weight = out[0], out[1][:kept], out[2][:kept]
        degrees = self._relation_degree(rows, indptr, edges, pool)
        return SampledEdges(indptr, edges, sample_weight, degrees, self._find_edges(rows, indptr, edges, pool))

    def _find_edges(self, rows: Rows, indptr: Ids, edges: Ids, pool: ArrayPool) -> FoundEdges | None:
        return None if self.unmade is None else _resolve_edges(self.unmade, rows, indptr, edges, pool)

    def find_graph_edges(self, nodes: Ids, sampled: SampledEdges, pool: ArrayPool) -> Ids:
        """Return ``[E]``: positions in the graph of the sampled in-edges of nodes, of added self-loops `ADDED`."""
        if self.looped is None:
            return sampled.edges
        if sampled.found is not None:
            return sampled.found.edges
        # The view is in memory, but not its features.
        bounds = pool.empty_array(2 * len(nodes), np.int64)
        rows = nodes, bounds[: len(nodes)], bounds[len(nodes) :]
        find_row_bounds(rows, self.indptr, self.max_edges)
        return _resolve_edges(self.looped, rows, sampled.indptr, sampled.edges, pool).edges

    def _relation_degree(self, rows: Rows, indptr: Ids, edges: Ids, pool: ArrayPool) -> NDArray[np.float64] | None:
        if self.relation is None:
            return None
        out = pool.empty_array(len(edges), np.float64)
        relation_degrees(rows, self.relation, self.weight, self.num_relations, indptr, edges, out)
        return out

    def _require_relations(self, *, weighted: bool, sampler: str) -> None:
        assert self.max_per_relation is not None
        given = len(self.max_per_relation) - 1
        require_fanouts_for_sampler(sampler, given)
        if self.relation is None or self.num_relations > given:
            raise InputError(
                "a fan-out by relation does not fit the graph",
                needed="edges with relations, and a number for each relation",
                got=f"{given} numbers, "
                + ("no relations" if self.relation is None else f"{self.num_relations} relations"),
                repair="give one number for each relation, or one number for all in-edges",
            )
        if not self._has_loops_last():
            raise InputError(
                "a fan-out by relation does not fit the graph",
                needed="relation -1 of no edge but a self-loop that was added at the end of a row",
                got=f"relations from {self.relation.min()}",
                repair="number the relations from 0",
            )
        if weighted:
            raise InputError(
                "a fan-out by relation cannot be drawn by weight",
                needed="one number for each layer where edges are drawn by weight",
                got=f"{given} numbers for a layer",
                repair="give one number for each layer, or draw without regard to weights",
            )

    def _has_loops_last(self) -> bool:
        """Whether no row has more than one edge without a relation, which is all that `sample` reserves memory for."""
        assert self.relation is not None
        # The last edge of each row that has any; a loop anywhere else makes the two counts differ.
        ends = self.indptr[1:][np.diff(self.indptr) > 0] - 1
        without = np.count_nonzero(self.relation == -1)
        return bool(self.relation.min(initial=0) >= -1 and np.count_nonzero(self.relation[ends] == -1) == without)


def require_fanouts_for_sampler(sampler: str, numbers: int) -> None:
    """Check that a sampler can draw with a fan-out of so many numbers, one for each relation.

    Raises:
        InputError: It cannot.
    """
    if sampler != NEIGHBOR:
        raise InputError(
            f"sampler {sampler} cannot draw by relation",
            needed="one number for each layer",
            got=f"{numbers} numbers for a layer",
            repair=f"give one number for each layer, or choose sampler {NEIGHBOR}",
        )


def _resolve_edges(view: SelfLoopView, rows: Rows, indptr: Ids, edges: Ids, pool: ArrayPool) -> FoundEdges:
    found = FoundEdges(pool.empty_array(len(edges), np.int64), pool.empty_array(len(edges), np.int64))
    graph = as_numpy(view.graph.indptr), as_numpy(view.graph.indices)
    resolve_looped_edges(rows, indptr, edges, graph, view.given_loops, *found)
    return found


def allocate_result(num_rows: int, num_edges: int, pool: ArrayPool) -> Out:
    """Allocate `outgrow.ops.sampling.uniform.Out` for so many rows and edges."""
    return (
        pool.empty_array(num_rows + 1, np.int64),
        pool.empty_array(num_edges, np.int64),
        pool.empty_array(num_edges, np.float32),
    )


def _edge_limit(fanout: int) -> int:
    return _ALL if fanout == -1 else fanout


def _require_fanout(fanout: Fanout) -> None:
    if any(number < 1 and number != -1 for number in ((fanout,) if isinstance(fanout, int) else fanout)):
        raise InputError(
            "this fan-out cannot be sampled",
            needed="numbers of at least 1, or -1 for all in-edges",
            got=str(fanout),
            repair="change the number",
        )


def _require_weight(weight: NDArray[np.float32] | None) -> None:
    # A maximum that is finite rules out NaN and infinity for all weights, without an array of flags.
    good = weight is not None and (not len(weight) or (weight.min() >= 0 and np.isfinite(weight.max())))
    if not good:
        raise InputError(
            "these edges cannot be drawn by weight",
            needed="finite weights of 0 or more",
            got="no weights" if weight is None else f"weights from {weight.min()} to {weight.max()}",
            repair="sample without regard to weights, or correct them in the graph",
        )


def _require_importance(weight: NDArray[np.float32] | None, *, weighted: bool) -> None:
    if weighted:
        raise InputError(
            f"sampler {FASTGCN} does not draw by the weights of edges",
            needed=f"weighted=False: {FASTGCN} draws nodes by importance, in which weights count already",
            got="weighted=True",
            repair="leave weighted out, or choose another sampler",
        )
    if weight is not None and len(weight) and not np.isfinite([weight.min(), weight.max()]).all():
        raise InputError(
            f"sampler {FASTGCN} cannot draw by these weights",
            needed="finite weights",
            got=f"weights from {weight.min()} to {weight.max()}",
            repair="choose another sampler, or correct them in the graph",
        )
