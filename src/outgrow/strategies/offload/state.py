"""What passes over chunks work on: tables in the HOST tier, the courses of the waves, and the threads beside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.engine.layer_plan import Traits, Way
from outgrow.nn.layer import Layer, Rows
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.offload.async_io import Flow
from outgrow.strategies.offload.node_tables import FeatureTable, Table
from outgrow.strategies.offload.row_layouts import Inbox, Lists, Outbox, Pieces
from outgrow.strategies.offload.wave import Held
from outgrow.strategies.offload.wave_buffer import Gradients
from outgrow.strategies.offload.wave_file import Course
from outgrow.strategies.offload.wave_plan import Range


class Host(Protocol):
    """Makes room for rows in the HOST tier."""

    @property
    def mails(self) -> bool:
        """Whether rows lie in the order of waves; else workers read and write those of others where they lie."""

    def table(self, name: str, width: int, kind: Kind) -> Table:
        """For rows that other workers read and write."""

    def pieces(self, name: str, width: int, kind: Kind) -> Pieces | Table:
        """For own rows, chunk by chunk."""

    def inbox(self, name: str, width: int, lists: Lists, *, own: bool) -> Inbox:
        """For rows that waves take, and for the ``own`` ones in order, where chunks read these too."""

    def outbox(self, name: str, width: int, lists: Lists) -> Outbox:
        """For gradients that waves give."""


@dataclass(kw_only=True, eq=False)
class State:
    """What passes work on, on one worker.

    Attributes:
        model: The model.
        traits: Its layers.
        own: ``[n]`` int64, the own nodes.
        pieces: First and last own row (plus 1) of each chunk.
        courses: The waves, for layers without added self-loops and for those with.
        features: Raw features.
        comm: The line to the other workers.
        flow: The threads that read and write.
        timeline: Told when what was done.
        sharing: Whether rows of others come from them.
        sources: Source rows by layer; those of the first are the features where these are passed on as they are.
        inputs: Input by layer, where destinations read it.
        aggregates: Aggregates by layer, where they are kept.
        source_gradients: Gradients of source rows by layer.
        input_gradients: Gradients of the input that destinations read, by layer.
    """

    model: Model
    traits: list[Traits]
    own: Tensor
    pieces: Sequence[Range]
    courses: dict[bool, Course]
    features: FeatureTable | Table
    comm: Comm
    flow: Flow
    timeline: Timeline
    sharing: bool
    sources: dict[int, Table | Inbox | FeatureTable] = field(default_factory=dict)
    inputs: dict[int, Table | Inbox | Pieces] = field(default_factory=dict)
    aggregates: dict[int, Pieces | Table] = field(default_factory=dict)
    source_gradients: dict[int, Table | Outbox] = field(default_factory=dict)
    input_gradients: dict[int, Pieces | Table] = field(default_factory=dict)

    def add_tables(self, host: Host) -> None:
        """Make the tables of all layers."""
        for index, traits in enumerate(self.traits):
            width, inputs, course = traits.source_width, traits.layer.widths.in_features, self.course(traits.layer)
            if traits.from_features:
                self.sources[index] = self.features
            elif host.mails:
                self.sources[index] = host.inbox(f"source-{index}", width, course.arriving, own=traits.shared_input)
            else:
                self.sources[index] = host.table(f"source-{index}", width, Kind.ACTIVATIONS)
            if not traits.reads_features and traits.own_input:
                self.inputs[index] = host.pieces(f"input-{index}", inputs, Kind.ACTIVATIONS)
            elif not traits.reads_features and traits.shared_input:
                self.inputs[index] = cast(Table | Inbox, self.sources[index])
            if traits.way in (Way.CONSTANT, Way.CACHED):
                self.aggregates[index] = host.pieces(f"aggregate-{index}", traits.aggregate_width, Kind.ACTIVATIONS)
            if traits.trains_source:
                name = f"source-gradient-{index}"
                if host.mails:
                    self.source_gradients[index] = host.outbox(name, width, course.leaving)
                else:
                    self.source_gradients[index] = host.table(name, width, Kind.GRADIENTS)
            if traits.trains_input and traits.reads_input:
                self.input_gradients[index] = host.pieces(f"input-gradient-{index}", inputs, Kind.GRADIENTS)

    @property
    def crowded(self) -> bool:
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

    def nodes(self, first: int, last: int) -> Tensor:
        """``[n]`` int64, on the device: the own nodes from ``first`` to ``last - 1``."""
        return self.own[first:last].to(self.device)

    def course(self, layer: Layer) -> Course:
        """The waves as a layer sees them."""
        return self.courses[layer.widths.self_loops]

    def kind_of(self, index: int) -> Kind:
        """What the source rows of a layer are."""
        return Kind.FEATURES if self.sources[index] is self.features else Kind.ACTIVATIONS

    def new_gradients(self, index: int) -> Gradients:
        """Gradients of the source rows of a layer, at their places."""
        traits = self.traits[index]
        places = self.course(traits.layer).places
        return Gradients(places, traits.source_width, self.dtype, self.comm, sharing=self.sharing)

    def store(self, table: Table | Inbox | Pieces, first: int, rows: Tensor) -> None:
        """Write own rows from ``first`` on; they must not change afterwards."""
        if len(rows):
            self.flow.store(lambda: table.write(first, rows))

    def store_sources(self, index: int, first: int, rows: Rows) -> None:
        """Write source rows of a layer."""
        assert rows.columns is not None
        table = self.sources[index]
        assert not isinstance(table, FeatureTable)
        wide = rows.columns.flatten(1)
        self.store(table, first, wide if rows.score is None else torch.cat([wide, rows.score], 1))

    def add_gradients(self, index: int, wave: int, held: Held, values: Tensor) -> None:
        """Add gradients that leave the buffer to those in HOST: worker by worker, where nothing is shared."""
        table, comm = self.source_gradients[index], self.comm
        if isinstance(table, Outbox):
            self.flow.store(lambda: table.write(wave, values))
            return
        if not self.crowded:
            self.flow.store(lambda: table.add(held, values, comm.rank))
            return
        with self.timeline.span("accumulate"):
            self.flow.flush()
            for turn in range(comm.size):
                owner = (comm.rank + turn) % comm.size
                first = sum(held.counts[:owner])
                part = slice(first, first + held.counts[owner])
                table.add(held.of(owner), values[part], owner)
                comm.barrier()

    def begin_gradients(self) -> None:
        """Forget the gradients of the step before, where those of a step are added to what is there."""
        for table in self.source_gradients.values():
            if isinstance(table, Table):
                table.clear()
        if self.crowded:
            self.comm.barrier()

    def finish_layer(self) -> None:
        """Wait until all rows of a layer are written, by all workers where they read those of others."""
        self.flow.flush()
        if self.crowded:
            self.comm.barrier()

    def close(self) -> None:
        """End the threads and close all files."""
        self.flow.close()
        for tables in (self.sources, self.inputs, self.aggregates, self.source_gradients, self.input_gradients):
            for table in tables.values():
                table.close()
        self.features.close()
        for course in self.courses.values():
            course.close()
