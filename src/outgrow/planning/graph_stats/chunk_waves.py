"""Waves of chunks, and the rows that they move, before anything runs; counted in one process for all workers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.strategies.offload.memory import WaveSizes
from outgrow.strategies.offload.reorder import Bandwidths, Words, cheapest_order, count_transfer_volumes, node_bitsets
from outgrow.strategies.offload.wave import aligned_bytes
from outgrow.strategies.offload.wave_plan import TransferOptions, cut_chunks

Matrix = NDArray[np.int64]
_HELD = (8, 8, 4, 1)
"""Bytes of what is told of a row that a wave holds."""


class ChunkingSpec(NamedTuple):
    """How `offload` cuts a graph.

    Attributes:
        partition: Name of the method that deals nodes out to workers.
        chunks: Chunks of each worker.
        reorganise: Whether to look for an order of the chunks.
        row_bytes: Of a row of sources, in the mean over layers.
        bandwidths: What the machine moves in a second.
    """

    partition: str
    chunks: int
    reorganise: bool
    row_bytes: int
    bandwidths: Bandwidths


class WaveStats(NamedTuple):
    """What a layer moves in one direction, in rows, and what tells it of its chunks.

    Attributes:
        loaded_rows: Rows from HOST, over all workers; as many go back as gradients.
        sent_rows: ``[P, P]`` int64, rows from the second worker to the first; as many go back as gradients.
        requested_ids: ``[P, P]`` int64, ids of rows that the second tells the first that it will need.
        file_bytes: ``[P, n]`` int64, of each wave as it lies in the scratch file.
        max_sizes: The largest that a wave of any worker is, at most.
    """

    loaded_rows: int
    sent_rows: Matrix
    requested_ids: Matrix
    file_bytes: Matrix
    max_sizes: WaveSizes


class ChunkWaveCounter:
    """The chunks of all workers, in the cheapest order. Final.

    Args:
        topology: The graph.
        views: Which views of it layers see, with a self-loop for each node or without; the first decides.
        owned_nodes: ``[n]`` int64, the nodes of each worker.
        chunking: How to cut.

    Attributes:
        order: The order.
    """

    def __init__(
        self, topology: Topology, views: tuple[bool, ...], owned_nodes: list[Tensor], chunking: ChunkingSpec
    ) -> None:
        self._topology, self._owned_nodes, self._num_nodes = topology, owned_nodes, topology.num_nodes
        self._graphs = {view: ChunkGraph(topology, self_loops=view) for view in views}
        first = self._graphs[views[0]]
        self._chunk_ranges = [cut_chunks(first, nodes, chunking.chunks) for nodes in owned_nodes]
        self._source_bits = {view: self._read_source_bits(graph) for view, graph in self._graphs.items()}
        self._owned_bits, bits = self._node_bitsets(owned_nodes), self._source_bits[views[0]]
        self.order = cheapest_order(
            bits, self._owned_bits, 1.0, chunking.row_bytes, chunking.bandwidths, reorganise=chunking.reorganise
        )

    def _node_bitsets(self, sets: list[Tensor]) -> Words:
        return node_bitsets(sets, self._num_nodes, None)

    def _read_source_bits(self, graph: ChunkGraph) -> Words:
        """``[P, n, W]``: the nodes that each chunk reads."""
        return np.stack(
            [
                self._node_bitsets([graph.source_ids(nodes[low:high]) for low, high in ranges])
                for nodes, ranges in zip(self._owned_nodes, self._chunk_ranges, strict=True)
            ]
        )

    def wave_stats(self, view: bool, techniques: TransferOptions) -> WaveStats:
        r"""What a layer moves.

        With sharing ``sum_j |U_j \ U_(j-1)|`` rows from HOST and ``sum_ij |(N_ij \ U_ij) \ N_i(j-1)|`` between workers;
        else ``sum_ij |N_ij \ N_i(j-1)|`` from HOST. Without reuse nothing is taken away.

        Args:
            view: Which of the views.
            techniques: Which techniques are used.
        """
        bits, chunks = self._source_bits[view], self.order.chunks
        parts = range(len(bits))
        sent, told = (np.zeros((len(bits), len(bits)), dtype=np.int64) for _ in range(2))
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
                told[:, i] += _count_nodes(foreign)
                sent[i] += _count_nodes(foreign & ~before)
                before = bits[i, chunk] if techniques.reuse else before
        for each in (sent, told):
            np.fill_diagonal(each, 0)
        moved = count_transfer_volumes(bits, self._owned_bits, chunks)
        loaded = moved.reused if techniques.reuse else moved.shared
        return WaveStats(loaded, sent, told, *self._wave_files(view, techniques))

    def _wave_files(self, view: bool, techniques: TransferOptions) -> tuple[Matrix, WaveSizes]:
        """Of each wave its bytes: see `outgrow.strategies.offload.wave.pack_wave`; and the largest extent."""
        graph, bits = self._graphs[view], self._source_bits[view]
        found = np.zeros(self.order.chunks.shape, dtype=np.int64)
        most, moved = Counter[str](), np.zeros(len(bits), dtype=np.int64)
        for wave, chunks in enumerate(self.order.chunks.T):
            read = bits[np.arange(len(bits)), chunks]
            needed = np.array([_count_nodes(each & self._owned_bits) for each in read])  # by who needs, and who owns
            union = _count_nodes(np.bitwise_or.reduce(read) & self._owned_bits)
            for i, chunk in enumerate(chunks):
                low, high = self._chunk_ranges[i][chunk]
                edges = graph.count_in_edges(self._owned_nodes[i][low:high])
                held = (int(needed[i].sum()), 0, 0)
                if techniques.sharing:
                    held = (int(union[i]), int(needed[i].sum() - needed[i, i]), int(needed[:, i].sum() - needed[i, i]))
                found[i, wave] = self._wave_bytes(held, high - low, edges)
                moved[i] += held[0]
                for name, count in zip(
                    WaveSizes._fields, _wave_sizes(held, high - low, edges, techniques), strict=True
                ):
                    most[name] = max(most[name], count)
        return found, WaveSizes(**{**dict.fromkeys(WaveSizes._fields, 0), **most, "loaded_rows": int(moved.max())})

    def _wave_bytes(self, row_counts: tuple[int, int, int], rows: int, edges: int) -> int:
        of_edge = [each.itemsize for each in (self._topology.relation, self._topology.weight) if each is not None]
        tensors = [size * count for count in row_counts for size in _HELD]
        return sum(
            map(aligned_bytes, [*tensors, 8 * rows, 8 * (rows + 1), 4 * edges, *(size * edges for size in of_edge)])
        )


def _wave_sizes(row_counts: tuple[int, int, int], rows: int, edges: int, techniques: TransferOptions) -> WaveSizes:
    """Of one wave, if the next one loads as many rows."""
    load, remote, given = row_counts
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
    """How many nodes each of ``[P, W]`` has."""
    sizes: Matrix = np.bitwise_count(sets).sum(1, dtype=np.int64)
    return sizes
