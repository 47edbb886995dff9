"""What one worker does in one wave: which rows it holds meanwhile, where they lie, and the edges of its chunk.

A worker holds the rows of a wave in one buffer. A row that the wave before held already keeps its place there, so that
only *arriving* rows cross a link; the gradient of a row adds up in its place until the next wave does without the
row: only those of *leaving* rows cross. Wang et al.: HongTu, SIGMOD 2023, sections 5 and 6.

Letters: ``u`` rows from HOST, ``r`` rows from other workers, ``s`` rows sent to them, ``n`` destinations, ``E`` edges.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.backend import as_numpy
from outgrow.ops.rows.gather import masked_select
from outgrow.ops.subgraph import RowSlices, row_edge_ids
from outgrow.runtime.distributed.async_exchange import SplitSizes

RowListName = Literal["loads", "remote", "sent"]
LOADED, EVICTED = 1, 2
"""Whether a row comes in this wave, and whether it goes after it."""


class RowList(NamedTuple):
    """Rows that a worker holds in a wave, by the worker that owns them (or that wants them), then ascending.

    Attributes:
        counts: How many of each worker.
        row: int64, number of the row among its owner's own rows.
        node: int64, global id.
        slot: int32, place in the buffer.
        event: uint8, of ``LOADED`` and ``EVICTED``.
    """

    counts: tuple[int, ...]
    row: Tensor
    node: Tensor
    slot: Tensor
    event: Tensor

    def of_owner(self, owner: int) -> RowList:
        """Those of one worker."""
        first = sum(self.counts[:owner])
        return RowList((self.counts[owner],), *(part[first : first + self.counts[owner]] for part in self[1:]))

    def filter_event(self, event: int) -> RowList:
        """Those that arrive, or that leave."""
        ends = np.cumsum(self.counts)[:-1]
        counts = tuple(int(np.count_nonzero(part & event)) for part in np.split(as_numpy(self.event), ends))
        return RowList(counts, *masked_select(self.event, event, *self[1:]))


@dataclass(frozen=True, eq=False)
class Wave:
    """One wave of one worker.

    Attributes:
        loads: Rows that the worker brings from HOST, for itself and for those that it shares them with.
        remote: Rows that others bring for it; none where nothing is shared.
        sent: Rows of ``loads`` that others need; their ``row`` and ``node`` mean nothing.
        first: First own row of the chunk.
        last: Last own row of the chunk, plus 1.
        start: ``[n]`` int64, id of the first edge of each destination in the graph or its view.
        edges: In-edges of the chunk, from places in the buffer.
    """

    loads: RowList
    remote: RowList
    sent: RowList
    first: int
    last: int
    start: Tensor
    edges: Edges
    _filtered_rows: dict[tuple[str, int], RowList] = field(default_factory=dict, init=False, repr=False)
    _device_slots: dict[tuple[str, int], Tensor] = field(default_factory=dict, init=False, repr=False)

    def to(self, device: torch.device) -> Wave:
        """The same with its edges on a device, and the places of its rows; itself if they are there."""
        if self.edges.indptr.device == device:
            return self
        moved = replace(self, edges=self.edges.to(device))
        for which in ("loads", "remote", "sent"):
            for turn in (LOADED, EVICTED):
                moved.slots_at(which, turn)
        return moved

    def slots_at(self, which: RowListName, event: int) -> Tensor:
        """``[N]`` int32: those that rows which arrive, or leave, have in the buffer, on the device of the edges."""
        found = self._device_slots.get((which, event))
        if found is None:
            found = self._device_slots[which, event] = self.rows_at(which, event).slot.to(self.edges.indptr.device)
        return found

    def rows_at(self, which: RowListName, event: int) -> RowList:
        """Those of ``loads``, ``remote`` or ``sent`` that arrive, or that leave; looked for once."""
        found = self._filtered_rows.get((which, event))
        if found is None:
            held: RowList = getattr(self, which)
            found = self._filtered_rows[which, event] = held.filter_event(event)
        return found

    def split_sizes_at(self, event: int) -> SplitSizes:
        """How many rows that arrive go to each worker and come from each; the way back of those that leave."""
        route = SplitSizes(self.rows_at("sent", event).counts, self.rows_at("remote", event).counts)
        return route if event == LOADED else route.reverse

    def make_block(self, nodes: Tensor, src_nodes: Tensor, src_degree: Tensor, dst_degree: Tensor) -> Block:
        """The chunk as layers see it, on the device of its edges.

        Args:
            nodes: ``[n]`` int64, ids of the destinations.
            src_nodes: ``[B]`` int64, the node at each place of the buffer.
            src_degree: ``[B]`` float64, its degree.
            dst_degree: ``[n]`` float64.
        """
        device = self.edges.indptr.device
        rows = RowSlices(nodes, self.start, self.edges.indptr)
        ids = None
        if not rows.is_consecutive:
            ids = row_edge_ids(rows._replace(indptr=self.edges.indptr.cpu()))
        return Block(
            edges=self.edges,
            src_nodes=src_nodes.to(device),
            dst_nodes=nodes.to(device),
            src_degree=src_degree.to(device),
            dst_degree=dst_degree.to(device),
            first_edge=rows.first_edge if ids is None else 0,
            edge_ids=None if ids is None else ids.to(device),
        )


class WaveHeader(NamedTuple):
    """How a wave lies in a file: all that is not a tensor, and the place of each tensor.

    Attributes:
        counts: Those of ``loads``, ``remote`` and ``sent``.
        first: See `Wave`.
        last: See `Wave`.
        num_src: Places in the buffer.
        parts: Type, length and first byte of each tensor; None for one that there is not.
        num_bytes: Of all of them.
    """

    counts: tuple[tuple[int, ...], ...]
    first: int
    last: int
    num_src: int
    parts: tuple[tuple[torch.dtype, int, int] | None, ...]
    num_bytes: int


_LINE = 64


def aligned_bytes(num_bytes: int) -> int:
    """What a tensor of so many bytes takes in a file of waves."""
    return -(-num_bytes // _LINE) * _LINE


def pack_wave(wave: Wave) -> tuple[WaveHeader, Tensor]:
    """A wave as bytes ``[B]`` uint8, and how to read them."""
    edges = wave.edges
    parts = list[tuple[torch.dtype, int, int] | None]()
    begin = 0
    held = wave.loads, wave.remote, wave.sent
    of_rows = [part for rows in held for part in rows[1:]]
    tensors: list[Tensor | None] = [*of_rows, wave.start, edges.indptr, edges.indices, edges.relation, edges.weight]
    for each in tensors:
        parts.append(None if each is None else (each.dtype, len(each), begin))
        begin += 0 if each is None else aligned_bytes(each.nbytes)
    out = torch.zeros(begin, dtype=torch.uint8)
    for each, part in zip(tensors, parts, strict=True):
        if each is not None and part is not None and len(each):
            out[part[2] : part[2] + each.nbytes] = each.contiguous().view(torch.uint8)
    return WaveHeader(
        tuple(rows.counts for rows in held), wave.first, wave.last, edges.num_src, tuple(parts), begin
    ), out


def unpack_wave(header: WaveHeader, data: Tensor) -> Wave:
    """The wave that `packed` made bytes of; its tensors share memory with these."""
    tensors = [
        None if part is None else data[part[2] : part[2] + part[1] * part[0].itemsize].view(part[0])
        for part in header.parts
    ]
    loads, remote, sent = (
        RowList(counts, *tensors[4 * i : 4 * i + 4])  # type: ignore[arg-type]
        for i, counts in enumerate(header.counts)
    )
    start, indptr, indices, relation, weight = tensors[12:]
    assert start is not None
    assert indptr is not None
    assert indices is not None
    edges = Edges(indptr=indptr, indices=indices, num_src=header.num_src, relation=relation, weight=weight)
    return Wave(loads, remote, sent, header.first, header.last, start, edges)
