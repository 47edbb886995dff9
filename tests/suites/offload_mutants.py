"""Mutants of `offload`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.objective import NodeObjective
from outgrow.strategies.offload import row_layouts, wave, wave_plan
from outgrow.strategies.offload.async_io import AsyncIo
from outgrow.strategies.offload.passes import OffloadEpoch
from outgrow.strategies.offload.row_layouts import WaveOrderedRows
from outgrow.strategies.offload.state import OffloadState
from outgrow.strategies.offload.wave import LOADED, RowList, Wave
from outgrow.strategies.offload.wave_buffer import GradientBuffer, SourceBuffer
from outgrow.strategies.offload.wave_plan import SlotAllocator
from suites.hits import Hits

T = TypeVar("T")
R = TypeVar("R")


@contextmanager
def gradients_overwritten() -> Iterator[Hits]:
    """The gradient that left at one wave takes the place of what left before."""
    hits = Hits()

    def add_rows(table: Tensor, rows: Tensor, values: Tensor, at: Tensor) -> None:
        hits.note(bool(table[rows].any()))
        table[rows] = values[at]

    with patch.object(row_layouts, "scatter_add_rows", add_rows):
        yield hits


@contextmanager
def gradients_of_the_step_before() -> Iterator[Hits]:
    """Where workers add to rows of others, they add to what the step before has left."""
    hits = Hits()

    def begin_gradients(self: OffloadState) -> None:
        hits.note(not self.sharing and self.comm.size > 1)

    with patch.object(OffloadState, "zero_gradients", begin_gradients):
        yield hits


@contextmanager
def rows_from_host_misplaced() -> Iterator[Hits]:
    """Rows that a wave takes from the HOST tier are one place off."""
    hits, right = Hits(), WaveOrderedRows.read_wave

    def read(self: WaveOrderedRows, held: RowList, at: Tensor, out: Tensor, number: int) -> None:
        hits.note(len(at) > 1)
        right(self, held, at.roll(1), out, number)

    with patch.object(WaveOrderedRows, "read_wave", read):
        yield hits


def degrees_of_the_chunk() -> AbstractContextManager[Hits]:
    """The degree of a source is how often it occurs in the chunk."""

    def changed(block: Block) -> Block:
        return replace(block, src_degree=block.edges.indices.bincount(minlength=block.edges.num_src).double())

    return _other_blocks(changed)


def draws_by_place() -> AbstractContextManager[Hits]:
    """Dropout of a row depends on its place in the chunk, not on its node."""
    return _other_blocks(lambda block: replace(block, dst_nodes=torch.arange(len(block.dst_nodes))))


@contextmanager
def _other_blocks(change: Callable[[Block], Block]) -> Iterator[Hits]:
    hits, right = Hits(), Wave.make_block

    def block(self: Wave, *nodes: Tensor) -> Block:
        found = right(self, *nodes)
        hits.note(found.edges.num_edges > 0)
        return change(found)

    with patch.object(Wave, "make_block", block):
        yield hits


@contextmanager
def edge_numbers_of_the_chunk() -> Iterator[Hits]:
    """Edges are numbered within the chunk, so draws for edges differ."""
    hits, right = Hits(), wave.row_edge_ids

    def ids_of(rows: Any) -> Tensor:
        hits.note(right(rows) is not None)
        return torch.arange(rows.num_edges)

    with patch.object(wave, "row_edge_ids", ids_of):
        yield hits


@contextmanager
def what_stays_begins_anew() -> Iterator[Hits]:
    """The gradient of a row that stays for the next wave is forgotten, as if the row had just come."""
    hits, right = Hits(), GradientBuffer.zero_new_rows

    def begin(self: GradientBuffer, given: Wave) -> None:
        loads = given.loads
        hits.note(not bool((loads.event & LOADED).all()))
        right(self, replace(given, loads=loads._replace(event=loads.event | LOADED)))

    with patch.object(GradientBuffer, "zero_new_rows", begin):
        yield hits


@contextmanager
def gradients_for_others_kept() -> Iterator[Hits]:
    """Gradients of rows that other workers have brought do not go back to them."""
    hits = Hits()

    def push(self: GradientBuffer, given: Wave) -> None:
        hits.note(len(given.remote.slot) > 0)

    with patch.object(GradientBuffer, "send_remote", push):
        yield hits


@contextmanager
def rows_of_others_misplaced() -> Iterator[Hits]:
    """Rows that other workers send are one place off."""
    hits, right = Hits(), SourceBuffer.exchange_rows

    def exchange(self: SourceBuffer, given: Wave) -> None:
        remote = given.remote
        came = (remote.event & LOADED).bool()
        at = remote.slot.clone()
        at[came] = at[came].roll(1)
        hits.note(int(came.sum()) > 1)
        right(self, replace(given, remote=remote._replace(slot=at)))

    with patch.object(SourceBuffer, "exchange_rows", exchange):
        yield hits


@contextmanager
def mean_over_own_nodes() -> Iterator[Hits]:
    """The loss is the mean over the worker's own labelled nodes."""
    hits, right = Hits(), OffloadEpoch.backward

    def backward(self: OffloadEpoch, goal: NodeObjective, key: int) -> Tensor:
        own = len(goal.rows)
        hits.note(own != goal.total)
        return right(self, goal._replace(total=max(1, own)), key)

    with patch.object(OffloadEpoch, "backward", backward):
        yield hits


@contextmanager
def places_in_use_taken() -> Iterator[Hits]:
    """Rows of the next wave take places that the wave under way still reads, and are there before it reads."""
    hits, right = Hits(), SlotAllocator.__init__

    def begin(self: SlotAllocator, num_nodes: int, *, loads_ahead: bool) -> None:
        hits.note(loads_ahead)
        right(self, num_nodes, loads_ahead=False)

    with early_loads(), patch.object(wave_plan.SlotAllocator, "__init__", begin):
        yield hits


@contextmanager
def early_loads() -> Iterator[None]:
    """What the next wave needs is there before a wave is computed: the earliest that overlap allows."""
    right = AsyncIo.load_ahead

    def ahead(self: AsyncIo, load: Callable[[T], R], items: Sequence[T], *, overlap: bool = True) -> Iterator[R]:
        loaded = right(self, load, items, overlap=False)
        if not overlap or self._writer is None:
            yield from loaded
            return
        last: list[R] = []
        for found in loaded:
            yield from last
            last = [found]
        yield from last

    with patch.object(AsyncIo, "load_ahead", ahead):
        yield
