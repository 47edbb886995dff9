"""What passes over chunks work on: tables in the HOST tier, the courses of the waves, and the threads beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.nn.layer import Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.async_io import AsyncIo
from outgrow.strategies.offload.node_tables import FeatureRows, NodeRows
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveChunkIndex, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.wave import RowList
from outgrow.strategies.offload.wave_buffer import GradientBuffer
from outgrow.strategies.offload.wave_file import WaveFile
from outgrow.strategies.offload.wave_plan import RowRange


class StorageFactory(Protocol):
    """Makes room for rows in the HOST tier."""

    @property
    def uses_segments(self) -> bool:
        """Whether rows lie in the order of waves; else workers read and write those of others where they lie."""

    def make_node_rows(self, name: str, width: int, kind: Kind) -> NodeRows:
        """For rows that other workers read and write."""

    def make_chunk_rows(self, name: str, width: int, kind: Kind) -> ChunkRows | NodeRows:
        """For own rows, chunk by chunk."""

    def make_wave_rows(self, name: str, width: int, index: WaveChunkIndex, *, own: bool) -> WaveOrderedRows:
        """For rows that waves take, and for the ``own`` ones in order, where chunks read these too."""

    def make_wave_gradients(self, name: str, width: int, index: WaveChunkIndex) -> WaveOrderedGradients:
        """For gradients that waves give."""


@dataclass(kw_only=True, eq=False)
class OffloadState:
    """What passes work on, on one worker.

    Attributes:
        model: The model.
        traits: Its layers.
        own: ``[n]`` int64, the own nodes.
        chunk_ranges: First and last own row (plus 1) of each chunk.
        wave_files: The waves, for layers without added self-loops and for those with.
        features: Raw features.
        comm: The line to the other workers.
        async_io: The threads that read and write.
        timeline: Told when what was done.
        sharing: Whether rows of others come from them.
        sources: Source rows by layer; those of the first are the features where these are passed on as they are.
        inputs: Input by layer, where destinations read it.
        aggregates: Aggregates by layer, where they are kept.
        source_gradients: Gradients of source rows by layer.
        input_gradients: Gradients of the input that destinations read, by layer.
    """

    model: Model
    layer_plans: list[LayerPlan]
    own: Tensor
    chunk_ranges: Sequence[RowRange]
    wave_files: dict[bool, WaveFile]
    features: FeatureRows | NodeRows
    comm: Comm
    async_io: AsyncIo
    timeline: Timeline
    sharing: bool
    sources: dict[int, NodeRows | WaveOrderedRows | FeatureRows] = field(default_factory=dict)
    inputs: dict[int, NodeRows | WaveOrderedRows | ChunkRows] = field(default_factory=dict)
    aggregates: dict[int, ChunkRows | NodeRows] = field(default_factory=dict)
    source_gradients: dict[int, NodeRows | WaveOrderedGradients] = field(default_factory=dict)
    input_gradients: dict[int, ChunkRows | NodeRows] = field(default_factory=dict)

    def add_tables(self, storage: StorageFactory) -> None:
        """Make the tables of all layers."""
        for index, traits in enumerate(self.layer_plans):
            width = traits.source_width
            inputs = traits.layer.spec.in_features
            course = self.wave_file(traits.layer)
            if traits.source_is_features:
                self.sources[index] = self.features
            elif storage.uses_segments:
                self.sources[index] = storage.make_wave_rows(
                    f"source-{index}", width, course.load_index, own=traits.shares_input
                )
            else:
                self.sources[index] = storage.make_node_rows(f"source-{index}", width, Kind.ACTIVATIONS)
            if not traits.reads_features and traits.keeps_input:
                self.inputs[index] = storage.make_chunk_rows(f"input-{index}", inputs, Kind.ACTIVATIONS)
            elif not traits.reads_features and traits.shares_input:
                self.inputs[index] = cast(NodeRows | WaveOrderedRows, self.sources[index])
            if traits.aggregate_policy in (AggregatePolicy.CONSTANT, AggregatePolicy.CACHED):
                self.aggregates[index] = storage.make_chunk_rows(
                    f"aggregate-{index}", traits.aggregate_width, Kind.ACTIVATIONS
                )
            if traits.source_requires_grad:
                name = f"source-gradient-{index}"
                if storage.uses_segments:
                    self.source_gradients[index] = storage.make_wave_gradients(name, width, course.evict_index)
                else:
                    self.source_gradients[index] = storage.make_node_rows(name, width, Kind.GRADIENTS)
            if traits.input_requires_grad and traits.reads_input:
                self.input_gradients[index] = storage.make_chunk_rows(f"input-gradient-{index}", inputs, Kind.GRADIENTS)

    @property
    def direct_peer_access(self) -> bool:
        """Whether workers read and write rows of others where they lie."""
        return not self.sharing and self.comm.size > 1

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return next(self.model.parameters()).dtype

    @property
    def device(self) -> torch.device:
        """Where is computed."""
        return self.comm.device

    def own_nodes(self, first: int, last: int) -> Tensor:
        """``[n]`` int64, on the device: the own nodes from ``first`` to ``last - 1``."""
        return self.own[first:last].to(self.device)

    def wave_file(self, layer: Layer) -> WaveFile:
        """The waves as a layer sees them."""
        return self.wave_files[layer.spec.self_loops]

    def source_kind(self, index: int) -> Kind:
        """What the source rows of a layer are."""
        return Kind.FEATURES if self.sources[index] is self.features else Kind.ACTIVATIONS

    def new_gradient_buffer(self, index: int) -> GradientBuffer:
        """Gradients of the source rows of a layer, at their places."""
        traits = self.layer_plans[index]
        places = self.wave_file(traits.layer).num_slots
        return GradientBuffer(places, traits.source_width, self.dtype, self.comm, sharing=self.sharing)

    def store_rows(self, table: NodeRows | WaveOrderedRows | ChunkRows, first: int, rows: Tensor) -> None:
        """Write own rows from ``first`` on; they must not change afterwards."""
        if len(rows):
            self.async_io.store_async(lambda: table.write_rows(first, rows))

    def store_sources(self, index: int, first: int, rows: NodeMessages) -> None:
        """Write source rows of a layer."""
        assert rows.values is not None
        table = self.sources[index]
        assert not isinstance(table, FeatureRows)
        wide = rows.values.flatten(1)
        self.store_rows(table, first, wide if rows.scores is None else torch.cat([wide, rows.scores], 1))

    def add_gradients(self, index: int, wave: int, row_list: RowList, values: Tensor) -> None:
        """Add gradients that leave the buffer to those in HOST: worker by worker, where nothing is shared."""
        table = self.source_gradients[index]
        comm = self.comm
        if isinstance(table, WaveOrderedGradients):
            self.async_io.store_async(lambda: table.write_wave(wave, values))
            return
        if not self.direct_peer_access:
            self.async_io.store_async(lambda: table.add_rows(row_list, values, comm.rank))
            return
        with self.timeline.span("accumulate"):
            self.async_io.flush_stores()
            for turn in range(comm.size):
                owner = (comm.rank + turn) % comm.size
                first = sum(row_list.counts[:owner])
                part = slice(first, first + row_list.counts[owner])
                table.add_rows(row_list.of_owner(owner), values[part], owner)
                comm.barrier()

    def zero_gradients(self) -> None:
        """Forget the gradients of the step before, where those of a step are added to what is there."""
        for table in self.source_gradients.values():
            if isinstance(table, NodeRows):
                table.clear_rows()
        if self.direct_peer_access:
            self.comm.barrier()

    def finish_layer(self) -> None:
        """Wait until all rows of a layer are written, by all workers where they read those of others."""
        self.async_io.flush_stores()
        if self.direct_peer_access:
            self.comm.barrier()

    def close(self) -> None:
        """End the threads and close all files."""
        self.async_io.close()
        for tables in (self.sources, self.inputs, self.aggregates, self.source_gradients, self.input_gradients):
            for table in tables.values():
                table.close()
        self.features.close()
        for course in self.wave_files.values():
            course.close()
