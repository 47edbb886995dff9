"""Which rows each wave loads, sends, keeps; buffer slots.

Chunks are ranges of the own nodes with about equally many edges and nodes. Which rows a wave needs is known once all
workers have said which rows of the others theirs need.
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
from outgrow.graph.partition.balanced_ranges import balanced_range_ends
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.strategies.offload.wave import EVICTED, LOADED, RowList, Wave

Array = NDArray[Any]


def load_evict_events(lists: Sequence[Tensor], *, reuse: bool) -> list[Tensor]:
    """Which nodes of each wave arrive, since the wave before has not got them, and which leave.

    Args:
        lists: ``[n]`` int64 distinct nodes for each wave.
        reuse: Whether waves keep rows; else all arrive and leave in every wave.

    Returns:
        ``[n]`` uint8 of ``LOADED`` and ``EVICTED`` for each wave.
    """
    found = []
    for j, nodes in enumerate(lists):
        turn = torch.full((len(nodes),), LOADED | EVICTED, dtype=torch.uint8)
        if reuse:
            for other, what in ((j - 1, LOADED), (j + 1, EVICTED)):
                if 0 <= other < len(lists):
                    turn[as_tensor(np.isin(as_numpy(nodes), as_numpy(lists[other]), assume_unique=True))] &= 0xFF ^ what
        found.append(turn)
    return found


class SlotAllocator:
    """Gives each row that arrives a place in the buffer. Final.

    Args:
        num_nodes: ``V``.
        loads_ahead: Whether rows from HOST arrive while the wave before is computed: then they take no place
            that it uses.

    Attributes:
        slot_V: ``[V]`` int32, the place of each node that is there; -1 for others.
        num_slots: Places that the buffer must have.
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
        """Places of the rows of the next wave, int32: of those from HOST, and of those from other workers."""
        place = as_numpy(self.slot_V)
        both = np.concatenate((as_numpy(loads), as_numpy(remote)))
        new = np.concatenate((as_numpy(load_events), as_numpy(remote_events))) & LOADED > 0
        gone = np.setdiff1d(self._resident_nodes, both[~new], assume_unique=True)
        left = place[gone]
        early = self._take_slots(int(new[: len(loads)].sum()) if self._loads_ahead else 0)
        self._free_slots = np.sort(np.concatenate((self._free_slots, left)))
        place[gone] = -1
        place[both[new]] = np.concatenate((early, self._take_slots(int(new.sum()) - len(early))))
        self._resident_nodes = both
        return as_tensor(place[both[: len(loads)]]), as_tensor(place[both[len(loads) :]])

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
    """Which of HongTu's techniques are used; without all of them every chunk brings all that it reads.

    Attributes:
        sharing: A row that several workers need in a wave is brought from HOST once, by its owner.
        reuse: Rows that the next wave needs as well stay in place.
        overlap: Rows of the next wave are brought while this one is computed.
    """

    sharing: bool = True
    reuse: bool = True
    overlap: bool = True


class WaveRequirements(NamedTuple):
    """What a worker needs in each wave, in the order of the waves.

    Attributes:
        chunks: First and last own row (plus 1) of each chunk.
        loads: Nodes whose rows it brings from HOST, by owner, then ascending.
        remote: Nodes whose rows others bring for it, by owner, then ascending.
        sent: For each wave and each worker, the nodes whose rows it sends, ascending.
    """

    chunks: list[RowRange]
    loads: list[Tensor]
    remote: list[Tensor]
    sent: list[list[Tensor]]


def cut_chunks(graph: ChunkGraph, own: Tensor, count: int) -> list[RowRange]:
    """``count`` ranges of own rows with about equally much computation (edges and nodes); some are empty if need be."""
    if not len(own):
        return [(0, 0)] * count
    sizes = graph.row_sizes(own) + 1
    before = torch.zeros(len(own) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=before[1:])
    ends = balanced_range_ends(as_numpy(before), min(count, len(own))).tolist()
    ends += [len(own)] * (count + 1 - len(ends))
    return list(pairwise(ends))


def node_owners(shard: GraphShard) -> Tensor:
    """``[V]`` integer: the worker of each node."""
    return shard.owner if isinstance(shard, PartitionShard) else torch.zeros(shard.topology.num_nodes, dtype=torch.int8)


