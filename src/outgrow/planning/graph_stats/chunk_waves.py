"""Waves of chunks and the rows they move, counted before a run, in one process for all workers."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.strategies.offload.memory import WaveSizes
from outgrow.strategies.offload.reorder import Bandwidths, Words, cheapest_order, count_transfer_volumes, node_bitsets
from outgrow.strategies.offload.wave import aligned_bytes
from outgrow.strategies.offload.wave_plan import TransferOptions, cut_chunks
from outgrow.strategies.offload.wave_transposes import transpose_file_bytes

Matrix = NDArray[np.int64]
# The four tensors of a `RowList` in `outgrow.strategies.offload.wave`, which are written one after the other.
_HELD = (8, 8, 4, 1)
"""Bytes of each entry that describes a row in a wave."""


class ChunkingSpec(NamedTuple):
    """How `offload` cuts a graph.

    Attributes:
        partition: Name of the method that partitions nodes among workers.
        chunks: Chunks of each worker.
        reorganise: Whether to search for a better order of the chunks.
        row_bytes: Bytes of a source row, averaged over layers.
        bandwidths: Bandwidths of the machine.
    """

    partition: str
    chunks: int
    reorganise: bool
    row_bytes: int
    bandwidths: Bandwidths


class WaveStats(NamedTuple):
    """Rows that a layer moves in one direction, and the sizes of its waves.

    Attributes:
        loaded_rows: Rows loaded from HOST by all workers; as many gradients go back.
        sent_rows: ``[P, P]`` int64, rows from the second worker to the first; as many gradients go back.
        requested_ids: ``[P, P]`` int64, ids of the rows that the second worker requests from the first.
        file_bytes: ``[P, n]`` int64, bytes of each wave in the scratch file.
        transpose_bytes: ``[P, n]`` int64, bytes of the out-edges of the sources of each wave, in a file of their own.
        max_sizes: Upper bounds of the sizes of any worker's waves.
        typed_rows: ``[T, P, P]`` int64, the sent rows by the type of their nodes; None if types are not told apart.
    """

    loaded_rows: int
    sent_rows: Matrix
    requested_ids: Matrix
    file_bytes: Matrix
    transpose_bytes: Matrix
    max_sizes: WaveSizes
    typed_rows: Matrix | None = None


class ChunkWaveCounter:
    """Chunks of all workers, in the cheapest order. Final.

    Args:
        topology: The graph.
        views: Views that layers use, with or without added self-loops; the first decides the chunks.
        owned_nodes: ``[n]`` int64, the nodes of each worker.
        chunking: How to cut.
        borders: ``[T + 1]``: the first node of each type, and ``V``; empty not to tell types apart.

    Attributes:
        order: The order of the chunks.
    """

    def __init__(
        self,
        topology: Topology,
        views: tuple[bool, ...],
        owned_nodes: list[Tensor],
        chunking: ChunkingSpec,
        borders: tuple[int, ...] = (),
    ) -> None:
        self._topology = topology
        self._owned_nodes = owned_nodes
        self._num_nodes = topology.num_nodes
        self._graphs = {view: ChunkGraph(topology, self_loops=view) for view in views}
        first = self._graphs[views[0]]
        self._chunk_ranges = [cut_chunks(first, nodes, chunking.chunks) for nodes in owned_nodes]
        self._source_bits = {view: self._read_source_bits(graph) for view, graph in self._graphs.items()}
        self._owned_bits = self._node_bitsets(owned_nodes)
        self._type_bits = [self._node_bitsets([torch.arange(*ends)]) for ends in pairwise(borders)]
        bits = self._source_bits[views[0]]
        # A scale of 1: the sets hold all nodes, not a sample as in a run on a large graph.
        self.order = cheapest_order(
            bits, self._owned_bits, 1.0, chunking.row_bytes, chunking.bandwidths, reorganise=chunking.reorganise
        )

    def _node_bitsets(self, sets: list[Tensor]) -> Words:
        return node_bitsets(sets, self._num_nodes, None)

    def _read_source_bits(self, graph: ChunkGraph) -> Words:
        """Return ``[P, n, W]``: the nodes that each chunk reads."""
        return np.stack(
            [
                self._node_bitsets([graph.source_ids(nodes[low:high]) for low, high in ranges])
                for nodes, ranges in zip(self._owned_nodes, self._chunk_ranges, strict=True)
            ]
        )

    def wave_stats(self, view: bool, techniques: TransferOptions) -> WaveStats:
        r"""Return the rows that a layer moves.

        With sharing ``sum_j |U_j \ U_(j-1)|`` rows from HOST and ``sum_ij |(N_ij \ U_ij) \ N_i(j-1)|`` between workers;
        else ``sum_ij |N_ij \ N_i(j-1)|`` from HOST. Without reuse, no rows of the previous wave are subtracted.

        Args:
            view: The view: whether it adds self-loops.
            techniques: Techniques in use.
        """
        bits = self._source_bits[view]
        chunks = self.order.chunks
        parts = range(len(bits))
        sent, told = (np.zeros((len(bits), len(bits)), dtype=np.int64) for _ in range(2))
        typed = np.zeros((len(self._type_bits), *sent.shape), dtype=np.int64)
        # Without sharing each worker loads all its sources itself, as if it were alone.
        if not techniques.sharing:
            alone = [
                count_transfer_volumes(bits[i : i + 1], self._owned_bits[i : i + 1], chunks[i : i + 1]) for i in parts
            ]
            loaded = sum(each.reused if techniques.reuse else each.shared for each in alone)
            return WaveStats(loaded, sent, told, *self._wave_files(view, techniques))
        for i in parts:
            before = np.zeros_like(self._owned_bits[0])
            for chunk in chunks[i]:
                foreign = bits[i, chunk] & self._owned_bits
                # All foreign rows are requested; those that the wave before left in place are not sent again.
                told[:, i] += _count_nodes(foreign)
                sent[i] += _count_nodes(foreign & ~before)
                for kind, nodes in enumerate(self._type_bits):
                    typed[kind, i] += _count_nodes(foreign & ~before & nodes)
                before = bits[i, chunk] if techniques.reuse else before
        for each in (sent, told, *typed):
            np.fill_diagonal(each, 0)
        moved = count_transfer_volumes(bits, self._owned_bits, chunks)
        loaded = moved.reused if techniques.reuse else moved.shared
        return WaveStats(loaded, sent, told, *self._wave_files(view, techniques), typed if len(typed) else None)

    def _wave_files(self, view: bool, techniques: TransferOptions) -> tuple[Matrix, Matrix, WaveSizes]:
        """Return the bytes of each wave and of its out-edges in their files, and the largest sizes."""
        graph = self._graphs[view]
        bits = self._source_bits[view]
        found, transposed = (np.zeros(self.order.chunks.shape, dtype=np.int64) for _ in range(2))
        most, moved = Counter[str](), np.zeros(len(bits), dtype=np.int64)
        for wave, chunks in enumerate(self.order.chunks.T):
            read = bits[np.arange(len(bits)), chunks]
            # Rows of the matrix need nodes, columns own them.
            needed = np.array([_count_nodes(each & self._owned_bits) for each in read])
            # With sharing, each owner loads a row once for all workers that need it in this wave.
            union = _count_nodes(np.bitwise_or.reduce(read) & self._owned_bits)
            for i, chunk in enumerate(chunks):
                low, high = self._chunk_ranges[i][chunk]
                edges = graph.count_in_edges(self._owned_nodes[i][low:high])
                held = (int(needed[i].sum()), 0, 0)
                if techniques.sharing:
                    held = (int(union[i]), int(needed[i].sum() - needed[i, i]), int(needed[:, i].sum() - needed[i, i]))
                found[i, wave] = self._wave_bytes(held, high - low, edges)
                transposed[i, wave] = transpose_file_bytes(held[0] + held[1], edges)
                moved[i] += held[0]
                for name, count in zip(
                    WaveSizes._fields, _wave_sizes(held, high - low, edges, techniques), strict=True
                ):
                    most[name] = max(most[name], count)
        most |= {"loaded_rows": int(moved.max()), "edge_row_bytes": self._topology.edge_row_bytes}
        return found, transposed, WaveSizes(**{**dict.fromkeys(WaveSizes._fields, 0), **most})

    def _wave_bytes(self, row_counts: tuple[int, int, int], rows: int, edges: int) -> int:
        of_edge = [each.itemsize for each in (self._topology.relation, self._topology.weight) if each is not None]
        # Each tensor is aligned by itself, so the sum of the sizes alone would be too small.
        tensors = [size * count for count in row_counts for size in _HELD]
        of_edge.append(self._topology.edge_row_bytes)
        return sum(
            map(aligned_bytes, [*tensors, 8 * rows, 8 * (rows + 1), 4 * edges, *(size * edges for size in of_edge)])
        )


def _wave_sizes(row_counts: tuple[int, int, int], rows: int, edges: int, techniques: TransferOptions) -> WaveSizes:
    """Return the sizes of one wave, if the next one loads as many rows."""
    load, remote, given = row_counts
    # With overlap, the rows of the next wave are loaded while those of this one are in use.
    places = load * (1 + techniques.overlap) + remote
    return WaveSizes(
        num_slots=places,
        num_rows=rows,
        num_edges=edges,
        evicted_rows=load,
        listed_rows=load + remote + given,
        loaded_rows=0,
    )


def _count_nodes(sets: Words) -> Matrix:
    """Return the number of nodes in each bitset of ``[P, W]``."""
    sizes: Matrix = np.bitwise_count(sets).sum(1, dtype=np.int64)
    return sizes
