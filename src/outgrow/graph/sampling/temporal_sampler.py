"""Sampling of in-edges before the time of each row, for one layer."""

from __future__ import annotations

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.sampling.edge_sampler import (
    NEIGHBOR,
    WITH_REPLACEMENT,
    EdgeSampler,
    Fanout,
    FoundEdges,
    SampledEdges,
    allocate_result,
)
from outgrow.graph.topology import GraphView, SelfLoopView, Topology
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.sampling.bitset import Bits
from outgrow.ops.sampling.by_relation import sample_by_relation
from outgrow.ops.sampling.renumber_pairs import PairRows
from outgrow.ops.sampling.temporal import (
    choose_last,
    choose_last_by_relation,
    find_rows_before,
    relation_degrees_before,
    resolve_edges_before,
    total_weight_before,
)
from outgrow.ops.sampling.time_order import TimeOrder, sum_weights_by_time
from outgrow.ops.sampling.uniform import Array, Ids, Out, Rows, sample_uniform
from outgrow.ops.sampling.with_replacement import sample_with_replacement

UNIFORM, LAST = "uniform", "last"
TEMPORAL_STRATEGIES = (UNIFORM, LAST)
"""How in-edges before a time are drawn, by PyG's names: by the sampler, or the most recent ones."""


class TemporalEdgeSampler:
    """Sampler of the in-edges of one layer that are before the time of each row. Final.

    Strictly before: an edge of the same time may be what is to be predicted, or may follow from it.

    A self-loop that is added to a row is before every time. One that the graph has gives way to it, with weight 1 and
    without features, since it may be later than the row.

    Attributes have the meaning that they have in `EdgeSampler`, and are of the graph.

    Args:
        view: The graph as the layer uses it.
        fanout: See `Fanout`.
        strategy: One of `TEMPORAL_STRATEGIES`.
        weighted: Refused.
        sampler: ``neighbor`` or ``neighbor-with-replacement``.

    Raises:
        InputError: The graph has no times; or another sampler, ``weighted``, or a fan-out that `EdgeSampler` rejects.
    """

    def __init__(
        self, view: GraphView, fanout: Fanout, *, strategy: str, weighted: bool = False, sampler: str = NEIGHBOR
    ) -> None:
        graph = view if isinstance(view, Topology) else view.graph
        # Makes the checks, and has the arrays of the graph without a copy for self-loops.
        plain = EdgeSampler(graph, fanout, sampler=sampler)
        validate_choice("temporal_strategy", strategy, dict.fromkeys(TEMPORAL_STRATEGIES))
        require_times(graph)
        _require_sampler(sampler, strategy, weighted=weighted)
        self._plain = plain
        self._strategy = strategy
        self._ordered = view
        self._looped = view if isinstance(view, SelfLoopView) else None
        self._loops = int(self._looped is not None)
        self.indptr, self.indices = plain.indptr, plain.indices
        self.relation, self.weight = plain.relation, plain.weight
        self.features, self.feature_sizes = plain.features, plain.feature_sizes
        self.max_edges, self.max_per_relation = plain.max_edges, plain.max_per_relation

    @property
    def bitset_size(self) -> int:
        """Bound on the numbers in the bit set that `sample_before` needs."""
        return self._plain.bitset_size + self._loops

    @cached_property
    def order(self) -> TimeOrder:
        """In-edges by time."""
        return self._ordered.time_order

    @cached_property
    def _relation_by_time(self) -> Array | None:
        """Relations in the order of time, for fan-outs by relation."""
        return None if self.relation is None or self.max_per_relation is None else self.relation[self.order.edges]

    @cached_property
    def _weight_sums(self) -> NDArray[np.float64] | None:
        return None if self.weight is None else sum_weights_by_time(self.indptr, self.order, self.weight)

    def prepare(self) -> None:
        """Compute what sampling needs of the graph; else threads that sample at the same time would each compute it."""
        _ = self.order, self._relation_by_time, self._weight_sums
        if self._looped is not None:
            _ = self._looped.given_loops

    def sample_before(self, pairs: PairRows, key: int, bits: Bits, pool: ArrayPool) -> SampledEdges:
        """Sample in-edges of nodes that are before a time.

        Args:
            pairs: ``[n]`` nodes and times.
            key: Key of (seed, epoch, step, layer).
            bits: An empty set for numbers below `bitset_size`; empty again afterwards.
            pool: Provides the memory of the results.
        """
        nodes, times = pairs
        found = pool.empty_array(3 * len(nodes), np.int64)
        rows = nodes, found[: len(nodes)], found[len(nodes) : 2 * len(nodes)]
        keys = found[2 * len(nodes) :]
        # With fan-outs by relation all added self-loops are kept, and so none is drawn.
        drawn_loops = self._loops if self.max_per_relation is None else 0
        bounds = (keys, self.indptr, self.order.times, drawn_loops, self.max_edges)
        room, every = find_rows_before(rows, times, *bounds)
        drawn = allocate_result(len(nodes), room, pool)
        kept = self._draw((keys, *rows[1:]), np.uint64(key), bits, drawn)
        extra = (self._loops - drawn_loops) * len(nodes)
        return self._resolve(rows, drawn, kept + extra, kept + extra == every + extra, drawn_loops, pool)

    def find_graph_edges(self, nodes: Ids, sampled: SampledEdges, pool: ArrayPool) -> Ids:
        """Return ``[E]``: positions in the graph of sampled in-edges, of added self-loops `ADDED`."""
        assert sampled.found is not None
        return sampled.found.edges

    def weigh_before(self, pairs: PairRows, out: NDArray[np.float64]) -> None:
        """Write the weight of all in-edges of nodes before their times, and of added self-loops, to ``out [n]``."""
        total_weight_before(*pairs, self.indptr, self.order.times, self._weight_sums, self._loops, out)

    def _draw(self, rows: Rows, key: np.uint64, bits: Bits, out: Out) -> int:
        if self.max_per_relation is not None:
            assert self._relation_by_time is not None
            if self._strategy == LAST:
                return choose_last_by_relation(rows, self._relation_by_time, self.max_per_relation, out)
            return sample_by_relation(rows, self._relation_by_time, self.max_per_relation, key, bits, out)
        if self._plain.sampler == WITH_REPLACEMENT:
            return sample_with_replacement(rows, None, self.max_edges, key, bits, out)
        if self._strategy == LAST:
            return choose_last(rows, self.max_edges, out)
        return sample_uniform(rows, self.max_edges, key, bits, out)

    def _resolve(
        self, rows: Rows, drawn: Out, kept: int, is_whole: bool, drawn_loops: int, pool: ArrayPool
    ) -> SampledEdges:
        indptr, edges, weights = allocate_result(len(rows[0]), kept, pool)
        found = FoundEdges(pool.empty_array(kept, np.int64), pool.empty_array(kept, np.int64))
        given = None if self._looped is None else self._looped.given_loops
        graph = self.indptr, self.indices
        resolved = indptr, edges, *found, weights
        resolve_edges_before(rows, drawn, self.order.edges, graph, given, self._loops > drawn_loops, resolved)
        if is_whole and self._plain.sampler == NEIGHBOR:
            # Layers take their faster path, without weights.
            return SampledEdges(indptr, edges, None, None, found)
        degrees = None
        if self.relation is not None:
            degrees = pool.empty_array(kept, np.float64)
            counted = self.order.edges, self.relation, self.weight, self._plain.num_relations
            relation_degrees_before(rows, drawn_loops, *counted, indptr, found.edges, degrees)
        return SampledEdges(indptr, edges, weights, degrees, found)


