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
from outgrow.engine.shard import Part, Share
from outgrow.graph.chunk_graph import ChunkGraph, distinct
from outgrow.graph.partition.balanced_ranges import range_ends
from outgrow.ops.backend import array, tensor
from outgrow.runtime.distributed.async_exchange import Route
from outgrow.strategies.offload.wave import ARRIVES, LEAVES, Held, Wave

Array = NDArray[Any]


def turnover(lists: Sequence[Tensor], *, reuse: bool) -> list[Tensor]:
    """Which nodes of each wave arrive, since the wave before has not got them, and which leave.

    Args:
        lists: ``[n]`` int64 distinct nodes for each wave.
        reuse: Whether waves keep rows; else all arrive and leave in every wave.

    Returns:
        ``[n]`` uint8 of ``ARRIVES`` and ``LEAVES`` for each wave.
    """
    found = []
    for j, nodes in enumerate(lists):
        turn = torch.full((len(nodes),), ARRIVES | LEAVES, dtype=torch.uint8)
        if reuse:
            for other, what in ((j - 1, ARRIVES), (j + 1, LEAVES)):
                if 0 <= other < len(lists):
                    turn[tensor(np.isin(array(nodes), array(lists[other]), assume_unique=True))] &= 0xFF ^ what
        found.append(turn)
    return found


class Places:
    """Gives each row that arrives a place in the buffer. Final.

    Args:
        num_nodes: ``V``.
        ahead: Whether rows from HOST arrive while the wave before is computed: then they take no place that it uses.

    Attributes:
        place_V: ``[V]`` int32, the place of each node that is there; -1 for others.
        size: Places that the buffer must have.
    """

    def __init__(self, num_nodes: int, *, ahead: bool) -> None:
        self.place_V = torch.full((num_nodes,), -1, dtype=torch.int32)
        self.size, self._ahead = 0, ahead
        self._free: Array = np.empty(0, dtype=np.int32)
        self._held: Array = np.empty(0, dtype=np.int64)

    def turn(self, loads: Tensor, load_turn: Tensor, remote: Tensor, remote_turn: Tensor) -> tuple[Tensor, Tensor]:
        """Places of the rows of the next wave, int32: of those from HOST, and of those from other workers."""
        place = array(self.place_V)
        both = np.concatenate((array(loads), array(remote)))
        new = np.concatenate((array(load_turn), array(remote_turn))) & ARRIVES > 0
        gone = np.setdiff1d(self._held, both[~new], assume_unique=True)
        left = place[gone]
        early = self._take(int(new[: len(loads)].sum()) if self._ahead else 0)
        self._free = np.sort(np.concatenate((self._free, left)))
        place[gone] = -1
        place[both[new]] = np.concatenate((early, self._take(int(new.sum()) - len(early))))
        self._held = both
        return tensor(place[both[: len(loads)]]), tensor(place[both[len(loads) :]])

    def _take(self, count: int) -> Array:
        missing = max(0, count - len(self._free))
        fresh = np.arange(self.size, self.size + missing, dtype=np.int32)
        self.size += missing
        taken, self._free = self._free[:count], self._free[count:]
        return np.concatenate((taken, fresh))


Range = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class Techniques:
    """Which of HongTu's techniques are used; without all of them every chunk brings all that it reads.

    Attributes:
        sharing: A row that several workers need in a wave is brought from HOST once, by its owner.
        reuse: Rows that the next wave needs as well stay in place.
        overlap: Rows of the next wave are brought while this one is computed.
    """

    sharing: bool = True
    reuse: bool = True
    overlap: bool = True


class Needs(NamedTuple):
    """What a worker needs in each wave, in the order of the waves.

    Attributes:
        chunks: First and last own row (plus 1) of each chunk.
        loads: Nodes whose rows it brings from HOST, by owner, then ascending.
        remote: Nodes whose rows others bring for it, by owner, then ascending.
        sent: For each wave and each worker, the nodes whose rows it sends, ascending.
    """

    chunks: list[Range]
    loads: list[Tensor]
    remote: list[Tensor]
    sent: list[list[Tensor]]


def chunks_of(graph: ChunkGraph, own: Tensor, count: int) -> list[Range]:
    """``count`` ranges of own rows with about equally much computation (edges and nodes); some are empty if need be."""
    if not len(own):
        return [(0, 0)] * count
    sizes = graph.row_sizes(own) + 1
    before = torch.zeros(len(own) + 1, dtype=torch.int64)
    torch.cumsum(sizes, 0, out=before[1:])
    ends = range_ends(array(before), min(count, len(own))).tolist()
    ends += [len(own)] * (count + 1 - len(ends))
    return list(pairwise(ends))


