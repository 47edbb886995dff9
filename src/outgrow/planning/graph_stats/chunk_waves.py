"""Waves of chunks, and the rows that they move, before anything runs; counted in one process for all workers."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.strategies.offload.memory import Extent
from outgrow.strategies.offload.reorder import Throughputs, Words, bits_of, cheapest, volumes
from outgrow.strategies.offload.wave import filed
from outgrow.strategies.offload.wave_plan import Techniques, chunks_of

Matrix = NDArray[np.int64]
_HELD = (8, 8, 4, 1)
"""Bytes of what is told of a row that a wave holds."""


class Cutting(NamedTuple):
    """How `offload` cuts a graph.

    Attributes:
        partition: Name of the method that deals nodes out to workers.
        chunks: Chunks of each worker.
        reorganise: Whether to look for an order of the chunks.
        row_bytes: Of a row of sources, in the mean over layers.
        rates: What the machine moves in a second.
    """

    partition: str
    chunks: int
    reorganise: bool
    row_bytes: int
    rates: Throughputs


class Waves(NamedTuple):
    """What a layer moves in one direction, in rows, and what tells it of its chunks.

    Attributes:
        loaded: Rows from HOST, over all workers; as many go back as gradients.
        sent: ``[P, P]`` int64, rows from the second worker to the first; as many go back as gradients.
        told: ``[P, P]`` int64, ids of rows that the second tells the first that it will need.
        file_bytes: ``[P, n]`` int64, of each wave as it lies in the scratch file.
        extent: The largest that a wave of any worker is, at most.
    """

    loaded: int
    sent: Matrix
    told: Matrix
    file_bytes: Matrix
    extent: Extent


class Cutter:
    """The chunks of all workers, in the cheapest order. Final.

    Args:
        topology: The graph.
        views: Which views of it layers see, with a self-loop for each node or without; the first decides.
        own: ``[n]`` int64, the nodes of each worker.
        cutting: How to cut.

    Attributes:
        order: The order.
    """

    def __init__(self, topology: Topology, views: tuple[bool, ...], own: list[Tensor], cutting: Cutting) -> None:
        self._topology, self._own, self._num_nodes = topology, own, topology.num_nodes
        self._graphs = {view: ChunkGraph(topology, self_loops=view) for view in views}
        first = self._graphs[views[0]]
        self._pieces = [chunks_of(first, nodes, cutting.chunks) for nodes in own]
        self._reads = {view: self._read(graph) for view, graph in self._graphs.items()}
        self._owned, bits = self._bits(own), self._reads[views[0]]
        self.order = cheapest(bits, self._owned, 1.0, cutting.row_bytes, cutting.rates, reorganise=cutting.reorganise)

    def _bits(self, sets: list[Tensor]) -> Words:
        return bits_of(sets, self._num_nodes, None)

    def _read(self, graph: ChunkGraph) -> Words:
        """``[P, n, W]``: the nodes that each chunk reads."""
        return np.stack(
            [
                self._bits([graph.sources(nodes[low:high]) for low, high in ranges])
                for nodes, ranges in zip(self._own, self._pieces, strict=True)
            ]
        )

    def waves(self, view: bool, techniques: Techniques) -> Waves:
        r"""What a layer moves.

        With sharing ``sum_j |U_j \ U_(j-1)|`` rows from HOST and ``sum_ij |(N_ij \ U_ij) \ N_i(j-1)|`` between workers;
        else ``sum_ij |N_ij \ N_i(j-1)|`` from HOST. Without reuse nothing is taken away.

        Args:
            view: Which of the views.
            techniques: Which techniques are used.
        """
        bits, chunks = self._reads[view], self.order.chunks
        parts = range(len(bits))
        sent, told = (np.zeros((len(bits), len(bits)), dtype=np.int64) for _ in range(2))
        if not techniques.sharing:
            alone = [volumes(bits[i : i + 1], self._owned[i : i + 1], chunks[i : i + 1]) for i in parts]
            loaded = sum(each.reused if techniques.reuse else each.shared for each in alone)
            return Waves(loaded, sent, told, *self._held(view, techniques))
        for i in parts:
            before = np.zeros_like(self._owned[0])
            for chunk in chunks[i]:
                foreign = bits[i, chunk] & self._owned
                told[:, i] += _sizes(foreign)
                sent[i] += _sizes(foreign & ~before)
                before = bits[i, chunk] if techniques.reuse else before
        for each in (sent, told):
            np.fill_diagonal(each, 0)
        moved = volumes(bits, self._owned, chunks)
        loaded = moved.reused if techniques.reuse else moved.shared
        return Waves(loaded, sent, told, *self._held(view, techniques))

    def _held(self, view: bool, techniques: Techniques) -> tuple[Matrix, Extent]:
        """Of each wave its bytes: see `outgrow.strategies.offload.wave.packed`; and the largest extent."""
        graph, bits = self._graphs[view], self._reads[view]
        found = np.zeros(self.order.chunks.shape, dtype=np.int64)
        most, moved = Counter[str](), np.zeros(len(bits), dtype=np.int64)
        for wave, chunks in enumerate(self.order.chunks.T):
            read = bits[np.arange(len(bits)), chunks]
            needed = np.array([_sizes(each & self._owned) for each in read])  # by who needs, and who owns
            union = _sizes(np.bitwise_or.reduce(read) & self._owned)
            for i, chunk in enumerate(chunks):
                low, high = self._pieces[i][chunk]
                edges = graph.num_edges(self._own[i][low:high])
                held = (int(needed[i].sum()), 0, 0)
                if techniques.sharing:
                    held = (int(union[i]), int(needed[i].sum() - needed[i, i]), int(needed[:, i].sum() - needed[i, i]))
                found[i, wave] = self._wave_bytes(held, high - low, edges)
                moved[i] += held[0]
                for name, count in zip(Extent._fields, _extent(held, high - low, edges, techniques), strict=True):
                    most[name] = max(most[name], count)
        return found, Extent(**{**dict.fromkeys(Extent._fields, 0), **most, "moved": int(moved.max())})

    def _wave_bytes(self, held: tuple[int, int, int], rows: int, edges: int) -> int:
        of_edge = [each.itemsize for each in (self._topology.relation, self._topology.weight) if each is not None]
        tensors = [size * count for count in held for size in _HELD]
        return sum(map(filed, [*tensors, 8 * rows, 8 * (rows + 1), 4 * edges, *(size * edges for size in of_edge)]))


def _extent(held: tuple[int, int, int], rows: int, edges: int, techniques: Techniques) -> Extent:
    """Of one wave, if the next one loads as many rows."""
    load, remote, given = held
    places = load * (1 + techniques.overlap) + remote
    return Extent(places=places, rows=rows, edges=edges, leaving=load, held=load + remote + given, moved=0)


def _sizes(sets: Words) -> Matrix:
    """How many nodes each of ``[P, W]`` has."""
    sizes: Matrix = np.bitwise_count(sets).sum(1, dtype=np.int64)
    return sizes
