"""A graph in mapped files, for slice-wise passes: edges in both directions, their weights, and column slices.

Everything is read and written chunk by chunk, in the same order on every worker. The operating system caches
as much of the files as fits into memory. Only fixed weights of sums can be stored, since they are known in
advance.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.graph.chunk_graph import ChunkGraph
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer, NodeMessages
from outgrow.ops.csc import TransposedEdges, write_transpose
from outgrow.runtime.system.process_memory import allocate_mapped_tensor
from outgrow.strategies.tensor.chunk_schedule import chunk_ends


class MappedGraph:
    """A graph whose blocks have mapped edges. Final.

    Args:
        folder: Folder of the files.
        topology: In-edges of all nodes.
        chunks: Number of chunks in which edges are read while files are written.
        maps_slices: Whether slices are in files as well.
        maps_rows: Whether rows of own nodes are in files as well.
    """

    def __init__(
        self, folder: Path, topology: Topology, *, chunks: int, maps_slices: bool, maps_rows: bool = False
    ) -> None:
        self.folder = folder
        self.topology = topology
        self.chunks = chunks
        self.maps_slices = maps_slices
        self.maps_rows = maps_rows
        self._addresses: set[int] = set()
        self._weights: dict[tuple[object, ...], Tensor | None] = {}

    def make_block(self, *, self_loops: bool) -> Block:
        """Return all edges, with one self-loop for each node if wanted."""
        graph = ChunkGraph(self.topology, self_loops=self_loops)
        edges = self._map_edges(graph)
        nodes = self.topology.nodes
        return Block(edges=edges, src_nodes=nodes, dst_nodes=nodes, src_degree=graph.degree, dst_degree=graph.degree)

    def store_transpose(self, edges: Edges) -> None:
        """Keep the transpose of all edges with them, in files."""
        if "transpose" in edges.cache:
            return
        # Half the file, and half of what every backward pass reads.
        narrow = torch.int32 if edges.num_edges < 2**31 else torch.int64
        indptr = torch.zeros(edges.num_src + 1, dtype=torch.int64)
        indices, edge = (self.allocate((edges.num_edges,), narrow) for _ in range(2))
        write_transpose(edges.indptr, edges.indices, indptr, indices, edge)
        edges.cache["transpose"] = TransposedEdges(indptr, indices, edge)

    def allocate(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Return zeros in a file."""
        out = allocate_mapped_tensor(self.folder, shape, dtype)
        storage = out.untyped_storage()
        address = storage.data_ptr()
        self._addresses.add(address)
        # Another tensor may get the address of one that is gone.
        weakref.finalize(storage, self._addresses.discard, address).atexit = False
        return out

    def holds(self, values: Tensor) -> bool:
        """Whether values are in a file of this graph."""
        return values.untyped_storage().data_ptr() in self._addresses

    def edge_weights(self, layer: Layer, block: Block, dtype: torch.dtype) -> Tensor | None:
        """Return the fixed weights of a layer's edges, ``[E, K]``; None if all are 1."""
        key = layer.conv.edge_weight_key, layer.spec.self_loops, dtype
        if key not in self._weights:
            self._weights[key] = self._compute_weights(layer, block, dtype)
        return self._weights[key]

    def transpose_weights(self, weight_EC: Tensor, edges: Sequence[Tensor]) -> Tensor:
        """Return the weights in the order of these edges, ``[E, C]``, in a file.

        Args:
            weight_EC: Weights in the order of in-edges.
            edges: Edge numbers of each chunk.
        """
        out = self.allocate(tuple(weight_EC.shape), weight_EC.dtype)
        at = 0
        for edge in edges:
            torch.index_select(weight_EC, 0, edge, out=out[at : at + len(edge)])
            at += len(edge)
        return out

    def allocate_slices(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return uninitialised memory or a mapped file for slices."""
        return self.allocate(shape, like.dtype) if self.maps_slices else like.new_empty(shape)

    def keep_slices(self, slices: Tensor) -> Tensor:
        """Return slices that are read in every pass, in a file if slices are."""
        if not self.maps_slices or self.holds(slices):
            return slices
        return self.allocate(tuple(slices.shape), slices.dtype).copy_(slices)

    def _map_edges(self, graph: ChunkGraph) -> Edges:
        topology = self.topology
        if not graph.self_loops:
            # A cache of its own: the transpose put there is a mapped file, and must not outlive this graph.
            return replace(topology.block.edges, cache={})
        place = topology.nodes.int()
        # Upper bound: a loop that the graph has already is replaced.
        most = topology.num_edges + topology.num_nodes
        indptr = torch.zeros(topology.num_nodes + 1, dtype=torch.int64)
        at = 0
        given = {
            "indices": topology.indices,
            "relation": topology.relation,
            "weight": topology.weight,
            "features": topology.edge_features,
        }
        files = {
            name: self.allocate((most, *old.shape[1:]), old.dtype) for name, old in given.items() if old is not None
        }
        for first, last in pairwise(chunk_ends(topology.indptr, self.chunks)):
            # loops that are there are replaced, so sizes are known only now
            part, _ = graph.extract_chunk(torch.arange(first, last), place, topology.num_nodes)
            indptr[first + 1 : last + 1] = part.indptr[1:] + at
            for name, out in files.items():
                out[at : at + part.num_edges] = getattr(part, name)
            at += part.num_edges
        held = {name: out[:at] for name, out in files.items()}
        return Edges(
            indptr=indptr,
            indices=held["indices"],
            num_src=topology.num_nodes,
            relation=held.get("relation"),
            weight=held.get("weight"),
            features=held.get("features"),
            feature_sizes=topology.feature_sizes,
        )

    def _compute_weights(self, layer: Layer, block: Block, dtype: torch.dtype) -> Tensor | None:
        out = None
        source = NodeMessages(torch.empty(0, dtype=dtype), None)
        none = NodeMessages(None, None)
        for first, last in pairwise(chunk_ends(block.edges.indptr, self.chunks)):
            part = block.slice_destinations(first, last)
            # Of the empty source rows only the type matters, since the weights are fixed.
            weight = layer.conv.edge_weight(part, source, none)
            if weight is None:
                return None
            if out is None:
                out = self.allocate((block.edges.num_edges, weight.shape[1]), weight.dtype)
            out[part.first_edge : part.first_edge + len(weight)] = weight
        return out
