"""From a share of a graph to what passes over its chunks work on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.memory_limits import available_bytes
from outgrow.core.timeline import Timeline
from outgrow.engine.shard import Share
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Alone
from outgrow.runtime.storage.row_file import Disk, DiskRows, npy_rows
from outgrow.runtime.storage.row_storage import HostRows, MemoryRows, pinned_rows
from outgrow.runtime.storage.scratch_dir import require_room
from outgrow.runtime.storage.segment_file import DiskParcels
from outgrow.runtime.system.device import Streams
from outgrow.strategies.offload.async_io import Flow
from outgrow.strategies.offload.chunking import Chunking, Cutter
from outgrow.strategies.offload.node_tables import FeatureTable, Table
from outgrow.strategies.offload.row_layouts import Inbox, Lists, Outbox, Pieces
from outgrow.strategies.offload.state import State
from outgrow.strategies.offload.wave import ARRIVES, LEAVES, Form, packed
from outgrow.strategies.offload.wave_file import Course
from outgrow.strategies.offload.wave_plan import Draft, Needs, Places, Range, Techniques, lay_out, wave_of

_HELD_BYTES, _EDGE_BYTES, _ROW_BYTES, _WAVE_BYTES = 21, 20, 16, 2048


class Target(Protocol):
    """What is trained, as far as chunks depend on it."""

    @property
    def model(self) -> Model:
        """The model."""

    @property
    def features(self) -> Features:
        """``[V, D]``, as the graph has them."""

    @property
    def feature_file(self) -> Path | None:
        """The .npy file of dense features; None if they are in memory only."""

    @property
    def timeline(self) -> Timeline:
        """Told when what was done."""


class Scratch:
    """Where a worker's rows are: in its folder on disk, or in pinned memory beside a GPU; and those of others. Final.

    Args:
        share: What the worker owns.
        folder: Its folder, which is empty.
        disk: The threads that read.
        dtype: Of the numbers in rows.
        sharing: See `Techniques`.

    Attributes:
        pinned: Whether rows lie in pinned memory.
        direct: Whether the system is asked not to keep what is on the disk in memory too.
    """

    def __init__(self, share: Share, folder: Path, disk: Disk, dtype: torch.dtype, *, sharing: bool) -> None:
        self._share, self._folder, self._disk, self._dtype = share, folder, disk, dtype
        self._chunks: Sequence[Range] = ()
        self.direct = self.pinned = False
        self._crowded = not sharing and share.comm.size > 1
        self._others = share.comm.gather((folder, len(share.own)))

    @property
    def mails(self) -> bool:
        """Whether rows lie in the order of waves; else they are read and written where they lie, by others too."""
        return not (self._crowded or self.pinned)

    def pin(self, needed_bytes: int, most_bytes: int) -> bool:
        """Whether rows will lie in pinned memory from now on: beside a GPU, where those of every worker fit.

        Args:
            needed_bytes: What this worker has.
            most_bytes: What it may pin.
        """
        comm = self._share.comm
        if not self._crowded and _reads_pinned_memory(comm.device):
            self.pinned = all(comm.gather(needed_bytes <= most_bytes))
        return self.pinned

    def reserve(self, needed_bytes: int, memory_bytes: int) -> None:
        """Prepare for what will be kept. The system's copies of it in memory help where all of it fits there only.

        Args:
            needed_bytes: What this worker keeps on the disk.
            memory_bytes: What it will still take of the memory itself.

        Raises:
            InputError: The disk has too little room for all workers of this host.
        """
        comm = self._share.comm
        given = zip(comm.hosts, comm.gather((needed_bytes, memory_bytes)), strict=True)
        here = [both for host, both in given if host == comm.hosts[comm.rank]]
        needed, taken = (sum(each) for each in zip(*here, strict=True))
        require_room(self._folder, needed)
        self.direct = needed > available_bytes() - taken

    def table(self, name: str, width: int, kind: Kind) -> Table:
        """A new table of rows of zeros that other workers read and write. All make theirs together.

        Args:
            name: Of the file.
            width: Numbers in a row.
            kind: What rows are.
        """
        comm, rows = self._share.comm, dict[int, HostRows]()
        if self.pinned:
            pinned = pinned_rows(len(self._share.own), width, self._dtype, comm.device)
            return Table({comm.rank: pinned}, kind, comm)
        own = DiskRows.create(self._disk, self._folder / name, len(self._share.own), width, self._dtype)
        comm.barrier()
        for rank, (folder, num_rows) in enumerate(self._others):
            path = folder / name
            there = rank != comm.rank
            rows[rank] = DiskRows.existing(self._disk, path, num_rows, width, self._dtype) if there else own
        return Table(rows, kind, comm)

    def pieces(self, name: str, width: int, kind: Kind) -> Pieces | Table:
        """Room for own rows, chunk by chunk."""
        return self.table(name, width, kind) if self.pinned else self._pieces(name, width, kind)

    def _pieces(self, name: str, width: int, kind: Kind) -> Pieces:
        counts = np.array([last - first for first, last in self._chunks])
        return Pieces(self._parcels(name, counts, width), self._chunks, kind, self._share.comm)

    def inbox(self, name: str, width: int, lists: Lists, *, own: bool) -> Inbox:
        """A new inbox for rows that waves take, and for the ``own`` ones in order, where chunks read these too."""
        in_order = self._pieces(f"{name}-in-order", width, Kind.ACTIVATIONS) if own else None
        return Inbox(self._parcels(name, lists.counts, width), lists, in_order, self._share.comm)

    def outbox(self, name: str, width: int, lists: Lists) -> Outbox:
        """A new outbox for gradients that waves give."""
        return Outbox(self._parcels(name, lists.counts, width), lists, self._share.comm)

    def _parcels(self, name: str, counts: NDArray[np.int64], width: int) -> DiskParcels:
        path = self._folder / name
        return DiskParcels(self._disk, path, counts.reshape(-1), width, self._dtype, direct=self.direct)

    def course(self, graph: ChunkGraph, needs: Needs, techniques: Techniques, *, kept: int) -> Course:
        """Write the waves to a file.

        Args:
            graph: The view of the graph.
            needs: What the worker needs in each wave.
            techniques: Which techniques are used.
            kept: How many waves stay in memory once they were read.
        """
        share, forms, written = self._share, list[Form](), 0
        path = self._folder / f"waves-{int(graph.self_loops)}"
        rows = DiskRows.create(self._disk, path, _most_bytes(graph, share.own, needs), 1, torch.uint8)
        arriving, leaving = list[Tensor](), list[Tensor]()

        def write(number: int, draft: Draft, places: Places) -> None:
            nonlocal written
            arriving.append(draft.loads.only(ARRIVES).row)
            leaving.append(draft.loads.only(LEAVES).row)
            wave = wave_of(graph, share.own, needs.chunks[number], draft, places.place_V, places.size)
            form, given = packed(wave)
            forms.append(form)
            rows.write_range(written, given[:, None])
            written += form.num_bytes

        size = lay_out(share, needs, techniques, write)
        forms = [form._replace(num_src=size) for form in forms]
        lists = Lists.of(arriving, needs.chunks), Lists.of(leaving, needs.chunks)
        return Course(graph, share.own, forms, rows, kept, share.comm, lists)

    def features(self, model: Model, features: Features, file: Path | None) -> FeatureTable | Table:
        """Raw features in the HOST tier.

        Args:
            model: What will be computed.
            features: ``[V, D]``, as the graph has them.
            file: The .npy file that has them; None if they are in memory only.
        """
        rows: HostRows | None = None
        if isinstance(features, Tensor):
            rows = MemoryRows(features) if file is None else npy_rows(self._disk, file)
        own, comm = self._share.own, self._share.comm
        if rows is None or not self.pinned:
            return FeatureTable(model, features, rows, own, comm)
        return self._pinned_features(FeatureTable(model, features, rows, own, Alone()))

    def _pinned_features(self, there: FeatureTable) -> Table:
        """A copy of the own rows."""
        comm = self._share.comm
        pinned = pinned_rows(len(self._share.own), there.width, there.dtype, comm.device)
        for first, last in self._chunks:
            found = there.piece(first, last)
            assert isinstance(found, Tensor)
            pinned.write_range(first, found)
        there.close()
        return Table({comm.rank: pinned}, Kind.FEATURES, comm)

    def state(self, cutter: Cutter, chunking: Chunking, target: Target, *, kept: int) -> State:
        """What passes work on, with tables of zeros.

        Args:
            cutter: What cut the nodes into chunks.
            chunking: How.
            target: What is trained.
            kept: How many waves stay in memory once they were read.
        """
        share, techniques = self._share, cutter.techniques
        self._chunks = next(iter(chunking.needs.values())).chunks
        courses = {
            self_loops: self.course(graph, chunking.needs[self_loops], techniques, kept=kept)
            for self_loops, graph in cutter.graphs.items()
        }
        state = State(
            model=target.model,
            traits=list(cutter.traits),
            own=share.own,
            pieces=self._chunks,
            courses=courses,
            features=self.features(target.model, target.features, target.feature_file),
            comm=share.comm,
            flow=Flow(target.timeline, Streams(share.comm.device), overlap=techniques.overlap),
            timeline=target.timeline,
            sharing=techniques.sharing,
        )
        state.add_tables(self)
        return state


def _reads_pinned_memory(device: torch.device) -> bool:
    return device.type == "cuda"


def _most_bytes(graph: ChunkGraph, own: Tensor, needs: Needs) -> int:
    """More bytes than the waves take in a file, of which only those that are written take room."""
    held = sum(len(nodes) for lists in (needs.loads, needs.remote) for nodes in lists)
    held += sum(len(nodes) for lists in needs.sent for nodes in lists)
    edges, nodes = int(graph.row_sizes(own).sum()), len(own) + len(needs.chunks)
    return held * _HELD_BYTES + edges * _EDGE_BYTES + nodes * _ROW_BYTES + len(needs.chunks) * _WAVE_BYTES
