"""Sampling of in-edges for each layer of a model, and the blocks made of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.core.errors import InputError
from outgrow.graph.sampling.edge_sampler import NEIGHBOR, EdgeSampler, Fanout, SampledEdges
from outgrow.graph.sampling.readahead import RowReadahead, make_row_readahead
from outgrow.graph.sampling.temporal_sampler import TemporalEdgeSampler, make_edge_sampler, require_times
from outgrow.graph.topology import NO_TIME, GraphView, SelfLoopView, Topology
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.memory_pool import ArrayPool
from outgrow.ops.rng import NEIGHBOURS, fold_in
from outgrow.ops.rows.edge_rows import gather_sampled_features
from outgrow.ops.rows.gather import WORDS
from outgrow.ops.sampling.bitset import Bits
from outgrow.ops.sampling.renumber import gather_row_lengths, gather_values
from outgrow.ops.sampling.renumber_pairs import PairRows
from outgrow.ops.sampling.self_loops import ADDED
from outgrow.ops.sampling.uniform import Array, Ids

# The largest int32: the table of local numbers holds a base of at least 1 plus a number below V.
LARGEST = (1 << 31) - 1


class LayerSampling:
    """Samplers of all layers of a model. Final; may be called from several threads at once.

    A layer whose fan-out is a number keeps, by sampler ``neighbor``, at most that many in-edges of each node,
    sampled without replacement: uniformly, or one after the other with probabilities by weight. A layer whose
    fan-out is a tuple keeps at most that many of each relation, sampled uniformly, and all added self-loops
    (relation -1). ``neighbor-with-replacement`` draws that many times, ``labor`` keeps the in-edges whose sources
    have the smallest random numbers, ``fastgcn`` those whose sources are in one set of nodes for the layer: see
    `outgrow.ops.sampling`. ``labor``, ``fastgcn`` and sampling by weight or by relation take time proportional to
    the degrees of the nodes; otherwise time is proportional to the number of edges kept.

    Args:
        views: The topology as each layer of the model uses it, the first layer first.
        fanout: Fan-out of each hop from the seeds outward, so the first is that of the last layer; -1 keeps
            all in-edges.
        seed: Seed of the sampling.
        weighted: Whether edges are sampled by weight. Then ``weight * sample_weight`` is the same for all
            draws of a node, and their sum is the weight of all its in-edges.
        sampler: One of `outgrow.graph.sampling.edge_sampler.SAMPLERS`.
        temporal_strategy: One of `outgrow.graph.sampling.temporal_sampler.TEMPORAL_STRATEGIES`: every node of a batch
            is then drawn for the time of its seed, and only in-edges before it are sampled; None for all in-edges.

    Raises:
        InputError: Not one fan-out for each view, views of different graphs or of 2^31 - 1 nodes or more, or
            a fan-out or a temporal strategy that `EdgeSampler` or `TemporalEdgeSampler` rejects.
    """

    def __init__(
        self,
        views: Sequence[GraphView],
        fanout: Sequence[Fanout],
        seed: int,
        *,
        weighted: bool = False,
        sampler: str = NEIGHBOR,
        temporal_strategy: str | None = None,
    ) -> None:
        _require_views(views, fanout)
        self.views = tuple(views)
        self.seed = seed
        # Fan-outs count hops from the seeds, views count layers from the input: one order is reversed.
        given = zip(self.views, reversed(fanout), strict=True)
        self.is_temporal = temporal_strategy is not None
        self._samplers = [
            make_edge_sampler(view, number, weighted=weighted, sampler=sampler, temporal_strategy=temporal_strategy)
            for view, number in given
        ]
        # Computed here: threads that sample at the same time would each compute them.
        for each in self._samplers:
            each.prepare()
        # Numbers of in-edges are read from the graph as they are needed: an array of all takes 8 bytes for each node.
        self._degrees = [
            None if self.is_temporal or _counts_in_edges(view) else as_numpy(view.degree) for view in self.views
        ]
        self.pool = ArrayPool()
        self._readahead: list[RowReadahead | None] = [None] * len(self.views)
        self._feature_readahead = self._readahead

    def set_memory_limit(self, limit: int | None) -> None:
        """Read in-edges ahead from their files, in coalesced runs, if they are large beside the memory of the worker.

        Of features, only those of sampled edges are read.

        Args:
            limit: Limit on that memory, in bytes; None for what there is.
        """
        self._readahead = [_make_readahead(each, limit) for each in self._samplers]
        self._feature_readahead = [_make_feature_readahead(each, limit) for each in self._samplers]

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return self.views[0].num_nodes

    @property
    def bitset_size(self) -> int:
        """Bound on the numbers in the bit set that `sample_layer` needs."""
        return max(choice.bitset_size for choice in self._samplers)

    @property
    def hops_from_seeds(self) -> list[int]:
        """Numbers of the layers, from that of the seeds outward."""
        return [*reversed(range(len(self.views)))]

    def sample_layer(self, layer: int, nodes: Ids, epoch: int, step: int, bits: Bits) -> SampledEdges:
        """Sample the in-edges of nodes for a layer.

        Args:
            layer: Number of the layer.
            nodes: ``[n]``.
            epoch: Part of the key.
            step: Part of the key.
            bits: An empty set for numbers below `bitset_size`; empty again afterwards.
        """
        # Without the worker and the batch: whoever samples a node in this step gets the same edges.
        key = fold_in(self.seed, epoch, step, layer + 1, NEIGHBOURS)
        readahead = self._readahead[layer]
        if readahead is not None:
            readahead.read_rows(nodes)
        sampler = self._samplers[layer]
        assert isinstance(sampler, EdgeSampler)
        return sampler.sample(nodes, key, bits, self.pool)

    def sample_before(self, layer: int, pairs: PairRows, epoch: int, step: int, bits: Bits) -> SampledEdges:
        """Sample the in-edges of nodes before their times for a layer; arguments otherwise as in `sample_layer`."""
        key = fold_in(self.seed, epoch, step, layer + 1, NEIGHBOURS)
        sampler = self._samplers[layer]
        assert isinstance(sampler, TemporalEdgeSampler)
        return sampler.sample_before(pairs, key, bits, self.pool)

    def seed_times(self, seeds: Ids) -> Ids:
        """Return the times of nodes as seeds, ``[n]`` int64.

        Raises:
            InputError: A node has no time.
        """
        view = self.views[0]
        given = (view.graph if isinstance(view, SelfLoopView) else view).node_time
        times = np.full(len(seeds), NO_TIME) if given is None else as_numpy(given)[seeds]
        require_seed_times(seeds, times)
        return times

    def locate_sources(self, layer: int, sampled: SampledEdges) -> tuple[Ids, Array]:
        """Return where the sources of sampled in-edges are: ``[E]`` positions, and the array that they are in."""
        if sampled.found is None:
            return sampled.edges, self._samplers[layer].indices
        return np.arange(len(sampled.edges)), sampled.found.sources

    def degrees_before(self, layer: int, pairs: PairRows) -> Tensor:
        """Return ``[n]``: the degrees of nodes before their times in the layer's view."""
        sampler = self._samplers[layer]
        assert isinstance(sampler, TemporalEdgeSampler)
        out = self.pool.empty_array(len(pairs.nodes), np.float64)
        sampler.weigh_before(pairs, out)
        return as_tensor(out)

    def node_degrees(self, layer: int, nodes: Ids) -> Tensor:
        """Return ``[n]``: the degrees of nodes in the layer's view."""
        degrees = self._degrees[layer]
        if degrees is not None:
            return self._gather_pooled(degrees, nodes)
        out = self.pool.empty_array(len(nodes), np.float64)
        gather_row_lengths(self._samplers[layer].indptr, nodes, out)
        return as_tensor(out)

    def make_block(
        self, layer: int, sampled: SampledEdges, indices: NDArray[np.int32], nodes: Tensor, degree: Tensor
    ) -> Block:
        """Make the block of sampled in-edges.

        Args:
            layer: Number of the layer.
            sampled: The in-edges of the layer.
            indices: ``[E]``, the row of each edge's source.
            nodes: ``[Vs]``, the sources; the first of them are the destinations.
            degree: ``[Vs]``, degrees of the sources.
        """
        sampler = self._samplers[layer]
        num_dst = len(sampled.indptr) - 1
        edges = Edges(
            indptr=as_tensor(sampled.indptr),
            indices=as_tensor(indices),
            num_src=len(nodes),
            relation=None if sampler.relation is None else self._gather_relations(sampler.relation, sampled),
            weight=None if sampler.weight is None else self._gather_weights(sampler.weight, sampled),
            features=self._gather_features(layer, sampled, as_numpy(nodes)[:num_dst]),
            feature_sizes=sampler.feature_sizes,
        )
        return Block(
            edges=edges,
            src_nodes=nodes,
            # Destinations come first among the sources, so their rows are slices and take no memory.
            dst_nodes=nodes[:num_dst],
            src_degree=degree,
            dst_degree=degree[:num_dst],
            edge_ids=as_tensor(sampled.edges),
            sample_weight=None if sampled.sample_weight is None else as_tensor(sampled.sample_weight),
            relation_degree=None if sampled.relation_degree is None else as_tensor(sampled.relation_degree),
        )

    def _gather_relations(self, relation: Array, sampled: SampledEdges) -> Tensor:
        if sampled.found is None:
            return self._gather_pooled(relation, sampled.edges)
        edges = sampled.found.edges
        out = self._gather_pooled(relation, np.maximum(edges, 0)) if len(relation) else as_tensor(edges.astype("i1"))
        out[as_tensor(edges == ADDED)] = -1
        return out

    def _gather_weights(self, weight: Array, sampled: SampledEdges) -> Tensor:
        if sampled.found is None:
            return self._gather_pooled(weight, sampled.edges)
        # Added self-loops, which the graph does not have, have weight 1.
        edges = sampled.found.edges
        out = self._gather_pooled(weight, np.maximum(edges, 0)) if len(weight) else as_tensor(np.ones_like(edges, "f4"))
        out[as_tensor(edges == ADDED)] = 1
        return out

    def _gather_features(self, layer: int, sampled: SampledEdges, nodes: Ids) -> Tensor | None:
        """Return ``[E, De]``: the features of the sampled in-edges of nodes; None if the layer's graph has none."""
        sampler = self._samplers[layer]
        features = sampler.features
        if features is None:
            return None
        edges = sampler.find_graph_edges(nodes, sampled, self.pool)
        readahead = self._feature_readahead[layer]
        if readahead is not None:
            readahead.read_rows(edges[edges != ADDED])
        # As integers: NumPy has not all types of numbers.
        count = len(edges) * features.shape[1]
        out = as_tensor(self.pool.empty_array(count, f"i{features.itemsize}")).view(features.dtype)
        return gather_sampled_features(features, as_tensor(edges), out.view(len(edges), features.shape[1]))

    def _gather_pooled(self, values: Array, rows: Ids) -> Tensor:
        out = self.pool.empty_array(len(rows), values.dtype)
        gather_values(values, rows, out)
        return as_tensor(out)


