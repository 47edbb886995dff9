"""State of an offloaded training run: tables in the HOST tier, wave files and I/O threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.hidden_edges import HiddenEdges
from outgrow.engine.layer_plan import LayerPlan
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.async_io import AsyncIo
from outgrow.strategies.offload.memory_votes import MemoryVotes
from outgrow.strategies.offload.node_tables import FeatureRows, NodeRows
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.wave import RowList
from outgrow.strategies.offload.wave_buffer import GradientBuffer
from outgrow.strategies.offload.wave_file import WaveFile
from outgrow.strategies.offload.wave_plan import RowRange


class OffloadTask(Protocol):
    """What is trained, as far as chunks depend on it."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def all_features(self) -> Features:
        """``[V, D]``, as the graph has them."""

    @property
    def feature_file(self) -> Path | None:
        """The .npy file of dense features; None if they are in memory only."""

    @property
    def hides_edges(self) -> bool:
        """Whether layers see other edges in each step."""

    @property
    def timeline(self) -> Timeline:
        """Told when what was done."""


@dataclass(kw_only=True, eq=False)
class OffloadState:
    """State of the passes on one worker.

    Attributes:
        model: The model.
        layer_plans: Plans of its layers.
        own: ``[n]`` int64, the own nodes.
        chunk_ranges: First and last own row (plus 1) of each chunk.
        wave_files: The waves, by whether the view has added self-loops.
        features: Raw features, as chunks read those of their own nodes.
        comm: Communicator.
        async_io: Threads that read and write.
        timeline: Records the spans of the passes.
        sharing: Whether owners load and send rows for other workers.
        votes: By which workers agree that a device has refused memory, before they wait for one another.
        sources: Source rows by layer; for the first layer the features, or a copy of them in the order of the
            waves, if it passes them on unchanged.
        inputs: Input by layer, if destinations read it.
        aggregates: Aggregates by layer, if they are cached.
        source_gradients: Gradients of source rows by layer.
        input_gradients: Gradients of the input that destinations read, by layer.
    """

    model: Model
    layer_plans: list[LayerPlan]
    own: Tensor
    chunk_ranges: Sequence[RowRange]
    wave_files: dict[bool, WaveFile]
    features: FeatureRows | NodeRows | ChunkRows
    comm: Comm
    async_io: AsyncIo
    timeline: Timeline
    sharing: bool
    votes: MemoryVotes
    sources: dict[int, NodeRows | WaveOrderedRows | FeatureRows] = field(default_factory=dict)
    inputs: dict[int, NodeRows | WaveOrderedRows | ChunkRows] = field(default_factory=dict)
    aggregates: dict[int, ChunkRows | NodeRows] = field(default_factory=dict)
    source_gradients: dict[int, NodeRows | WaveOrderedGradients] = field(default_factory=dict)
    input_gradients: dict[int, ChunkRows | NodeRows] = field(default_factory=dict)

    @property
    def direct_peer_access(self) -> bool:
        """Whether workers read and write each other's tables directly."""
        return not self.sharing and self.comm.size > 1

    @property
    def dtype(self) -> torch.dtype:
        """Type of the parameters."""
        return self.model.dtype

    @property
    def device(self) -> torch.device:
        """Device of the computation."""
        return self.comm.device

    def own_nodes(self, first: int, last: int) -> Tensor:
        """Return ``[n]`` int64 own nodes from ``first`` to ``last - 1``, on the device."""
        return self.own[first:last].to(self.device)

    def wave_file(self, layer: Layer) -> WaveFile:
        """Return the waves in the view that a layer needs."""
        return self.wave_files[layer.spec.self_loops]

    def source_kind(self, index: int) -> Kind:
        """Return the ledger category of a layer's source rows."""
        return Kind.FEATURES if self.layer_plans[index].source_is_features else Kind.ACTIVATIONS

    def new_gradient_buffer(self, index: int) -> GradientBuffer:
        """Create a device buffer for the gradients of a layer's source rows."""
        plan = self.layer_plans[index]
        places = self.wave_file(plan.layer).num_slots
        widths = plan.layer.row_widths()
        return GradientBuffer(places, plan.source_width, self.dtype, self.comm, self.sharing, widths, self.votes)

    def store_rows(self, table: NodeRows | WaveOrderedRows | ChunkRows, first: int, rows: Tensor) -> None:
        """Write own rows from ``first`` on, asynchronously; ``rows`` must not change afterwards."""
        # Padding chunks are empty and have no segment to write.
        if len(rows):
            self.async_io.store_async(lambda: table.write_rows(first, rows))

    def store_sources(self, index: int, first: int, rows: NodeMessages) -> None:
        """Write source rows of a layer, asynchronously."""
        assert rows.values is not None
        table = self.sources[index]
        assert not isinstance(table, FeatureRows)
        # Values and attention scores share a row, so that one read brings both.
        wide = rows.values.flatten(1)
        self.store_rows(table, first, wide if rows.scores is None else torch.cat([wide, rows.scores], 1))

    def add_gradients(self, index: int, wave: int, row_list: RowList, values: Tensor) -> None:
        """Add evicted gradients to those in HOST; without sharing, one owner at a time."""
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
            self.votes.check()
            for step in range(comm.size):
                # Rotate owners: in each step every file has one writer, so no addition is lost.
                owner = (comm.rank + step) % comm.size
                first = sum(row_list.counts[:owner])
                part = slice(first, first + row_list.counts[owner])
                table.add_rows(row_list.of_owner(owner), values[part], owner)
                # The barrier also fixes the order of writers of a row, and with it the sum.
                comm.barrier()

    def zero_gradients(self) -> None:
        """Zero the gradient tables that accumulate in place."""
        for table in self.source_gradients.values():
            # Tables in wave order are overwritten as a whole and need no zeros.
            if isinstance(table, NodeRows):
                table.clear_rows()
        if self.direct_peer_access:
            self.comm.barrier()

    def finish_layer(self) -> None:
        """Wait until all rows of a layer are written, on all workers if they access each other's tables."""
        self.async_io.flush_stores()
        # No peer may add to rows that their owner is still zeroing.
        if self.direct_peer_access:
            self.votes.check()
            self.comm.barrier()

    @contextmanager
    def hide_edges(self, hidden: HiddenEdges | None) -> Iterator[None]:
        """Context of a step in which layers do not see some edges. All workers together."""
        for wave_file in self.wave_files.values() if hidden is not None else ():
            assert hidden is not None
            wave_file.hide_edges(hidden, self.comm)
        try:
            yield
        finally:
            for wave_file in self.wave_files.values():
                wave_file.show_edges()

    def close(self) -> None:
        """Stop the threads and close all files."""
        # Threads first: they may still write to the files.
        self.async_io.close()
        for tables in (self.sources, self.inputs, self.aggregates, self.source_gradients, self.input_gradients):
            for table in tables.values():
                table.close()
        self.features.close()
        for wave_file in self.wave_files.values():
            wave_file.close()