def owner_of(share: Share) -> Tensor:
    """``[V]`` integer: the worker of each node."""
    return share.owner if isinstance(share, Part) else torch.zeros(share.topology.num_nodes, dtype=torch.int8)


def needs_of(share: Share, chunks: Sequence[Range], sources: Sequence[Tensor], *, sharing: bool) -> Needs:
    """What a worker needs in each wave. All workers call this together.

    Args:
        share: What the worker owns.
        chunks: The chunk of each wave.
        sources: ``[N]`` int64, ascending: the nodes that each reads.
        sharing: See `Techniques`.
    """
    owner, comm = owner_of(share), share.comm
    needs = Needs(list(chunks), [], [], [])
    for nodes in sources:
        whose = owner[nodes]
        if not sharing:
            needs.loads.append(nodes[whose.argsort(stable=True)])
            needs.remote.append(nodes[:0])
            needs.sent.append([nodes[:0]] * comm.size)
            continue
        own, others = nodes[whose == comm.rank], (whose != comm.rank).nonzero()[:, 0]
        order = others[whose[others].argsort(stable=True)]
        remote, wanted = nodes[order], torch.bincount(whose[order].long(), minlength=comm.size).tolist()
        counts = tuple(given[comm.rank] for given in comm.gather(wanted))
        sent = list(comm.rows(remote, Route(tuple(wanted), counts), Kind.IDS).wait().split_with_sizes(counts))
        needs.loads.append(distinct(torch.cat([own, *sent])) if any(counts) else own)
        needs.remote.append(remote)
        needs.sent.append(sent)
    return needs


class Draft(NamedTuple):
    """A wave without its edges.

    Attributes:
        loads: See `Wave`.
        remote: See `Wave`.
        sent: See `Wave`.
    """

    loads: Held
    remote: Held
    sent: Held


def lay_out(share: Share, needs: Needs, techniques: Techniques, take: Callable[[int, Draft, Places], None]) -> int:
    """Give all rows of all waves their places.

    Args:
        share: What the worker owns.
        needs: What it needs.
        techniques: Which techniques are used.
        take: Called for each wave with its number, what it holds, and all places at that time.

    Returns:
        Places that the buffer must have.
    """
    owner, num_nodes = owner_of(share), share.topology.num_nodes
    row_V = _rows_by_owner(owner, share.comm.size)
    places = Places(num_nodes, ahead=techniques.overlap)
    load_turn = turnover(needs.loads, reuse=techniques.reuse)
    remote_turn = turnover(needs.remote, reuse=techniques.reuse)
    sent_turn = [turnover(list(lists), reuse=techniques.reuse) for lists in zip(*needs.sent, strict=True)]
    for j, (loads, remote) in enumerate(zip(needs.loads, needs.remote, strict=True)):
        at_loads, at_remote = places.turn(loads, load_turn[j], remote, remote_turn[j])
        sent = torch.cat(needs.sent[j])
        whose = torch.cat([turns[j] for turns in sent_turn])
        size = share.comm.size
        draft = Draft(
            Held(_counts(owner[loads], size), row_V[loads], loads, at_loads, load_turn[j]),
            Held(_counts(owner[remote], size), row_V[remote], remote, at_remote, remote_turn[j]),
            Held(tuple(len(nodes) for nodes in needs.sent[j]), row_V[sent], sent, places.place_V[sent], whose),
        )
        take(j, draft, places)
    return places.size


def wave_of(graph: ChunkGraph, own: Tensor, chunk: Range, draft: Draft, place_V: Tensor, num_src: int) -> Wave:
    """A wave with its edges."""
    edges, start = graph.take(own[chunk[0] : chunk[1]], place_V, num_src)
    return Wave(*draft, *chunk, start, edges)


def _rows_by_owner(owner: Tensor, size: int) -> Tensor:
    """``[V]`` int64: the number of each node among those of its owner."""
    out = torch.empty(len(owner), dtype=torch.int64)
    for worker in range(size):
        mine = (owner == worker).nonzero()[:, 0]
        out[mine] = torch.arange(len(mine))
    return out


def _counts(whose: Tensor, size: int) -> tuple[int, ...]:
    return tuple(np.bincount(array(whose), minlength=size).tolist())
