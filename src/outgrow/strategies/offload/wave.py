"""Rows and edges of one wave on one worker, and their byte format in a file.

The rows of a wave are in one buffer. A row that the previous wave used keeps its slot, so only *loaded* rows
cross a link. The gradient of a row accumulates in its slot until the next wave no longer uses the row, so
only the gradients of *evicted* rows cross. Wang et al.: HongTu, SIGMOD 2023, sections 5 and 6.

Letters: ``u`` rows from HOST, ``r`` rows from other workers, ``s`` rows sent to them, ``n`` destinations,
``E`` edges.
"""

from __future__ import annotations

from collections.abc import Sequence
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
"""Bits of an event: the row is new in this wave; the next wave does not use it."""


class RowList(NamedTuple):
    """Rows of a worker in one wave, grouped by owner (or by the receiving worker), then ascending.

    Attributes:
        counts: Number of rows of each worker.
        row: int64, index of the row among its owner's rows.
        node: int64, global id.
        slot: int32, position in the buffer.
        event: uint8, bits ``LOADED`` and ``EVICTED``.
    """

    counts: tuple[int, ...]
    row: Tensor
    node: Tensor
    slot: Tensor
    event: Tensor

    def of_owner(self, owner: int) -> RowList:
        """Return the rows of one worker."""
        first = sum(self.counts[:owner])
        return RowList((self.counts[owner],), *(part[first : first + self.counts[owner]] for part in self[1:]))

    def filter_event(self, event: int) -> RowList:
        """Return the rows that have an event."""
        ends = np.cumsum(self.counts)[:-1]
        counts = tuple(int(np.count_nonzero(part & event)) for part in np.split(as_numpy(self.event), ends))
        return RowList(counts, *masked_select(self.event, event, *self[1:]))


