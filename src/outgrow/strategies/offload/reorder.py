"""The order of chunks: HongTu's Algorithm 4 and its cost model.

Every part is cut into the same number of chunks, and a wave is one chunk of each part. The chunk that worker
``i`` runs in wave ``j`` reads the nodes ``N_ij``. Their union over the workers is ``U_j``; worker ``i`` loads
the nodes of ``U_j`` that it owns, ``U_ij``. Wang et al.: HongTu: scalable full-graph GNN training on multiple
GPUs, SIGMOD 2023.

Letters: ``V`` nodes, ``P`` parts, ``n`` chunks of each, ``W`` words of a set of nodes (see
`outgrow.ops.sampling.bitset`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.shard import GraphShard
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.rng import fold_in, permute_range
from outgrow.ops.sampling.bitset import (
    WORD_BITS,
    count_bits,
    count_difference,
    count_intersections,
    num_words,
    ranks_before_words,
    set_bits,
    set_rank_bits,
)

Words = NDArray[np.uint64]
_SAMPLE_KEY = 0x5741564553
_USED = -1


@dataclass(frozen=True, kw_only=True)
class TransferVolumes:
    r"""Rows that the forward pass of one layer moves; for a sample of nodes, only their rows.

    Attributes:
        vanilla: From the host if every chunk loads all its sources: ``sum_ij |N_ij|``.
        shared: From the host if a wave loads a node once: ``sum_j |U_j|``.
        reused: From the host if, in addition, rows of the previous wave stay: ``sum_j |U_j \ U_(j-1)|``.
        peer: Between workers if a wave loads a node once: ``sum_ij |N_ij \ U_ij|``.
        peer_reused: Between workers if, in addition, rows that a worker read in the previous wave stay:
            ``sum_ij |(N_ij \ U_ij) \ N_i(j-1)|``.
        reuse: Rows that stay: ``sum_j |U_j & U_(j-1)|``.
    """

    vanilla: int
    shared: int
    reused: int
    peer: int
    peer_reused: int
    reuse: int


@dataclass(frozen=True, kw_only=True)
class Bandwidths:
    """Bandwidths of a machine, in bytes per second.

    Attributes:
        host: Between host and device.
        device: Between devices.
        reuse: Within a device, for rows that stay there.
    """

    host: float
    device: float
    reuse: float


# Only their ratios matter to the order of chunks. They are fixed, since measured ones would change that order, and with
# it the order of sums, from one machine to the next and from one measurement to the next.
DISK_BANDWIDTHS = Bandwidths(host=4.27e9, device=2.2e9, reuse=62.3e9)
"""Where HOST is a disk and the device is memory: what was measured on two cores (``2-core-cpu`` among the planner's
machines) of rows of scratch files, of rows between processes of one host, and of a copy within memory."""
PINNED_BANDWIDTHS = Bandwidths(host=31.5e9, device=200e9, reuse=2039e9)
"""Where HOST is pinned memory beside a GPU: PCIe 4.0, NVLink 3 and the memory of an A100, on which HongTu was evaluated
(``4xA100`` among the planner's machines)."""


def sample_for_bitsets(num_nodes: int, num_sets: int, most_bytes: int) -> Tensor | None:
    """Sample nodes with a fixed key, so that ``num_sets`` bit sets of them fit into a memory limit.

    Args:
        num_nodes: ``V``.
        num_sets: Number of sets, such as ``P * n``.
        most_bytes: Memory limit for all sets together, at least 8 bytes for each.

    Returns:
        ``[s]`` int64, ascending; None if all nodes fit.

    Raises:
        ValueError: ``most_bytes`` is less than 8 for each set.
    """
    words = most_bytes // (8 * num_sets)
    if words < 1:
        raise ValueError(f"{num_sets:,} sets need at least {8 * num_sets:,} bytes, got {most_bytes:,}")
    if num_nodes <= words * WORD_BITS:
        return None
    sampled = permute_range(0, words * WORD_BITS, num_nodes, fold_in(_SAMPLE_KEY, num_nodes))
    # Ascending, so that the rank of a node in the sample is its bit.
    sampled.sort()
    return as_tensor(sampled)


def node_bitsets(sources: Sequence[Tensor], num_nodes: int, sample: Tensor | None) -> Words:
    """Return ``[n, W]`` bit sets of nodes, such as those that each chunk of one worker reads.

    Args:
        sources: Nodes of each set, ``[m]`` integer on the CPU, in any order; repeats are allowed.
        num_nodes: ``V``.
        sample: The nodes that have a bit, from `sample_for_bitsets`; None for all. A sample temporarily
            takes ``V / 4`` bytes.
    """
    if sample is None:
        bits = np.zeros((len(sources), num_words(num_nodes)), dtype=np.uint64)
        for nodes, set_W in zip(sources, bits, strict=True):
            set_bits(as_numpy(nodes), set_W)
        return bits
    bits = np.zeros((len(sources), num_words(len(sample))), dtype=np.uint64)
    sampled = np.zeros(num_words(num_nodes), dtype=np.uint64)
    set_bits(as_numpy(sample), sampled)
    # Prefix counts give the rank of a node in constant time, without a table of ``V`` ids.
    before = ranks_before_words(sampled)
    for nodes, set_W in zip(sources, bits, strict=True):
        set_rank_bits(as_numpy(nodes), sampled, before, set_W)
    return bits


def reorganize_chunks(bits: Words) -> NDArray[np.int64]:
    """Choose the chunk that each worker runs in each wave, so that chunks and successive waves share nodes.

    Runs the two phases of HongTu's Algorithm 4. In phase 1 the chunks of part 0 start the waves; each further
    part then assigns to each wave its unused chunk with the most nodes in common with the wave. In phase 2
    the waves are
    ordered: wave 0 first, then always the remaining wave with the most nodes in common with the last one.
        Ties go to
    the lowest number. Takes extra memory for the sets of one part, and ``8 n^2`` bytes per thread.

    Args:
        bits: ``[P, n, W]``, the nodes that each chunk reads.

    Returns:
        ``[P, n]``; every row is a permutation.
    """
    num_parts, num_chunks, _ = bits.shape
    order = np.empty((num_parts, num_chunks), dtype=np.int64)
    order[0] = np.arange(num_chunks)
    waves_nW = bits[0].copy()
    for part in range(1, num_parts):
        order[part] = _assign_chunks_greedily(count_intersections(bits[part], waves_nW).T)
        for wave, chunk in enumerate(order[part]):
            # Later parts match the union so far, since a wave loads each node once for all its chunks.
            waves_nW[wave] |= bits[part, chunk]
    return order[:, _order_by_overlap(count_intersections(waves_nW, waves_nW))]


def reorder_waves(bits: Words) -> NDArray[np.int64]:
    """Run phase 2 alone: wave ``j`` is chunk ``j`` of every part, and waves are ordered by overlap.

    If ids follow communities, as in crawls and generated graphs, neighbouring ranges share more nodes than
    the greedy phase 1 finds.

    Args:
        bits: ``[P, n, W]``, the nodes that each chunk reads.

    Returns:
        ``[P, n]``; all rows are the same permutation.
    """
    waves_nW = np.bitwise_or.reduce(bits)
    path = _order_by_overlap(count_intersections(waves_nW, waves_nW))
    return np.tile(path, (len(bits), 1))


def count_transfer_volumes(bits: Words, owner_bits: Words, order: NDArray[np.int64]) -> TransferVolumes:
    """Count the rows that the forward pass of a layer moves.

    Args:
        bits: ``[P, n, W]``, the nodes that each chunk reads.
        owner_bits: ``[P, W]``, the nodes that each part owns.
        order: ``[P, n]``, the chunk that each worker runs in each wave.
    """
    parts = np.arange(len(bits))
    shared = reused = peer = peer_reused = 0
    last_PW = np.zeros_like(owner_bits)
    last_union_W = np.zeros_like(owner_bits[0])
    for chunks in order.T:
        read_PW = bits[parts, chunks]
        union_W = np.bitwise_or.reduce(read_PW)
        # Owners load for all workers, so the host link sees the union of a wave.
        shared += count_bits(union_W)
        reused += count_difference(union_W, last_union_W)
        foreign_PW = read_PW & ~owner_bits
        peer += count_bits(foreign_PW.reshape(-1))
        # Against all reads of the previous wave: a row already on the worker need not be sent.
        peer_reused += count_difference(foreign_PW.reshape(-1), last_PW.reshape(-1))
        last_PW = read_PW
        last_union_W = union_W
    return TransferVolumes(
        vanilla=count_bits(bits.reshape(-1)),
        shared=shared,
        reused=reused,
        peer=peer,
        peer_reused=peer_reused,
        reuse=shared - reused,
    )


def estimate_transfer_seconds(volumes: TransferVolumes, row_bytes: int, bandwidths: Bandwidths) -> float:
    r"""Estimate the seconds that moving the rows of a layer takes, without overlap: HongTu's Equation 4.

    ``sum_j |U_j \ U_(j-1)| / host + sum_ij |(N_ij \ U_ij) \ N_i(j-1)| / device + sum_j |U_j & U_(j-1)| / reuse``, in
    bytes. The paper's second term is ``sum_ij |N_ij| - sum_j |U_j|``, which does not depend on whether a row that
    crosses was there in the wave before, nor on whether the chunk of its owner reads it. Here rows that cross count.
    """
    return row_bytes * (
        volumes.reused / bandwidths.host + volumes.peer_reused / bandwidths.device + volumes.reuse / bandwidths.reuse
    )


def _assign_chunks_greedily(common_nn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[n]``: for each wave in turn, the unused chunk with the most nodes in common."""
    chosen = np.empty(len(common_nn), dtype=np.int64)
    for wave, common_n in enumerate(common_nn):
        chosen[wave] = common_n.argmax()
        # Below any count, also below an overlap of 0, so that no chunk is chosen twice.
        common_nn[:, chosen[wave]] = _USED
    return chosen


def _order_by_overlap(common_nn: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return ``[n]``: all waves from wave 0 on, each followed by the unused one with the most overlap."""
    path = np.zeros(len(common_nn), dtype=np.int64)
    for step in range(1, len(path)):
        # Masks the diagonal too: a wave has all its nodes in common with itself.
        common_nn[:, path[step - 1]] = _USED
        path[step] = common_nn[path[step - 1]].argmax()
    return path


_MOST_BYTES = 64 << 20


class ChunkOrder(NamedTuple):
    """The order of the chunks of all workers.

    Attributes:
        chunks: ``[P, n]`` int64, the chunk that each worker runs in each wave.
        range_volumes: Rows of one layer that the original order of ranges would move.
        chosen_volumes: Rows of one layer that the chosen order moves.
        seconds: Time by the cost model to move rows of one layer, in the original and in the chosen order.
    """

    chunks: NDArray[np.int64]
    range_volumes: TransferVolumes
    chosen_volumes: TransferVolumes
    seconds: tuple[float, float]


def choose_chunk_order(
    shard: GraphShard, sources: Sequence[Tensor], row_bytes: int, bandwidths: Bandwidths, *, reorganise: bool
) -> ChunkOrder:
    """Choose the order of chunks. All workers call this together. Very large graphs count a sample of nodes.

    Args:
        shard: The worker's part of the graph.
        sources: ``[N]`` int64, nodes that each of its chunks reads.
        row_bytes: Size of a row.
        bandwidths: Bandwidths of the machine.
        reorganise: Whether to try orders other than that of the ranges.
    """
    comm = shard.comm
    num_nodes = shard.topology.num_nodes
    sample = sample_for_bitsets(num_nodes, comm.size * len(sources), max(_MOST_BYTES, 8 * comm.size * len(sources)))
    gathered = comm.all_gather_object(
        (node_bitsets(sources, num_nodes, sample), node_bitsets([shard.owned_nodes], num_nodes, sample)[0])
    )
    found: Any = None
    # One worker computes the order for all, so that no rounding can make two orders differ.
    if comm.is_rank_zero:
        bits, owned = (np.stack(parts) for parts in zip(*gathered, strict=True))
        scale = 1.0 if sample is None else num_nodes / len(sample)
        found = cheapest_order(bits, owned, scale, row_bytes, bandwidths, reorganise=reorganise)
    return ChunkOrder(*comm.broadcast(found, Kind.TOPOLOGY))


def cheapest_order(
    bits: NDArray[np.uint64],
    owned: NDArray[np.uint64],
    scale: float,
    row_bytes: int,
    bandwidths: Bandwidths,
    *,
    reorganise: bool,
) -> ChunkOrder:
    """Return the cheapest order of chunks with known sources.

    Args:
        bits: ``[P, n, W]`` nodes that each chunk reads: see the module docstring.
        owned: ``[P, W]`` nodes of each worker.
        scale: Nodes of the graph per node in the sets.
        row_bytes: Size of a row.
        bandwidths: Bandwidths of the machine.
        reorganise: Whether to try orders other than that of the ranges.
    """
    given = np.tile(np.arange(bits.shape[1]), (len(bits), 1))
    # The given order comes first, so that `argmin` keeps it in a tie.
    choices = [given, reorder_waves(bits), reorganize_chunks(bits)] if reorganise and bits.shape[1] > 1 else [given]
    moved = [_scale_volumes(count_transfer_volumes(bits, owned, order), scale) for order in choices]
    costs = [estimate_transfer_seconds(each, row_bytes, bandwidths) for each in moved]
    best = int(np.argmin(costs))
    return ChunkOrder(choices[best], moved[0], moved[best], (costs[0], costs[best]))


def _scale_volumes(counts: TransferVolumes, scale: float) -> TransferVolumes:
    return TransferVolumes(**{name: round(scale * count) for name, count in vars(counts).items()})


def local_order(order: ChunkOrder, shard: GraphShard) -> list[int]:
    """Return the chunks of a worker in wave order."""
    chunks: list[int] = order.chunks[shard.comm.rank].tolist()
    return chunks
