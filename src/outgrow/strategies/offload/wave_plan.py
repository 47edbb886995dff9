"""Rows that each wave loads, sends and keeps, and their buffer slots.

Chunks are ranges of own nodes with similar numbers of edges and nodes. The rows of a wave are known once
workers have exchanged the lists of remote rows that their chunks read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import GraphShard, PartitionShard
from outgrow.graph.chunk_graph import ChunkGraph, unique_sorted
from outgrow.graph.partition.partition import balanced_range_ends
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave

Array = NDArray[Any]


def load_evict_events(lists: Sequence[Tensor], *, reuse: bool) -> list[Tensor]:
    """Return which nodes of each wave are new compared with the previous wave, and which the next one drops.

    Args:
        lists: ``[n]`` int64 distinct nodes for each wave.
        reuse: Whether waves keep rows; otherwise all rows are loaded and evicted in every wave.

    Returns:
        ``[n]`` uint8 of ``LOADED`` and ``EVICTED`` for each wave.
    """
    found = []
    for j, nodes in enumerate(lists):
        events = torch.full((len(nodes),), LOADED | EVICTED, dtype=torch.uint8)
        if reuse:
            for other, event in ((j - 1, LOADED), (j + 1, EVICTED)):
                if 0 <= other < len(lists):
                    # Clear the bit: a node in the neighbouring wave too is not new, or is not dropped.
                    events[as_tensor(np.isin(as_numpy(nodes), as_numpy(lists[other]), assume_unique=True))] &= (
                        0xFF ^ event
                    )
        found.append(events)
    return found


class SlotAllocator:
    """Assigns a buffer slot to each loaded row. Final.

    Args:
        num_nodes: ``V``.
        loads_ahead: Whether rows load from HOST while the previous wave computes; they then get no slot
            that this wave uses.

    Attributes:
        slot_V: ``[V]`` int32, the slot of each resident node; -1 for others.
        num_slots: Number of slots that the buffer needs.
    """

    def __init__(self, num_nodes: int, *, loads_ahead: bool) -> None:
        self.slot_V = torch.full((num_nodes,), -1, dtype=torch.int32)
        self.num_slots = 0
        self._loads_ahead = loads_ahead
        self._free_slots: Array = np.empty(0, dtype=np.int32)
        self._resident_nodes: Array = np.empty(0, dtype=np.int64)

    def next_wave(
        self, loads: Tensor, load_events: Tensor, remote: Tensor, remote_events: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return int32 slots of the next wave's rows: those from HOST, and those from other workers."""
        slot_of_node = as_numpy(self.slot_V)
        both = np.concatenate((as_numpy(loads), as_numpy(remote)))
        new = np.concatenate((as_numpy(load_events), as_numpy(remote_events))) & LOADED > 0
        evicted = np.setdiff1d(self._resident_nodes, both[~new], assume_unique=True)
        freed = slot_of_node[evicted]
        # Take slots for prefetched rows before freeing any: the previous wave still reads the old ones.
        early = self._take_slots(int(new[: len(loads)].sum()) if self._loads_ahead else 0)
        # Sorted, so that low slots are reused first, whatever the order of evictions.
        self._free_slots = np.sort(np.concatenate((self._free_slots, freed)))
        slot_of_node[evicted] = -1
        # Rows from peers arrive between two waves, so they may reuse the freed slots at once.
        slot_of_node[both[new]] = np.concatenate((early, self._take_slots(int(new.sum()) - len(early))))
        self._resident_nodes = both
        return as_tensor(slot_of_node[both[: len(loads)]]), as_tensor(slot_of_node[both[len(loads) :]])

    def _take_slots(self, count: int) -> Array:
        missing = max(0, count - len(self._free_slots))
        fresh = np.arange(self.num_slots, self.num_slots + missing, dtype=np.int32)
        self.num_slots += missing
        taken = self._free_slots[:count]
        self._free_slots = self._free_slots[count:]
        return np.concatenate((taken, fresh))


RowRange = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class TransferOptions:
    """HongTu's transfer techniques; without any of them every chunk loads all rows that it reads.

    Attributes:
        sharing: Load a row that several workers need in a wave once from HOST, on its owner.
        reuse: Keep rows that the next wave also needs in their slots.
        overlap: Load the rows of the next wave during the computation of this one.
    """

    sharing: bool = True
    reuse: bool = True
    overlap: bool = True


class WaveRequirements(NamedTuple):
    """Rows that a worker needs in each wave, in the order of the waves.

    Attributes:
        chunks: First and last own row (plus 1) of each chunk.
        loads: Nodes owners rows it loads from HOST, by owner, then ascending.
        remote: Nodes owners rows other workers load for it, by owner, then ascending.
        sent: For each wave and each worker, the nodes owners rows it sends, ascending.
    """

    chunks: list[RowRange]
    loads: list[Tensor]
    remote: list[Tensor]
    sent: list[list[Tensor]]


def cut_chunks(graph: ChunkGraph, own: Tensor, count: int) -> list[RowRange]:
    """Return ``count`` ranges of own rows with similar work (edges plus nodes); surplus ranges are empty."""
    if not len(own):
        return [(0, 0)] * count
    sizes = graph.row_sizes(own) + 1
    before = torch.zeros(len(own) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=before[1:])
    ends = balanced_range_ends(as_numpy(before), min(count, len(own))).tolist()
    # All workers run the same number of waves, so a small worker pads with empty chunks.
    ends += [len(own)] * (count + 1 - len(ends))
    return list(pairwise(ends))