@dataclass(frozen=True, eq=False)
class Wave:
    """One wave of one worker.

    Attributes:
        loads: Rows that the worker loads from HOST, for itself and for the workers it shares them with.
        remote: Rows that other workers load for it; empty without sharing.
        sent: Rows of ``loads`` that other workers need; their ``row`` and ``node`` are meaningless.
        first: First own row of the chunk.
        last: Last own row of the chunk, plus 1.
        start: ``[n]`` int64, id of the first edge of each destination in the graph or its view.
        edges: In-edges of the chunk; sources are slots of the buffer.
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
        """Return the wave with edges and slots on a device; the same object if they are there already."""
        if self.edges.indptr.device == device:
            return self
        moved = replace(self, edges=self.edges.to(device))
        for which in ("loads", "remote", "sent"):
            for event in (LOADED, EVICTED):
                # Copy slots now, on the loading thread, so that the compute thread need not wait for them.
                moved.slots_at(which, event)
        return moved

    def slots_at(self, which: RowListName, event: int) -> Tensor:
        """Return ``[N]`` int32 slots of the rows that have an event, on the device of the edges."""
        found = self._device_slots.get((which, event))
        if found is None:
            found = self._device_slots[which, event] = self.rows_at(which, event).slot.to(self.edges.indptr.device)
        return found

    def rows_at(self, which: RowListName, event: int) -> RowList:
        """Return the rows of one list that have an event; cached."""
        found = self._filtered_rows.get((which, event))
        if found is None:
            row_list: RowList = getattr(self, which)
            found = self._filtered_rows[which, event] = row_list.filter_event(event)
        return found

    def split_sizes_at(self, event: int) -> SplitSizes:
        """Return how many loaded rows go to and come from each peer; the reverse for evicted rows."""
        split_sizes = SplitSizes(self.rows_at("sent", event).counts, self.rows_at("remote", event).counts)
        # Gradients flow back along the route on which their rows came.
        return split_sizes if event == LOADED else split_sizes.reverse

    def nodes_at(self, which: Literal["remote", "sent"], event: int) -> Tensor:
        """Return ``[N]`` int64 nodes of the rows exchanged with other workers that have an event."""
        rows = self.rows_at(which, event)
        if which == "remote":
            return rows.node
        # What is sent was loaded: its place tells which row it is.
        node = torch.zeros(self.edges.num_src, dtype=torch.int64)
        node[self.loads.slot.long()] = self.loads.node
        return node[rows.slot.long()]

    def make_block(self, nodes: Tensor, src_nodes: Tensor, src_degree: Tensor, dst_degree: Tensor) -> Block:
        """Return the chunk as a block for layers, on the device of its edges.

        Args:
            nodes: ``[n]`` int64, ids of the destinations.
            src_nodes: ``[B]`` int64, the node in each slot of the buffer.
            src_degree: ``[B]`` float64, the degree of that node.
            dst_degree: ``[n]`` float64.
        """
        device = self.edges.indptr.device
        rows = RowSlices(nodes, self.start, self.edges.indptr)
        ids = None
        # Edge ids key the random draws; consecutive rows need only the first id, not ``E`` of them.
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


_TensorPart = tuple[torch.dtype, int, int]
"""Type, length and first byte of a tensor among bytes."""


class WaveHeader(NamedTuple):
    """Layout of a wave in a file: its scalars, and the position of each tensor.

    Attributes:
        counts: Row counts of ``loads``, ``remote`` and ``sent``.
        first: First own row of the chunk.
        last: Last own row of the chunk, plus 1.
        num_src: Number of slots of the buffer.
        parts: Type, length and first byte of each tensor; None for an absent tensor.
        num_bytes: Total size of the tensors.
        feature_columns: Columns of the features of edges; 0 if they have none.
        feature_sizes: Number of categories of each column of codes.
    """

    counts: tuple[tuple[int, ...], ...]
    first: int
    last: int
    num_src: int
    parts: tuple[_TensorPart | None, ...]
    num_bytes: int
    feature_columns: int = 0
    feature_sizes: tuple[int, ...] = ()


_LINE = 64


def aligned_bytes(num_bytes: int) -> int:
    """Return the size of a tensor in a wave file, padded to a whole number of cache lines."""
    return -(-num_bytes // _LINE) * _LINE


def pack_tensors(tensors: Sequence[Tensor | None]) -> tuple[tuple[_TensorPart | None, ...], Tensor]:
    """Return where each of some tensors lies in memory, and all of them as bytes ``[B]`` uint8.

    A part is type, length and first byte, which is aligned: bytes can be viewed as wider types without copying them.
    """
    parts = list[_TensorPart | None]()
    begin = 0
    for each in tensors:
        parts.append(None if each is None else (each.dtype, len(each), begin))
        begin += 0 if each is None else aligned_bytes(each.nbytes)
    # Zeros, so that padding bytes in the file are the same in every run.
    out = torch.zeros(begin, dtype=torch.uint8)
    for each, part in zip(tensors, parts, strict=True):
        if each is not None and part is not None and len(each):
            out[part[2] : part[2] + each.nbytes] = each.contiguous().view(torch.uint8)
    return tuple(parts), out


def pack_wave(wave: Wave) -> tuple[WaveHeader, Tensor]:
    """Return the header of a wave and its tensors as bytes ``[B]`` uint8."""
    edges = wave.edges
    lists = wave.loads, wave.remote, wave.sent
    of_rows = [part for rows in lists for part in rows[1:]]
    features = None if edges.features is None else edges.features.flatten()
    tensors: list[Tensor | None] = [*of_rows, wave.start, edges.indptr, edges.indices]
    tensors += [edges.relation, edges.weight, features]
    parts, out = pack_tensors(tensors)
    header = WaveHeader(
        tuple(rows.counts for rows in lists),
        wave.first,
        wave.last,
        edges.num_src,
        parts,
        len(out),
        0 if edges.features is None else edges.features.shape[1],
        edges.feature_sizes,
    )
    return header, out


def unpack_wave(header: WaveHeader, data: Tensor) -> Wave:
    """Return the wave that `pack_wave` packed; its tensors share memory with ``data``."""
    tensors = [
        None if part is None else data[part[2] : part[2] + part[1] * part[0].itemsize].view(part[0])
        for part in header.parts
    ]
    loads, remote, sent = (
        RowList(counts, *tensors[4 * i : 4 * i + 4])  # type: ignore[arg-type]
        for i, counts in enumerate(header.counts)
    )
    # Three lists of four tensors come first, in the order of `pack_wave`.
    start, indptr, indices, relation, weight, features = tensors[12:]
    assert start is not None
    assert indptr is not None
    assert indices is not None
    edges = Edges(
        indptr=indptr,
        indices=indices,
        num_src=header.num_src,
        relation=relation,
        weight=weight,
        features=None if features is None else features.view(len(indices), header.feature_columns),
        feature_sizes=header.feature_sizes,
    )
    return Wave(loads, remote, sent, header.first, header.last, start, edges)