def _make_readahead(sampler: EdgeSampler | TemporalEdgeSampler, limit: int | None) -> RowReadahead | None:
    # What temporal draws read of a row, its order by time, is in memory.
    if isinstance(sampler, TemporalEdgeSampler):
        return None
    arrays = [each for each in (sampler.indices, sampler.relation, sampler.weight) if each is not None]
    return make_row_readahead(sampler.indptr, arrays, limit)


def _make_feature_readahead(sampler: EdgeSampler | TemporalEdgeSampler, limit: int | None) -> RowReadahead | None:
    if sampler.features is None:
        return None
    # Every edge is a row of its own.
    return make_row_readahead(None, [as_numpy(sampler.features.view(WORDS[sampler.features.itemsize]))], limit)


def _counts_in_edges(view: GraphView) -> bool:
    """Whether degrees are the numbers of in-edges of the stored graph."""
    return isinstance(view, Topology) and view.weight is None


def invalid_seed_error(node: int, position: int, num_nodes: int) -> InputError:
    """Return the error for a seed that is not a node of the graph, or that is repeated."""
    return InputError(
        "these nodes cannot be the seeds of a batch",
        needed=f"distinct nodes, from 0 to {num_nodes - 1}",
        got=f"{node} at position {position}",
        repair="give every node of the batch once",
    )