def exchange_requirements(
    shard: GraphShard, chunks: Sequence[RowRange], sources: Sequence[Tensor], *, sharing: bool
) -> WaveRequirements:
    """What a worker needs in each wave. All workers call this together.

    Args:
        shard: What the worker owns.
        chunks: The chunk of each wave.
        sources: ``[N]`` int64, ascending: the nodes that each reads.
        sharing: See `TransferOptions`.
    """
    owner = node_owners(shard)
    comm = shard.comm
    needs = WaveRequirements(list(chunks), [], [], [])
    for nodes in sources:
        whose = owner[nodes]
        if not sharing:
            needs.loads.append(nodes[whose.argsort(stable=True)])
            needs.remote.append(nodes[:0])
            needs.sent.append([nodes[:0]] * comm.size)
            continue
        own = nodes[whose == comm.rank]
        others = (whose != comm.rank).nonzero()[:, 0]
        order = others[whose[others].argsort(stable=True)]
        remote = nodes[order]
        wanted = torch.bincount(whose[order].long(), minlength=comm.size).tolist()
        counts = tuple(given[comm.rank] for given in comm.all_gather_object(wanted))
        sent = list(
            comm.all_to_all(remote, SplitSizes(tuple(wanted), counts), Kind.IDS).wait().split_with_sizes(counts)
        )
        needs.loads.append(unique_sorted(torch.cat([own, *sent])) if any(counts) else own)
        needs.remote.append(remote)
        needs.sent.append(sent)
    return needs


class WaveLayout(NamedTuple):
    """A wave without its edges.

    Attributes:
        loads: See `Wave`.
        remote: See `Wave`.
        sent: See `Wave`.
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
    """Give all rows of all waves their places.

    Args:
        shard: What the worker owns.
        requirements: What it needs.
        transfer_options: Which techniques are used.
        on_layout: Called for each wave with its number, what it holds, and all places at that time.

    Returns:
        Places that the buffer must have.
    """
    owner = node_owners(shard)
    num_nodes = shard.topology.num_nodes
    row_V = _local_rows(owner, shard.comm.size)
    places = SlotAllocator(num_nodes, loads_ahead=transfer_options.overlap)
    load_turn = load_evict_events(requirements.loads, reuse=transfer_options.reuse)
    remote_turn = load_evict_events(requirements.remote, reuse=transfer_options.reuse)
    sent_turn = [
        load_evict_events(list(lists), reuse=transfer_options.reuse) for lists in zip(*requirements.sent, strict=True)
    ]
    for j, (loads, remote) in enumerate(zip(requirements.loads, requirements.remote, strict=True)):
        at_loads, at_remote = places.next_wave(loads, load_turn[j], remote, remote_turn[j])
        sent = torch.cat(requirements.sent[j])
        whose = torch.cat([turns[j] for turns in sent_turn])
        size = shard.comm.size
        draft = WaveLayout(
            RowList(_count_by_owner(owner[loads], size), row_V[loads], loads, at_loads, load_turn[j]),
            RowList(_count_by_owner(owner[remote], size), row_V[remote], remote, at_remote, remote_turn[j]),
            RowList(tuple(len(nodes) for nodes in requirements.sent[j]), row_V[sent], sent, places.slot_V[sent], whose),
        )
        on_layout(j, draft, places)
    return places.num_slots


def build_wave(
    graph: ChunkGraph, own: Tensor, chunk: RowRange, layout: WaveLayout, slot_V: Tensor, num_src: int
) -> Wave:
    """A wave with its edges."""
    edges, start = graph.extract_chunk(own[chunk[0] : chunk[1]], slot_V, num_src)
    return Wave(*layout, *chunk, start, edges)


def _local_rows(owner: Tensor, size: int) -> Tensor:
    """``[V]`` int64: the number of each node among those of its owner."""
    out = torch.empty(len(owner), dtype=torch.int64)
    for worker in range(size):
        mine = (owner == worker).nonzero()[:, 0]
        out[mine] = torch.arange(len(mine))
    return out


def _count_by_owner(whose: Tensor, size: int) -> tuple[int, ...]:
    return tuple(np.bincount(as_numpy(whose), minlength=size).tolist())
