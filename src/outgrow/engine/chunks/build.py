"""From a share of a graph to what passes over its chunks work on."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from outgrow.core.timeline import Timeline
from outgrow.core.types import Kind
from outgrow.engine.chunks.choice import Chunking, Cutter
from outgrow.engine.chunks.course import Course
from outgrow.engine.chunks.flow import Flow
from outgrow.engine.chunks.places import Places
from outgrow.engine.chunks.plan import Draft, Needs, Techniques, lay_out, wave_of
from outgrow.engine.chunks.state import State
from outgrow.engine.chunks.tables import FeatureTable, Table
from outgrow.engine.chunks.wave import Form, packed
from outgrow.engine.share import Share
from outgrow.graph.chunk import ChunkGraph
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.runtime.disk import Disk, DiskRows, npy_rows
from outgrow.runtime.host_rows import HostRows, MemoryRows

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
    """A worker's folder on disk, where its rows are, and where it finds those of others. Final.

    Args:
        share: What the worker owns.
        folder: Its folder, which is empty.
        disk: The threads that read.
    """

    def __init__(self, share: Share, folder: Path, disk: Disk) -> None:
        self._share, self._folder, self._disk = share, folder, disk
        self._others = share.comm.gather((folder, len(share.own)))

    def table(self, name: str, width: int, kind: Kind, dtype: torch.dtype, *, of_all: bool) -> Table:
        """A new table of rows of zeros. All workers make theirs together.

        Args:
            name: Of the file.
            width: Numbers in a row.
            kind: What rows are.
            dtype: Of the numbers.
            of_all: Whether rows of other workers can be read and written too.
        """
        comm, rows = self._share.comm, list[HostRows]()
        own = DiskRows.create(self._disk, self._folder / name, len(self._share.own), width, dtype)
        if of_all and comm.size > 1:
            comm.barrier()
        for rank, (folder, num_rows) in enumerate(self._others):
            if rank == comm.rank:
                rows.append(own)
            elif of_all:
                rows.append(DiskRows.existing(self._disk, folder / name, num_rows, width, dtype))
            else:
                rows.append(_NOTHING)
        return Table(rows, comm.rank, kind, comm.ledger)

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

        def write(number: int, draft: Draft, places: Places) -> None:
            nonlocal written
            wave = wave_of(graph, share.own, needs.chunks[number], draft, places.place_V, places.size)
            form, given = packed(wave)
            forms.append(form)
            rows.write_range(written, given[:, None])
            written += form.num_bytes

        size = lay_out(share, needs, techniques, write)
        forms = [form._replace(num_src=size) for form in forms]
        return Course(graph, share.own, forms, rows, kept, share.comm.ledger)

    def features(self, model: Model, features: Features, file: Path | None) -> FeatureTable:
        """Raw features in the HOST tier.

        Args:
            model: What will be computed.
            features: ``[V, D]``, as the graph has them.
            file: The .npy file that has them; None if they are in memory only.
        """
        rows: HostRows | None = None
        if isinstance(features, Tensor):
            rows = MemoryRows(features) if file is None else npy_rows(self._disk, file)
        return FeatureTable(model, features, rows, self._share.own, self._share.comm.ledger)

    def state(self, cutter: Cutter, chunking: Chunking, target: Target, *, kept: int) -> State:
        """What passes work on, with tables of zeros.

        Args:
            cutter: What cut the nodes into chunks.
            chunking: How.
            target: What is trained.
            kept: How many waves stay in memory once they were read.
        """
        share, techniques = self._share, cutter.techniques
        dtype, of_all = next(target.model.parameters()).dtype, not techniques.sharing
        courses = {
            self_loops: self.course(graph, chunking.needs[self_loops], techniques, kept=kept)
            for self_loops, graph in cutter.graphs.items()
        }
        state = State(
            model=target.model,
            traits=list(cutter.traits),
            own=share.own,
            pieces=next(iter(chunking.needs.values())).chunks,
            courses=courses,
            features=self.features(target.model, target.features, target.feature_file),
            comm=share.comm,
            flow=Flow(target.timeline, overlap=techniques.overlap),
            timeline=target.timeline,
            sharing=techniques.sharing,
        )
        state.add_tables(lambda name, width, kind: self.table(name, width, kind, dtype, of_all=of_all))
        return state


def _most_bytes(graph: ChunkGraph, own: Tensor, needs: Needs) -> int:
    """More bytes than the waves take in a file, of which only those that are written take room."""
    held = sum(len(nodes) for lists in (needs.loads, needs.remote) for nodes in lists)
    held += sum(len(nodes) for lists in needs.sent for nodes in lists)
    edges, nodes = int(graph.row_sizes(own).sum()), len(own) + len(needs.chunks)
    return held * _HELD_BYTES + edges * _EDGE_BYTES + nodes * _ROW_BYTES + len(needs.chunks) * _WAVE_BYTES


_NOTHING = MemoryRows(torch.empty(0, 0))
