"""In-edges of a worker's nodes, divided by the worker that sums them: itself, or the owner of the sources.

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
    """Edges and destinations of a block that read sources of each worker.

    Attributes:
        edges: ``[P]`` int64, in-edges from the worker's nodes.
        destinations: ``[P]`` int64, destinations with at least one such edge.
    """

    edges: Tensor
    destinations: Tensor


class SplitEdges(NamedTuple):
    """The in-edges of a block, split into local and remote ones.

    Attributes:
        local: Those from own sources, in the block's order.
        remote: Edges from received rows: a source, or the partial sum of a destination over one worker's
            sources.
        local_edge_ids: ``[local edges]`` int64, number of each edge in the block.
        remote_edge_ids: ``[remote edges]`` int64, likewise; -1 for a partial sum.
        sum_requests: ``[n]`` int32, for each worker that sends sums: the number of edges of each sum; then,
            for each of these edges, its source among the nodes wanted from that worker.
        sum_request_edge_ids: ``[m]`` int64, numbers in the block of the edges in these requests.
        remote_row_counts: Rows received from each worker.
    """

    local: Edges
    remote: Edges
    local_edge_ids: Tensor
    remote_edge_ids: Tensor
    sum_requests: Tensor
    sum_request_edge_ids: Tensor
    remote_row_counts: tuple[int, ...]


def count_remote_edges(edges: Edges, num_own: int, recv_counts: tuple[int, ...]) -> RemoteEdgeCounts:
    """Count the in-edges from each worker's nodes, and their destinations.

    Args:
        edges: Edges of the block; sources from ``num_own`` on belong to others.
        num_own: Number of own sources.
        recv_counts: Number of sources of each other worker.
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
    """Split the in-edges of a block into local and remote ones, with the requests for partial sums.

    Args:
        edges: See `count_remote_edges`.
        num_own: See `count_remote_edges`.
        recv_counts: See `count_remote_edges`.
        edge_counts: Result of `count_remote_edges`.
        sends_sums: Whether each worker sends partial sums.
    """
    by_peer = _peer_of_source(recv_counts)
    is_summed = np.array(sends_sums, dtype=np.bool_)
    num_edges = as_numpy(edge_counts.edges)
    num_sums = as_numpy(edge_counts.destinations)
    rows = np.where(is_summed, num_sums, np.array(recv_counts))
    summed_edges = np.where(is_summed, num_edges, 0)
    requested_sums = np.where(is_summed, num_sums, 0)
    # A remote edge for each source that comes as it is, and one for each partial sum in place of its edges.
    num_far = int((num_edges - summed_edges + requested_sums).sum())
    own_edge, far_edge = (np.empty(count, dtype=np.int64) for count in (edges.num_edges - num_edges.sum(), num_far))
    far_indices = np.empty(num_far, dtype=np.int32)
    ends = np.zeros((2, edges.num_dst + 1), dtype=np.int64)
    request_numbers = np.empty((summed_edges + requested_sums).sum(), dtype=np.int32)
    request_edge_ids = np.empty(summed_edges.sum(), np.int64)
    starts = np.stack(
        [
            _exclusive_cumsum(rows),
            _exclusive_cumsum(np.array(recv_counts)),
            _exclusive_cumsum(summed_edges + requested_sums),
            _exclusive_cumsum(summed_edges),
        ]
    )
    # One array, since a compiled loop takes few parameters.
    starts = np.vstack([starts, requested_sums])
    given = as_numpy(edges.indptr), as_numpy(edges.indices), num_own, by_peer, is_summed, starts
    _split_in_edges_kernel(*given, ends, own_edge, far_indices, far_edge, request_numbers, request_edge_ids)
    own = Edges(indptr=as_tensor(ends[0]), indices=edges.indices[as_tensor(own_edge)], num_src=num_own)
    far = Edges(indptr=as_tensor(ends[1]), indices=as_tensor(far_indices), num_src=int(rows.sum()))
    requests = as_tensor(request_numbers), as_tensor(request_edge_ids)
    return SplitEdges(own, far, as_tensor(own_edge), as_tensor(far_edge), *requests, tuple(rows.tolist()))


def _peer_of_source(recv_counts: tuple[int, ...]) -> Array:
    """Return the worker of each source that others own, ``[r]``."""
    return np.repeat(np.arange(len(recv_counts), dtype=np.int16), recv_counts)


def _exclusive_cumsum(counts: Ids) -> Ids:
    return np.cumsum(counts) - counts


@serial_kernel
def _count_edges(indptr: Ids, indices: Array, num_own: int, by_peer: Array, counts: Array) -> None:
    # Rows ascend, so the last row of each worker tells whether this one is counted already.
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
    """Fill the arrays of `split_in_edges`.

    Rows of ``starts``, for each worker: first received row, first source, first number and first edge of its
    requests, and how many sums it sends.
    """
    num_peers = len(sends_sums)
    seen = np.full(num_peers, -1, dtype=np.int64)
    sums = np.zeros(num_peers, dtype=np.int64)
    edges = np.zeros(num_peers, dtype=np.int64)
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
            # The first edge from this worker opens a sum of the row; further ones only extend the request.
            if seen[peer] != row:
                seen[peer] = row
                remote_indices[num_far] = starts[0, peer] + sums[peer]
                remote_edge_ids[num_far] = -1
                num_far += 1
                sum_requests[starts[2, peer] + sums[peer]] = 0
                sums[peer] += 1
            sum_requests[starts[2, peer] + sums[peer] - 1] += 1
            # Sources follow the sizes of all sums of the worker, so the receiver reads two plain lists.
            sum_requests[starts[2, peer] + starts[4, peer] + edges[peer]] = source
            sum_request_edge_ids[starts[3, peer] + edges[peer]] = e
            edges[peer] += 1
        ends[0, row + 1] = num_own_edges
        ends[1, row + 1] = num_far


def pack_partial_sums(
    send_index: Tensor, send_counts: tuple[int, ...], counts: Tensor, sum_requests: Tensor, num_own: int
) -> tuple[Edges, Tensor]:
    """Return the edges of the rows that a worker sends: partial sums, or own rows as they are.

    Args:
        send_index: ``[a]`` int64, own sources that others want, by worker.
        send_counts: Number of sources that each worker wants.
        counts: ``[3, P]`` int64: number of sums that each worker wants, 0 for the rows themselves; number of
            their edges; and number of weights that it sent for them.
        sum_requests: Requests of the workers that want sums, one after the other: see `SplitEdges`.
        num_own: Number of own sources.

    Returns:
        The edges of all rows that are sent, and ``[edges]`` bool: which of them have a weight that was sent.
    """
    sizes = list[Tensor]()
    sources = list[Tensor]()
    weighed = list[Tensor]()
    of_peers = torch.split(send_index, list(send_counts)), torch.split(sum_requests, counts[:2].sum(0).tolist())
    for rows, numbers, (num_sums, num_edges, num_weights) in zip(*of_peers, counts.T.tolist(), strict=True):
        # A row that is sent as it is counts as a sum over one edge, so one kernel packs both.
        sizes.append(numbers[:num_sums].long() if num_sums else torch.ones(len(rows), dtype=torch.int64))
        sources.append(rows[numbers[num_sums:].long()] if num_sums else rows)
        weighed.append(torch.full((num_edges or len(rows),), num_weights > 0))
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), *sizes]).cumsum(0)
    return Edges(indptr=ends, indices=torch.cat(sources), num_src=num_own), torch.cat(weighed)
