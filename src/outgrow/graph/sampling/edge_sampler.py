"""Sampling of in-edges for one layer: all, uniformly, by weight, or with a fan-out for each relation."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.sampling.bitset import WORD_BITS, Bits
from outgrow.ops.sampling.by_relation import relation_degrees, sample_by_relation
from outgrow.ops.sampling.uniform import Ids, Rows, find_row_bounds, sample_uniform
from outgrow.ops.sampling.weighted import sample_weighted

Fanout = int | tuple[int, ...]
"""Number of in-edges that a node keeps, or the number for each relation; -1 keeps all."""

_ALL = int(np.iinfo(np.int64).max)


class SampledEdges(NamedTuple):
    """Sampled in-edges of ``n`` nodes.

    Attributes:
        indptr: ``[n + 1]``, ends of the rows.
        edges: ``[E]`` int64, positions among the edges of the view, ascending in each row.
        sample_weight: ``[E]``, number of in-edges that each edge represents; None if all edges are kept.
        relation_degree: ``[E]``, total weight of the row's in-edges of the same relation in the view; None if
            all edges are kept or edges have no relation.
    """

    indptr: Ids
    edges: Ids
    sample_weight: NDArray[np.float32] | None
    relation_degree: NDArray[np.float64] | None


class EdgeSampler:
    """Sampler of the in-edges of one layer.

    Args:
        view: The graph as the layer uses it.
        fanout: See `Fanout`.
        weighted: Whether edges are sampled with probabilities by weight.

    Raises:
        InputError: A fan-out of 0 or below -1; fan-outs by relation that do not match the edges, or in
            combination with ``weighted``; weights that are missing, negative or not finite.
    """

    def __init__(self, view: Topology, fanout: Fanout, *, weighted: bool = False) -> None:
        self.indptr = as_numpy(view.indptr)
        self.indices = as_numpy(view.indices)
        self.relation = None if view.relation is None else as_numpy(view.relation)
        self.weight = None if view.weight is None else as_numpy(view.weight)
        self.weighted = weighted
        _require_fanout(fanout)
        if isinstance(fanout, int):
            self.max_edges = _edge_limit(fanout)
            self.max_per_relation = None
        else:
            # The last entry is that of relation -1, added self-loops, of which all are kept.
            self.max_per_relation = np.array([*map(_edge_limit, fanout), _ALL])
            # Bounds the edges of a row, so that results can be allocated before sampling; 1 is for the self-
            # loop.
            self.max_edges = _ALL if _ALL in self.max_per_relation[:-1] else int(self.max_per_relation[:-1].sum()) + 1
            self._require_relations(weighted=weighted)
        if weighted:
            _require_weight(self.weight)

    @cached_property
    def num_relations(self) -> int:
        """``R``, one more than the largest relation of an edge."""
        return 0 if self.relation is None else int(self.relation.max(initial=-1)) + 1

    @cached_property
    def bitset_size(self) -> int:
        """Bound on the numbers in the bit set that `sample` needs."""
        largest = int(np.diff(self.indptr).max(initial=0))
        # Each relation with too many edges uses whole words of its own, so up to a word each is lost.
        return largest if self.max_per_relation is None else largest + WORD_BITS * len(self.max_per_relation)

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
        room, every = find_row_bounds(rows, self.indptr, self.max_edges)
        indptr = pool.empty_array(len(nodes) + 1, np.int64)
        edges = pool.empty_array(room, np.int64)
        stands_for = pool.empty_array(room, np.float32)
        draw = (np.uint64(key), bits)
        out = (indptr, edges, stands_for)
        if self.max_per_relation is not None:
            assert self.relation is not None
            kept = sample_by_relation(rows, self.relation, self.max_per_relation, *draw, out)
        # Weights are read only if a row is cut: keeping all edges is cheaper and needs no order.
        elif self.weighted and room < every:
            assert self.weight is not None
            kept = sample_weighted(rows, self.weight, self.max_edges, *draw, out)
        else:
            kept = sample_uniform(rows, self.max_edges, *draw, out)
        # All edges were kept, so every sample weight is 1: layers take their faster path without weights.
        if kept == every:
            return SampledEdges(indptr, edges, None, None)
        edges = edges[:kept]
        stands_for = stands_for[:kept]
        return SampledEdges(indptr, edges, stands_for, self._relation_degree(rows, indptr, edges, pool))

    def _relation_degree(self, rows: Rows, indptr: Ids, edges: Ids, pool: ArrayPool) -> NDArray[np.float64] | None:
        if self.relation is None:
            return None
        out = pool.empty_array(len(edges), np.float64)
        relation_degrees(rows, self.relation, self.weight, self.num_relations, indptr, edges, out)
        return out

    def _require_relations(self, *, weighted: bool) -> None:
        assert self.max_per_relation is not None
        given = len(self.max_per_relation) - 1
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
