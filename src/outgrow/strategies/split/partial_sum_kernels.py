"""In-edges of a worker's nodes by where their sum is taken: at home, or at the worker that owns the sources.

Letters: ``Vd`` destinations, ``E`` in-edges, ``r`` sources that others own, by worker; ``P`` workers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.backend import as_numpy, as_tensor, serial_kernel

Array = NDArray[Any]
Ids = NDArray[np.int64]


class RemoteEdgeCounts(NamedTuple):
    """How much of a block comes from each worker.

    Attributes:
        edges: ``[P]`` int64, in-edges from its nodes.
        destinations: ``[P]`` int64, destinations that have some.
    """

    edges: Tensor
    destinations: Tensor


class SplitEdges(NamedTuple):
    """The in-edges of a block, dealt out.

    Attributes:
        local: Those from own sources, in order.
        remote: One from each row that comes of others: a source, or the sum over the in-edges of a destination from the
            sources of one worker.
        local_edge_ids: ``[own edges]`` int64, which edge of the block each is.
        remote_edge_ids: ``[far edges]`` int64, the same; -1 for a sum.
        sum_requests: ``[n]`` int32, for the workers that send sums one after the other: how many edges each
            sum has; then, for each of these edges, its source among the nodes that are wanted of that worker.
        sum_request_edge_ids: ``[m]`` int64, which edge of the block each of the latter is.
        remote_row_counts: Rows that come from each worker.
    """

    local: Edges
    remote: Edges
    local_edge_ids: Tensor
    remote_edge_ids: Tensor
    sum_requests: Tensor
    sum_request_edge_ids: Tensor
    remote_row_counts: tuple[int, ...]


def count_remote_edges(edges: Edges, num_own: int, recv_counts: tuple[int, ...]) -> RemoteEdgeCounts:
    """Count in-edges from each worker.

    Args:
        edges: Of the block; sources from ``num_own`` on are those of others.
        num_own: Sources that are the worker's own.
        recv_counts: How many of the others each worker has.
    """
    counts = np.zeros((2, len(recv_counts)), dtype=np.int64)
    _count_edges(as_numpy(edges.indptr), as_numpy(edges.indices), num_own, _peer_of_source(recv_counts), counts)
    return RemoteEdgeCounts(as_tensor(counts[0]), as_tensor(counts[1]))


def split_in_edges(
    edges: Edges,
    num_own: int,
    recv_counts: tuple[int, ...],
    edge_counts: RemoteEdgeCounts,
    sends_sums: tuple[bool, ...],
) -> SplitEdges:
    """Deal the in-edges of a block out.

    Args:
        edges: See `crossing`.
        num_own: See `crossing`.
        recv_counts: See `crossing`.
        edge_counts: What `crossing` found.
        sends_sums: For each worker, whether it sends sums.
    """
    by_peer, is_summed = _peer_of_source(recv_counts), np.array(sends_sums, dtype=np.bool_)
    num_edges, num_sums = as_numpy(edge_counts.edges), as_numpy(edge_counts.destinations)
    rows = np.where(is_summed, num_sums, np.array(recv_counts))
    told_edges, told_sums = np.where(is_summed, num_edges, 0), np.where(is_summed, num_sums, 0)
    num_far = int((num_edges - told_edges + told_sums).sum())
    own_edge, far_edge = (np.empty(count, dtype=np.int64) for count in (edges.num_edges - num_edges.sum(), num_far))
    far_indices = np.empty(num_far, dtype=np.int32)
    ends = np.zeros((2, edges.num_dst + 1), dtype=np.int64)
    told, told_edge = np.empty((told_edges + told_sums).sum(), dtype=np.int32), np.empty(told_edges.sum(), np.int64)
    starts = np.stack(
        [
            _exclusive_cumsum(rows),
            _exclusive_cumsum(np.array(recv_counts)),
            _exclusive_cumsum(told_edges + told_sums),
            _exclusive_cumsum(told_edges),
        ]
    )
    starts = np.vstack([starts, told_sums])
    given = as_numpy(edges.indptr), as_numpy(edges.indices), num_own, by_peer, is_summed, starts
    _split_in_edges_kernel(*given, ends, own_edge, far_indices, far_edge, told, told_edge)
    own = Edges(indptr=as_tensor(ends[0]), indices=edges.indices[as_tensor(own_edge)], num_src=num_own)
    far = Edges(indptr=as_tensor(ends[1]), indices=as_tensor(far_indices), num_src=int(rows.sum()))
    told_by_edge = as_tensor(told), as_tensor(told_edge)
    return SplitEdges(own, far, as_tensor(own_edge), as_tensor(far_edge), *told_by_edge, tuple(rows.tolist()))


def _peer_of_source(recv_counts: tuple[int, ...]) -> Array:
    """``[r]``: the worker of each source that others own."""
    return np.repeat(np.arange(len(recv_counts), dtype=np.int16), recv_counts)


def _exclusive_cumsum(counts: Ids) -> Ids:
    return np.cumsum(counts) - counts


@serial_kernel
def _count_edges(indptr: Ids, indices: Array, num_own: int, by_peer: Array, counts: Array) -> None:
    seen = np.full(counts.shape[1], -1, dtype=np.int64)
    for row in range(len(indptr) - 1):
        for e in range(indptr[row], indptr[row + 1]):
            other = np.int64(indices[e]) - num_own
            if other >= 0:
                peer = by_peer[other]
                counts[0, peer] += 1
                counts[1, peer] += seen[peer] != row
                seen[peer] = row


@serial_kernel
def _split_in_edges_kernel(
    indptr: Ids,
    indices: Array,
    num_own: int,
    by_peer: Array,
    sends_sums: Array,
    starts: Array,
    ends: Array,
    local_edge_ids: Ids,
    remote_indices: Array,
    remote_edge_ids: Ids,
    sum_requests: Array,
    sum_request_edge_ids: Ids,
) -> None:
    """See `dealt`. ``starts``: by worker, its first row, source, number told, edge told; and how many sums it sends."""
    num_peers = len(sends_sums)
    seen = np.full(num_peers, -1, dtype=np.int64)
    sums, edges = np.zeros(num_peers, dtype=np.int64), np.zeros(num_peers, dtype=np.int64)
    num_own_edges = num_far = 0
    for row in range(len(indptr) - 1):
        for e in range(indptr[row], indptr[row + 1]):
            other = np.int64(indices[e]) - num_own
            if other < 0:
                local_edge_ids[num_own_edges] = e
                num_own_edges += 1
                continue
            peer = by_peer[other]
            source = other - starts[1, peer]
            if not sends_sums[peer]:
                remote_indices[num_far] = starts[0, peer] + source
                remote_edge_ids[num_far] = e
                num_far += 1
                continue
            if seen[peer] != row:
                seen[peer] = row
                remote_indices[num_far] = starts[0, peer] + sums[peer]
                remote_edge_ids[num_far] = -1
                num_far += 1
                sum_requests[starts[2, peer] + sums[peer]] = 0
                sums[peer] += 1
            sum_requests[starts[2, peer] + sums[peer] - 1] += 1
            sum_requests[starts[2, peer] + starts[4, peer] + edges[peer]] = source
            sum_request_edge_ids[starts[3, peer] + edges[peer]] = e
            edges[peer] += 1
        ends[0, row + 1], ends[1, row + 1] = num_own_edges, num_far


def pack_partial_sums(
    send_index: Tensor, send_counts: tuple[int, ...], counts: Tensor, sum_requests: Tensor, num_own: int
) -> tuple[Edges, Tensor]:
    """The sums that a worker sends: for each other worker the rows that it wants, or sums over its in-edges.

    Args:
        send_index: ``[a]`` int64 own sources that others want, by worker.
        send_counts: How many each worker wants.
        counts: ``[3, P]`` int64: how many sums each worker wants, 0 for the rows themselves; edges of these; and
            weights that it has told for them.
        sum_requests: What the workers that want sums have told, one after the other: see `SlicedAggregation`.
        num_own: Number of own sources.

    Returns:
        The edges of all rows that are sent, and ``[edges]`` bool: which have a weight that was told, in order.
    """
    sizes, sources, weighed = list[Tensor](), list[Tensor](), list[Tensor]()
    of_peers = torch.split(send_index, list(send_counts)), torch.split(sum_requests, counts[:2].sum(0).tolist())
    for rows, numbers, (num_sums, num_edges, num_weights) in zip(*of_peers, counts.T.tolist(), strict=True):
        sizes.append(numbers[:num_sums].long() if num_sums else torch.ones(len(rows), dtype=torch.int64))
        sources.append(rows[numbers[num_sums:].long()] if num_sums else rows)
        weighed.append(torch.full((num_edges or len(rows),), num_weights > 0))
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), *sizes]).cumsum(0)
    return Edges(indptr=ends, indices=torch.cat(sources), num_src=num_own), torch.cat(weighed)
