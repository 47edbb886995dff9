"""The pipelines of a graph: which of them runs a layer, and their chunks, made when they are first asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from outgrow.core.block import Block
from outgrow.core.timeline import Timeline
from outgrow.engine.layer_plan import has_fixed_weights
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.nn.layer import Layer
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.runtime.system.device import CPU
from outgrow.strategies.tensor.chunk_blocks import make_chunk_blocks
from outgrow.strategies.tensor.chunk_exchange import ChunkExchange
from outgrow.strategies.tensor.chunk_schedule import ChunkGroups, chunk_ends, make_schedules
from outgrow.strategies.tensor.mapped_graph import MappedGraph
from outgrow.strategies.tensor.owned_edges import reads_features_of_all_edges
from outgrow.strategies.tensor.pipelined_aggregation import PipelinedAggregation
from outgrow.strategies.tensor.pipelined_sums import PipelinedSum


class ChunkPipelines:
    """Makes the pipelines of a graph. Final.

    Args:
        shard: Gives the nodes that the worker owns.
        timeline: Records the spans.
        chunks: Number of chunks.
        whole_block: Returns all edges as a layer needs them.
        mapped_graph: Files of edges and slices; None for memory.
        row_device: Device of whole rows; None for the worker's device.
    """

    def __init__(
        self,
        shard: GraphShard,
        timeline: Timeline,
        chunks: int,
        whole_block: Callable[[Layer], Block],
        mapped_graph: MappedGraph | None,
        row_device: torch.device | None,
    ) -> None:
        self.shard = shard
        self.timeline = timeline
        self.chunks = chunks
        self.mapped_graph = mapped_graph
        self.row_device = row_device or shard.comm.device
        self._whole_block = whole_block
        self._sums: dict[bool, PipelinedSum] = {}
        self._aggregations: dict[tuple[bool, bool], PipelinedAggregation] = {}
        self._exchange: ChunkExchange | None = None
        if isinstance(shard, PartitionShard):
            num_nodes = shard.topology.num_nodes
            self._exchange = ChunkExchange(shard.comm, num_nodes, timeline, mapped_graph, row_device)

    @property
    def copies_chunks(self) -> bool:
        """Whether chunks are copied from files to a device that has no memory for all of them."""
        return self.mapped_graph is not None and self.shard.comm.device.type != "cpu"

    def sums_pipelined(self, layers: Sequence[Layer]) -> bool:
        """Whether several workers sum up the rows of layers with a weight of its own for each channel and edge.

        They then need the weights of all edges, which are in memory, or fixed and so in files as well.
        """
        sums = all(isinstance(layer.conv.aggregation, WeightedSum) for layer in layers)
        # Equal shapes mean that no channel of the sources is shared between channels of the sum.
        apart = all(layer.spec.source == layer.spec.aggregate and layer.spec.target == (0, 0) for layer in layers)
        # A schedule of chunks belongs to one set of edges, so all layers must agree on self-loops.
        views = {layer.spec.self_loops for layer in layers}
        held = not self._computes_from_files(layers)
        return self._exchange is not None and sums and apart and len(views) == 1 and held

    def aggregates_chunks(self, layers: Sequence[Layer]) -> bool:
        """Whether layers are aggregated chunk by chunk.

        On several workers, and from files: on CPUs unless weights are fixed.
        """
        if len({(layer.spec.self_loops, reads_features_of_all_edges(layer)) for layer in layers}) > 1:
            return False
        return self._exchange is not None or self._computes_from_files(layers)

    def _computes_from_files(self, layers: Sequence[Layer]) -> bool:
        """Whether edges are in files from which layers compute more than sums with weights in files too."""
        if self.mapped_graph is None:
            return False
        return self.copies_chunks or not all(has_fixed_weights(layer) for layer in layers)

    def sum_for(self, layer: Layer) -> PipelinedSum:
        """Return the pipeline of weighted sums over the edges of a layer."""
        looped = layer.spec.self_loops
        if looped not in self._sums:
            edges = self._whole_block(layer).edges
            if self.mapped_graph is not None:
                self.mapped_graph.store_transpose(edges)
            assert self._exchange is not None
            schedules = make_schedules(edges, self.chunks, self._make_groups())
            self._sums[looped] = PipelinedSum(self._exchange, schedules)
        return self._sums[looped]

    def aggregation_for(self, layer: Layer) -> PipelinedAggregation:
        """Return the pipeline of aggregations over the edges of a layer."""
        kind = layer.spec.self_loops, reads_features_of_all_edges(layer)
        if kind not in self._aggregations:
            whole = self._whole_block(layer)
            ends = chunk_ends(whole.edges.indptr.cpu(), self.chunks)
            groups = None if self._exchange is None else self._make_groups()
            allocate = None if self.mapped_graph is None else self.mapped_graph.allocate
            # The device makes the transpose of a chunk that is copied to it.
            chunks = make_chunk_blocks(whole, ends, groups, allocate, transposes=not self.copies_chunks)
            num_own = len(self.shard.owned_nodes)
            self._aggregations[kind] = PipelinedAggregation(
                chunks, num_own, self.shard.comm, self.row_device, self._exchange, self.timeline, self.mapped_graph
            )
        return self._aggregations[kind]

    def _make_groups(self) -> ChunkGroups:
        shard = self.shard
        assert isinstance(shard, PartitionShard)
        slices_in_files = self.mapped_graph is not None and self.mapped_graph.maps_slices
        slice_device = CPU if slices_in_files else shard.comm.device
        return ChunkGroups(shard.owner, shard.owned_nodes, shard.comm.size, (slice_device, self.row_device))
