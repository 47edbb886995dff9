"""From a share of a graph to what passes over its chunks work on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import available_bytes
from outgrow.core.timeline import Timeline
from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.engine.shard import GraphShard
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.storage.row_file import IoPool, RowFile, open_npy_rows
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage, allocate_pinned_rows
from outgrow.runtime.storage.scratch_dir import validate_free_space
from outgrow.runtime.storage.segment_file import SegmentFile
from outgrow.runtime.system.device import DeviceStreams
from outgrow.strategies.offload.async_io import AsyncIo
from outgrow.strategies.offload.chunking import ChunkPlan, ChunkPlanner
from outgrow.strategies.offload.node_tables import FeatureRows, NodeRows
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveChunkIndex, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.state import OffloadState
from outgrow.strategies.offload.wave import EVICTED, LOADED, WaveHeader, pack_wave
from outgrow.strategies.offload.wave_file import WaveFile
from outgrow.strategies.offload.wave_plan import (
    RowRange,
    SlotAllocator,
    TransferOptions,
    WaveLayout,
    WaveRequirements,
    assign_slots,
    build_wave,
)

_HELD_BYTES, _EDGE_BYTES, _ROW_BYTES, _WAVE_BYTES = 21, 20, 16, 2048


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
    def timeline(self) -> Timeline:
        """Told when what was done."""


class OffloadStorage:
    """Where a worker's rows are: in its folder on disk, or in pinned memory beside a GPU; and those of others. Final.

    Args:
        shard: What the worker owns.
        folder: Its folder, which is empty.
        io_pool: The threads that read.
        dtype: Of the numbers in rows.
        sharing: See `TransferOptions`.

    Attributes:
        is_pinned: Whether rows lie in pinned memory.
        direct_io: Whether the system is asked not to keep what is on the disk in memory too.
    """

    def __init__(self, shard: GraphShard, folder: Path, io_pool: IoPool, dtype: torch.dtype, *, sharing: bool) -> None:
        self._shard = shard
        self._folder = folder
        self._io_pool = io_pool
        self._dtype = dtype
        self._chunk_ranges: Sequence[RowRange] = ()
        self.direct_io = self.is_pinned = False
        self._direct_peer_access = not sharing and shard.comm.size > 1
        self._peers = shard.comm.all_gather_object((folder, len(shard.owned_nodes)))

    @property
    def uses_segments(self) -> bool:
        """Whether rows lie in the order of waves; else they are read and written where they lie, by others too."""
        return not (self._direct_peer_access or self.is_pinned)

    def try_pin(self, needed_bytes: int, max_bytes: int) -> bool:
        """Whether rows will lie in pinned memory from now on: beside a GPU, where those of every worker fit.

        Args:
            needed_bytes: What this worker has.
            max_bytes: What it may pin.
        """
        comm = self._shard.comm
        if not self._direct_peer_access and _reads_pinned_memory(comm.device):
            self.is_pinned = all(comm.all_gather_object(needed_bytes <= max_bytes))
        return self.is_pinned

    def reserve_disk(self, needed_bytes: int, memory_bytes: int) -> None:
        """Prepare for what will be kept. The system's copies of it in memory help where all of it fits there only.

        Args:
            needed_bytes: What this worker keeps on the disk.
            memory_bytes: What it will still take of the memory itself.

        Raises:
            InputError: The disk has too little room for all workers of this host.
        """
        comm = self._shard.comm
        given = zip(comm.hosts, comm.all_gather_object((needed_bytes, memory_bytes)), strict=True)
        here = [both for host, both in given if host == comm.hosts[comm.rank]]
        needed, taken = (sum(each) for each in zip(*here, strict=True))
        validate_free_space(self._folder, needed)
        self.direct_io = needed > available_bytes() - taken

    def make_node_rows(self, name: str, width: int, kind: Kind) -> NodeRows:
        """A new table of rows of zeros that other workers read and write. All make theirs together.

        Args:
            name: Of the file.
            width: Numbers in a row.
            kind: What rows are.
        """
        comm = self._shard.comm
        rows = dict[int, RowStorage]()
        if self.is_pinned:
            pinned = allocate_pinned_rows(len(self._shard.owned_nodes), width, self._dtype, comm.device)
            return NodeRows({comm.rank: pinned}, kind, comm)
        own = RowFile.create(self._io_pool, self._folder / name, len(self._shard.owned_nodes), width, self._dtype)
        comm.barrier()
        for rank, (folder, num_rows) in enumerate(self._peers):
            path = folder / name
            there = rank != comm.rank
            rows[rank] = RowFile.open_existing(self._io_pool, path, num_rows, width, self._dtype) if there else own
        return NodeRows(rows, kind, comm)

    def make_chunk_rows(self, name: str, width: int, kind: Kind) -> ChunkRows | NodeRows:
        """Room for own rows, chunk by chunk."""
        return self.make_node_rows(name, width, kind) if self.is_pinned else self._chunk_rows_on_disk(name, width, kind)

    def _chunk_rows_on_disk(self, name: str, width: int, kind: Kind) -> ChunkRows:
        counts = np.array([last - first for first, last in self._chunk_ranges])
        return ChunkRows(self._make_segments(name, counts, width), self._chunk_ranges, kind, self._shard.comm)

    def make_wave_rows(self, name: str, width: int, index: WaveChunkIndex, *, own: bool) -> WaveOrderedRows:
        """A new inbox for rows that waves take, and for the ``own`` ones in order, where chunks read these too."""
        in_order = self._chunk_rows_on_disk(f"{name}-in-order", width, Kind.ACTIVATIONS) if own else None
        return WaveOrderedRows(self._make_segments(name, index.counts, width), index, in_order, self._shard.comm)

    def make_wave_gradients(self, name: str, width: int, index: WaveChunkIndex) -> WaveOrderedGradients:
        """A new outbox for gradients that waves give."""
        return WaveOrderedGradients(self._make_segments(name, index.counts, width), index, self._shard.comm)

    def _make_segments(self, name: str, counts: NDArray[np.int64], width: int) -> SegmentFile:
        path = self._folder / name
        return SegmentFile(self._io_pool, path, counts.reshape(-1), width, self._dtype, direct=self.direct_io)

    def write_wave_file(
        self, graph: ChunkGraph, requirements: WaveRequirements, transfer_options: TransferOptions, *, num_cached: int
    ) -> WaveFile:
        """Write the waves to a file.

        Args:
            graph: The view of the graph.
            requirements: What the worker needs in each wave.
            transfer_options: Which techniques are used.
            num_cached: How many waves stay in memory once they were read.
        """
        share = self._shard
        forms = list[WaveHeader]()
        written = 0
        path = self._folder / f"waves-{int(graph.self_loops)}"
        rows = RowFile.create(
            self._io_pool, path, _max_file_bytes(graph, share.owned_nodes, requirements), 1, torch.uint8
        )
        arriving = list[Tensor]()
        leaving = list[Tensor]()

        def write_wave(number: int, layout: WaveLayout, allocator: SlotAllocator) -> None:
            nonlocal written
            arriving.append(layout.loads.filter_event(LOADED).row)
            leaving.append(layout.loads.filter_event(EVICTED).row)
            wave = build_wave(
                graph, share.owned_nodes, requirements.chunks[number], layout, allocator.slot_V, allocator.num_slots
            )
            form, given = pack_wave(wave)
            forms.append(form)
            rows.write_range(written, given[:, None])
            written += form.num_bytes

        size = assign_slots(share, requirements, transfer_options, write_wave)
        forms = [form._replace(num_src=size) for form in forms]
        lists = (
            WaveChunkIndex.from_waves(arriving, requirements.chunks),
            WaveChunkIndex.from_waves(leaving, requirements.chunks),
        )
        return WaveFile(graph, share.owned_nodes, forms, rows, num_cached, share.comm, lists)

    def make_feature_rows(self, model: Model, features: Features, file: Path | None) -> FeatureRows | NodeRows:
        """Raw features in the HOST tier.

        Args:
            model: What will be computed.
            features: ``[V, D]``, as the graph has them.
            file: The .npy file that has them; None if they are in memory only.
        """
        rows: RowStorage | None = None
        if isinstance(features, Tensor):
            rows = InMemoryRows(features) if file is None else open_npy_rows(self._io_pool, file)
        own = self._shard.owned_nodes
        comm = self._shard.comm
        if rows is None or not self.is_pinned:
            return FeatureRows(model, features, rows, own, comm)
        return self._pin_features(FeatureRows(model, features, rows, own, SingleProcessComm()))

    def _pin_features(self, feature_rows: FeatureRows) -> NodeRows:
        """A copy of the own rows."""
        comm = self._shard.comm
        pinned = allocate_pinned_rows(len(self._shard.owned_nodes), feature_rows.width, feature_rows.dtype, comm.device)
        for first, last in self._chunk_ranges:
            found = feature_rows.read_range(first, last)
            assert isinstance(found, Tensor)
            pinned.write_range(first, found)
        feature_rows.close()
        return NodeRows({comm.rank: pinned}, Kind.FEATURES, comm)

    def build_state(
        self, planner: ChunkPlanner, chunk_plan: ChunkPlan, task: OffloadTask, *, num_cached: int
    ) -> OffloadState:
        """What passes work on, with tables of zeros.

        Args:
            planner: What cut the nodes into chunks.
            chunk_plan: How.
            task: What is trained.
            num_cached: How many waves stay in memory once they were read.
        """
        share = self._shard
        techniques = planner.transfer_options
        self._chunk_ranges = next(iter(chunk_plan.requirements.values())).chunks
        courses = {
            self_loops: self.write_wave_file(
                graph, chunk_plan.requirements[self_loops], techniques, num_cached=num_cached
            )
            for self_loops, graph in planner.graphs.items()
        }
        state = OffloadState(
            model=task.model,
            layer_plans=list(planner.layer_plans),
            own=share.owned_nodes,
            chunk_ranges=self._chunk_ranges,
            wave_files=courses,
            features=self.make_feature_rows(task.model, task.all_features, task.feature_file),
            comm=share.comm,
            async_io=AsyncIo(task.timeline, DeviceStreams(share.comm.device), overlap=techniques.overlap),
            timeline=task.timeline,
            sharing=techniques.sharing,
        )
        for index, plan in enumerate(state.layer_plans):
            self._add_layer_rows(state, index, plan)
        return state

    def _add_layer_rows(self, state: OffloadState, index: int, plan: LayerPlan) -> None:
        """Create the tables of a layer."""
        width = plan.source_width
        inputs = plan.layer.spec.in_features
        wave_file = state.wave_file(plan.layer)
        if plan.source_is_features:
            # Read the features in place: they are constant and stored by node already.
            state.sources[index] = state.features
        elif self.uses_segments:
            state.sources[index] = self.make_wave_rows(
                f"source-{index}", width, wave_file.load_index, own=plan.shares_input
            )
        else:
            state.sources[index] = self.make_node_rows(f"source-{index}", width, Kind.ACTIVATIONS)
        if not plan.reads_features and plan.keeps_input:
            state.inputs[index] = self.make_chunk_rows(f"input-{index}", inputs, Kind.ACTIVATIONS)
        elif not plan.reads_features and plan.shares_input:
            # Source rows and input are the same values here, so one table serves both.
            state.inputs[index] = cast(NodeRows | WaveOrderedRows, state.sources[index])
        if plan.aggregate_policy in (AggregatePolicy.CONSTANT, AggregatePolicy.CACHED):
            state.aggregates[index] = self.make_chunk_rows(f"aggregate-{index}", plan.aggregate_width, Kind.ACTIVATIONS)
        # The features of the first layer need no gradient, so it may have no table.
        if plan.source_requires_grad:
            name = f"source-gradient-{index}"
            if self.uses_segments:
                state.source_gradients[index] = self.make_wave_gradients(name, width, wave_file.evict_index)
            else:
                state.source_gradients[index] = self.make_node_rows(name, width, Kind.GRADIENTS)
        if plan.input_requires_grad and plan.reads_input:
            state.input_gradients[index] = self.make_chunk_rows(f"input-gradient-{index}", inputs, Kind.GRADIENTS)


def _reads_pinned_memory(device: torch.device) -> bool:
    return device.type == "cuda"


def _max_file_bytes(graph: ChunkGraph, own: Tensor, requirements: WaveRequirements) -> int:
    """More bytes than the waves take in a file, of which only those that are written take room."""
    held = sum(len(nodes) for lists in (requirements.loads, requirements.remote) for nodes in lists)
    held += sum(len(nodes) for lists in requirements.sent for nodes in lists)
    edges = int(graph.row_sizes(own).sum())
    nodes = len(own) + len(requirements.chunks)
    return (
        held * _HELD_BYTES
        + edges * (_EDGE_BYTES + graph.edge_row_bytes)
        + nodes * _ROW_BYTES
        + len(requirements.chunks) * _WAVE_BYTES
    )