def make_edge_sampler(
    view: GraphView,
    fanout: Fanout,
    *,
    weighted: bool = False,
    sampler: str = NEIGHBOR,
    temporal_strategy: str | None = None,
) -> EdgeSampler | TemporalEdgeSampler:
    """Return the sampler of a layer; ``temporal_strategy`` is one of `TEMPORAL_STRATEGIES`, or None for all in-edges.

    Raises:
        InputError: See `EdgeSampler` and `TemporalEdgeSampler`.
    """
    if temporal_strategy is None:
        return EdgeSampler(view, fanout, weighted=weighted, sampler=sampler)
    return TemporalEdgeSampler(view, fanout, strategy=temporal_strategy, weighted=weighted, sampler=sampler)


def require_times(graph: Topology) -> None:
    """Check that a graph has times of edges or of nodes.

    Raises:
        InputError: It has none.
    """
    if graph.edge_time is None and graph.node_time is None:
        raise InputError(
            "temporal draws need times",
            needed="times of nodes, and of edges unless an edge has that of its source",
            got="a graph without times",
            repair="name the column: --time-column NAME; set time and edge_time of a Data of PyG; "
            "or leave temporal_strategy out",
        )


def _require_sampler(sampler: str, strategy: str, *, weighted: bool) -> None:
    fits = sampler == NEIGHBOR or (sampler == WITH_REPLACEMENT and strategy == UNIFORM)
    if weighted or not fits:
        raise InputError(
            f"temporal_strategy={strategy} does not go with {'weighted=True' if weighted else f'sampler {sampler}'}",
            needed=f"sampler {NEIGHBOR}, or {WITH_REPLACEMENT} with temporal_strategy={UNIFORM}, without weighted",
            got=f"sampler {sampler}, weighted={weighted}",
            repair=f"choose sampler {NEIGHBOR}, or leave weighted out",
        )