def node_owners(shard: GraphShard) -> Tensor:
    """Return ``[V]`` integer: the worker of each node."""
    return shard.owner if isinstance(shard, PartitionShard) else torch.zeros(shard.topology.num_nodes, dtype=torch.int8)


def exchange_requirements(
    shard: GraphShard, chunks: Sequence[RowRange], sources: Sequence[Tensor], *, sharing: bool
) -> WaveRequirements:
    """Compute the rows that a worker needs in each wave. All workers call this together.

    Args:
        shard: The worker's part of the graph.
        chunks: The chunk of each wave.
        sources: ``[N]`` int64, ascending: the nodes that each chunk reads.
        sharing: Whether owners load rows for other workers; see `TransferOptions`.
    """
    owner = node_owners(shard)
    comm = shard.comm
    needs = WaveRequirements(list(chunks), [], [], [])
    for nodes in sources:
        owners = owner[nodes]
        if not sharing:
            # Without sharing the worker reads rows of other owners from their files directly.
            needs.loads.append(nodes[owners.argsort(stable=True)])
            needs.remote.append(nodes[:0])
            needs.sent.append([nodes[:0]] * comm.size)
            continue
        own = nodes[owners == comm.rank]
        others = (owners != comm.rank).nonzero()[:, 0]
        # A stable sort keeps nodes of one owner ascending, as `RowList` requires.
        order = others[owners[others].argsort(stable=True)]
        remote = nodes[order]
        wanted = torch.bincount(owners[order].long(), minlength=comm.size).tolist()
        counts = tuple(given[comm.rank] for given in comm.all_gather_object(wanted))
        sent = list(
            comm.all_to_all(remote, SplitSizes(tuple(wanted), counts), Kind.IDS).wait().split_with_sizes(counts)
        )
        # An owner loads the union of its own needs and those of its peers, each row once.
        needs.loads.append(unique_sorted(torch.cat([own, *sent])) if any(counts) else own)
        needs.remote.append(remote)
        needs.sent.append(sent)
    return needs


class WaveLayout(NamedTuple):
    """The row lists of a wave, without its edges.

    Attributes:
        loads: Rows to load from HOST.
        remote: Rows to receive from other workers.
        sent: Rows of ``loads`` to send to other workers.
    """

    loads: RowList
    remote: RowList
    sent: RowList


def assign_slots(
    shard: GraphShard,
    requirements: WaveRequirements,
    transfer_options: TransferOptions,
    on_layout: Callable[[int, WaveLayout, SlotAllocator], None],
) -> int:
    """Assign slots to the rows of all waves.

    Args:
        shard: The worker's part of the graph.
        requirements: The rows that it needs in each wave.
        transfer_options: The enabled techniques.
        on_layout: Called for each wave with its number, its row lists, and the slots at that time.

    Returns:
        Number of slots that the buffer needs.
    """
    owner = node_owners(shard)
    num_nodes = shard.topology.num_nodes
    row_V = _local_rows(owner, shard.comm.size)
    allocator = SlotAllocator(num_nodes, loads_ahead=transfer_options.overlap)
    load_events = load_evict_events(requirements.loads, reuse=transfer_options.reuse)
    remote_events = load_evict_events(requirements.remote, reuse=transfer_options.reuse)
    sent_events = [
        load_evict_events(list(lists), reuse=transfer_options.reuse) for lists in zip(*requirements.sent, strict=True)
    ]
    for j, (loads, remote) in enumerate(zip(requirements.loads, requirements.remote, strict=True)):
        load_slots, remote_slots = allocator.next_wave(loads, load_events[j], remote, remote_events[j])
        sent = torch.cat(requirements.sent[j])
        owners = torch.cat([events[j] for events in sent_events])
        size = shard.comm.size
        layout = WaveLayout(
            RowList(_count_by_owner(owner[loads], size), row_V[loads], loads, load_slots, load_events[j]),
            RowList(_count_by_owner(owner[remote], size), row_V[remote], remote, remote_slots, remote_events[j]),
            RowList(
                tuple(len(nodes) for nodes in requirements.sent[j]), row_V[sent], sent, allocator.slot_V[sent], owners
            ),
        )
        # Hand each wave out at once: its slots change with the next, and all waves together are large.
        on_layout(j, layout, allocator)
    return allocator.num_slots


def build_wave(
    graph: ChunkGraph, own: Tensor, chunk: RowRange, layout: WaveLayout, slot_V: Tensor, num_src: int
) -> Wave:
    """Build a wave with its edges."""
    edges, start = graph.extract_chunk(own[chunk[0] : chunk[1]], slot_V, num_src)
    return Wave(*layout, *chunk, start, edges)


def _local_rows(owner: Tensor, size: int) -> Tensor:
    """Return ``[V]`` int64: the index of each node among the nodes of its owner."""
    out = torch.empty(len(owner), dtype=torch.int64)
    for worker in range(size):
        owned = (owner == worker).nonzero()[:, 0]
        out[owned] = torch.arange(len(owned))
    return out


def _count_by_owner(whose: Tensor, size: int) -> tuple[int, ...]:
    return tuple(np.bincount(as_numpy(whose), minlength=size).tolist())
