"""From a share of a graph to what passes over its chunks work on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import available_bytes
from outgrow.engine.layer_plan import AggregatePolicy, LayerPlan
from outgrow.engine.shard import GraphShard
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops.rows.row_encoding import RowEncoding
from outgrow.runtime.storage.row_file import IoPool, RowFile, open_npy_rows
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage, allocate_pinned_rows, pin_rows
from outgrow.runtime.storage.scratch_dir import free_disk_bytes, validate_free_space
from outgrow.runtime.storage.segment_file import SegmentFile
from outgrow.runtime.storage.shared_memory import map_shared_rows, shared_memory_directory
from outgrow.runtime.system.device import DeviceStreams
from outgrow.strategies.offload.async_io import AsyncIo
from outgrow.strategies.offload.chunking import ChunkPlan, ChunkPlanner
from outgrow.strategies.offload.feature_copies import (
    FeatureCopies,
    are_stored_as_computed,
    feature_row_bytes,
    plan_feature_copies,
    write_feature_copies,
)
from outgrow.strategies.offload.memory_votes import MemoryVotes
from outgrow.strategies.offload.node_tables import FeatureRows, NodeRows
from outgrow.strategies.offload.row_layouts import ChunkRows, WaveChunkIndex, WaveOrderedGradients, WaveOrderedRows
from outgrow.strategies.offload.state import OffloadState, OffloadTask
from outgrow.strategies.offload.table_plan import FEATURES, TableBytes, choose_pinned_tables
from outgrow.strategies.offload.wave_file import WaveFile
from outgrow.strategies.offload.wave_plan import RowRange
from outgrow.strategies.offload.wave_writer import write_wave_file


class OffloadStorage:
    """Where a worker's rows are: in its folder on disk, or in pinned memory beside a GPU; and those of others. Final.

    Args:
        shard: What the worker owns.
        folder: Its folder, which is empty.
        io_pool: The threads that read.
        encoding: How rows are stored; in full where they lie by node.
        sharing: See `TransferOptions`.

    Attributes:
        pinned_tables: Names of the tables that lie in pinned memory, by node; the others lie on the disk.
        direct_io: Whether the system is asked not to keep what is on the disk in memory too.
        feature_copies: The copies of features that are made.
    """

    def __init__(
        self, shard: GraphShard, folder: Path, io_pool: IoPool, encoding: RowEncoding, *, sharing: bool
    ) -> None:
        self._shard = shard
        self._folder = folder
        self._io_pool = io_pool
        self._encoding = encoding
        self._chunk_ranges: Sequence[RowRange] = ()
        self.direct_io = False
        self.pinned_tables = frozenset[str]()
        self._shared_folders: list[Path] | None = None
        self.feature_copies = FeatureCopies()
        self._direct_peer_access = not sharing and shard.comm.size > 1
        self._peers = shard.comm.all_gather_object((folder, len(shard.owned_nodes)))

    def uses_segments(self, name: str) -> bool:
        """Whether rows of a table lie in the order of waves; else each lies by node, where others may reach it too."""
        return not (self._direct_peer_access or name in self.pinned_tables)

    def pin_tables(self, tables: Sequence[TableBytes], max_bytes: int, stack: ExitStack) -> int:
        """Choose which tables lie in pinned memory: beside a GPU, those that gain most, and for every worker the same.

        Args:
            tables: All tables of this worker.
            max_bytes: What it may pin.
            stack: Keeps the memory that workers of this host have in common, if they read one another's tables.

        Returns:
            The bytes of the tables that do not.
        """
        comm = self._shard.comm
        if _reads_pinned_memory(comm.device):
            chosen = comm.all_gather_object(choose_pinned_tables(tables, max_bytes))
            self.pinned_tables = frozenset.intersection(*chosen)
        if self.pinned_tables and self._direct_peer_access:
            self._shared_folders = comm.all_gather_object(stack.enter_context(shared_memory_directory()))
        return sum(table.disk_bytes for table in tables if table.name not in self.pinned_tables)

    def plan_feature_copies(self, planner: ChunkPlanner, chunk_plan: ChunkPlan, task: OffloadTask) -> FeatureCopies:
        """Return the copies of features that pay: those of dense ones in a file, of the type that is computed with."""
        in_file = task.feature_file is not None and are_stored_as_computed(task.model, task.all_features)
        if not in_file or not self.uses_segments(FEATURES):
            return FeatureCopies()
        first = planner.layer_plans[0]
        return plan_feature_copies(
            first,
            chunk_plan.requirements[first.layer.spec.self_loops],
            self._shard.owned_nodes,
            feature_row_bytes(task.all_features),
            self._io_pool.gap_bytes,
            reuse=planner.transfer_options.reuse,
        )

    def reserve_disk(self, needed_bytes: int, memory_bytes: int, copies: FeatureCopies) -> int:
        """Prepare for what will be kept. The system's copies of it in memory help where all of it fits there only.

        Args:
            needed_bytes: What this worker keeps on the disk.
            memory_bytes: What it will still take of the memory itself.
            copies: Of features, which are made where the disk has room for them too.

        Returns:
            What it keeps on the disk with the copies that are made.

        Raises:
            InputError: The disk has too little room for all workers of this host.
        """
        comm = self._shard.comm
        asked = comm.all_gather_object((needed_bytes, memory_bytes, copies.num_bytes))
        here = [each for host, each in zip(comm.hosts, asked, strict=True) if host == comm.hosts[comm.rank]]
        needed, taken, copied = (sum(each) for each in zip(*here, strict=True))
        validate_free_space(self._folder, needed)
        if needed + copied <= free_disk_bytes(self._folder):
            self.feature_copies = copies
            needed += copied
        self.direct_io = needed > available_bytes() - taken
        return needed_bytes + self.feature_copies.num_bytes

    def make_node_rows(self, name: str, width: int, kind: Kind) -> NodeRows:
        """A new table of rows of zeros that other workers read and write. All make theirs together.

        Args:
            name: Of the file.
            width: Numbers in a row.
            kind: What rows are.
        """
        comm = self._shard.comm
        if name in self.pinned_tables:
            return NodeRows(self._allocate_pinned(name, width, self._encoding.dtype), kind, comm)
        rows = dict[int, RowStorage]()
        own = RowFile.create(
            self._io_pool, self._folder / name, len(self._shard.owned_nodes), width, self._encoding.dtype
        )
        comm.barrier()
        for rank, (folder, num_rows) in enumerate(self._peers):
            path = folder / name
            there = rank != comm.rank
            rows[rank] = (
                RowFile.open_existing(self._io_pool, path, num_rows, width, self._encoding.dtype) if there else own
            )
        return NodeRows(rows, kind, comm)

    def _allocate_pinned(self, name: str, width: int, dtype: torch.dtype) -> dict[int, RowStorage]:
        """Return rows in pinned memory: the own ones, and those of others where workers read one another's tables."""
        comm = self._shard.comm
        if self._shared_folders is None:
            return {comm.rank: allocate_pinned_rows(len(self._shard.owned_nodes), width, dtype, comm.device)}
        sizes = [(folder / name, count) for folder, (_, count) in zip(self._shared_folders, self._peers, strict=True)]
        own = map_shared_rows(*sizes[comm.rank], width, dtype)
        comm.barrier()
        mapped = [own if rank == comm.rank else map_shared_rows(*at, width, dtype) for rank, at in enumerate(sizes)]
        return {rank: pin_rows(values, comm.device) for rank, values in enumerate(mapped)}

    def make_chunk_rows(self, name: str, width: int, kind: Kind) -> ChunkRows | NodeRows:
        """Room for own rows, chunk by chunk."""
        pinned = name in self.pinned_tables
        return self.make_node_rows(name, width, kind) if pinned else self._chunk_rows_on_disk(name, width, kind)

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

    def _make_segments(
        self, name: str, counts: NDArray[np.int64], width: int, encoding: RowEncoding | None = None
    ) -> SegmentFile:
        path, chosen = self._folder / name, encoding or self._encoding
        return SegmentFile(self._io_pool, path, counts.reshape(-1), width, chosen, direct=self.direct_io)

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
        if rows is None or FEATURES not in self.pinned_tables:
            return FeatureRows(model, features, rows, own, comm)
        return self._pin_features(FeatureRows(model, features, rows, own, comm).without_ledger())

    def _copy_features(
        self, features: FeatureRows, wave_file: WaveFile
    ) -> tuple[WaveOrderedRows | None, ChunkRows | None]:
        """Make the copies of features that pay."""
        made, width, encoding = self.feature_copies, features.width, RowEncoding(features.dtype)
        index = wave_file.load_index
        sizes = np.array([last - first for first, last in self._chunk_ranges])
        of_chunks = self._make_segments("features-by-chunk", sizes, width, encoding) if made.chunk_bytes else None
        by_wave = None
        if made.wave_bytes:
            by_wave = self._make_segments("features-by-wave", index.counts, width, encoding), index
        return write_feature_copies(features, self._chunk_ranges, by_wave, of_chunks, self._shard.comm)

    def _pin_features(self, feature_rows: FeatureRows) -> NodeRows:
        """A copy of the own rows."""
        comm = self._shard.comm
        rows = self._allocate_pinned(FEATURES, feature_rows.width, feature_rows.dtype)
        pinned = rows[comm.rank]
        for first, last in self._chunk_ranges:
            found = feature_rows.read_range(first, last)
            assert isinstance(found, Tensor)
            pinned.write_range(first, found)
        feature_rows.close()
        comm.barrier()
        return NodeRows(rows, Kind.FEATURES, comm)

    def build_state(
        self, planner: ChunkPlanner, chunk_plan: ChunkPlan, task: OffloadTask, *, num_cached: int, retries: bool
    ) -> OffloadState:
        """What passes work on, with tables of zeros.

        Args:
            planner: What cut the nodes into chunks.
            chunk_plan: How.
            task: What is trained.
            num_cached: How many waves stay in memory once they were read.
            retries: Whether a step is repeated where a device refuses memory.
        """
        share = self._shard
        techniques, layer_plans = planner.transfer_options, list(planner.layer_plans)
        self._chunk_ranges = next(iter(chunk_plan.requirements.values())).chunks
        courses = {
            self_loops: write_wave_file(
                share,
                (self._io_pool, self._folder),
                graph,
                chunk_plan.requirements[self_loops],
                techniques,
                num_cached=num_cached,
                transposes=not task.hides_edges
                and any(each.needs_transpose for each in layer_plans if each.layer.spec.self_loops == self_loops),
            )
            for self_loops, graph in planner.graphs.items()
        }
        first = planner.layer_plans[0]
        features: FeatureRows | NodeRows = self.make_feature_rows(task.model, task.all_features, task.feature_file)
        by_wave = by_chunk = None
        if isinstance(features, FeatureRows):
            by_wave, by_chunk = self._copy_features(features, courses[first.layer.spec.self_loops])
            if by_chunk is not None and (by_wave is not None or not first.source_is_features):
                features.close()
        state = OffloadState(
            model=task.model,
            layer_plans=layer_plans,
            own=share.owned_nodes,
            chunk_ranges=self._chunk_ranges,
            wave_files=courses,
            features=by_chunk or features,
            comm=share.comm,
            async_io=AsyncIo(task.timeline, DeviceStreams(share.comm.device), overlap=techniques.overlap),
            timeline=task.timeline,
            sharing=techniques.sharing,
            votes=MemoryVotes(share.comm, retries=retries),
        )
        if first.source_is_features:
            state.sources[0] = by_wave or features
        for index, plan in enumerate(state.layer_plans):
            self._add_layer_rows(state, index, plan)
        return state

    def _add_layer_rows(self, state: OffloadState, index: int, plan: LayerPlan) -> None:
        """Create the tables of a layer."""
        width = plan.source_width
        inputs = plan.layer.spec.in_features
        wave_file = state.wave_file(plan.layer)
        if not plan.source_is_features:
            state.sources[index] = (
                self.make_wave_rows(f"source-{index}", width, wave_file.load_index, own=plan.shares_input)
                if self.uses_segments(f"source-{index}")
                else self.make_node_rows(f"source-{index}", width, Kind.ACTIVATIONS)
            )
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
            if self.uses_segments(name):
                state.source_gradients[index] = self.make_wave_gradients(name, width, wave_file.evict_index)
            else:
                state.source_gradients[index] = self.make_node_rows(name, width, Kind.GRADIENTS)
        if plan.input_requires_grad and plan.reads_input:
            state.input_gradients[index] = self.make_chunk_rows(f"input-gradient-{index}", inputs, Kind.GRADIENTS)


def _reads_pinned_memory(device: torch.device) -> bool:
    return device.type == "cuda"