def require_times_of(graph: Topology, nodes: Tensor) -> None:
    """Check that a graph has times, and that some of its nodes do.

    Args:
        graph: The graph.
        nodes: ``[n]`` int64.

    Raises:
        InputError: The graph has none, or one of the nodes has none.
    """
    require_times(graph)
    times = torch.full_like(nodes, NO_TIME) if graph.node_time is None else graph.node_time[nodes]
    require_seed_times(as_numpy(nodes), as_numpy(times))


def require_seed_times(seeds: Ids, times: Ids) -> None:
    """Check that nodes have times, so that it is known what was before them.

    Args:
        seeds: ``[n]``.
        times: ``[n]``.

    Raises:
        InputError: One has none.
    """
    missing = np.flatnonzero(times == NO_TIME)
    if len(missing):
        raise InputError(
            "a node without a time cannot be a seed of temporal draws",
            needed="a time of every node that is trained, scored or predicted",
            got=f"{len(missing)} nodes without, such as node {seeds[missing[0]]}",
            repair="leave these nodes out, or give them a time in the column of times",
        )


def _require_views(views: Sequence[GraphView], fanout: Sequence[Fanout]) -> None:
    if not views or len(fanout) != len(views):
        raise InputError(
            "the fan-outs do not fit the model",
            needed=f"{max(1, len(views))} of them, one for each layer",
            got=f"{len(fanout)}: {tuple(fanout)}",
            repair="give one fan-out for each layer, the last layer's first; -1 keeps all in-edges",
        )
    sizes = {view.num_nodes for view in views}
    if len(sizes) > 1 or max(sizes) >= LARGEST:
        raise InputError(
            "these graphs cannot be sampled",
            needed=f"views of one graph, of fewer than {LARGEST} nodes",
            got=f"graphs of {', '.join(map(str, sorted(sizes)))} nodes",
            repair="give the topology, or the topology with self-loops, for each layer",
        )
