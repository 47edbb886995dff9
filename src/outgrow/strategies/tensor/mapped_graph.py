"""A graph in mapped files, for slice-wise passes: edges in both directions, their weights, and column slices.

Everything is read and written chunk by chunk, in the same order on every worker. The operating system caches
as much of the files as fits into memory. Only fixed weights of sums can be stored, since they are known in
advance.
"""

from __future__ import annotations

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
    """

    def __init__(self, folder: Path, topology: Topology, *, chunks: int, maps_slices: bool) -> None:
        self.folder = folder
        self.topology = topology
        self.chunks = chunks
        self.maps_slices = maps_slices
        self._weights: dict[tuple[object, ...], Tensor | None] = {}

    def make_block(self, *, self_loops: bool) -> Block:
        """Return all edges, with one self-loop for each node if wanted, and with their transpose."""
        graph = ChunkGraph(self.topology, self_loops=self_loops)
        num_nodes = self.topology.num_nodes
        edges = self._map_edges(graph)
        # Half the file, and half of what every backward pass reads.
        narrow = torch.int32 if edges.num_edges < 2**31 else torch.int64
        indptr = torch.zeros(num_nodes + 1, dtype=torch.int64)
        indices, edge = (allocate_mapped_tensor(self.folder, (edges.num_edges,), narrow) for _ in range(2))
        write_transpose(edges.indptr, edges.indices, indptr, indices, edge)
        edges.cache["transpose"] = TransposedEdges(indptr, indices, edge)
        nodes = self.topology.nodes
        return Block(edges=edges, src_nodes=nodes, dst_nodes=nodes, src_degree=graph.degree, dst_degree=graph.degree)

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
        out = allocate_mapped_tensor(self.folder, tuple(weight_EC.shape), weight_EC.dtype)
        at = 0
        for edge in edges:
            torch.index_select(weight_EC, 0, edge, out=out[at : at + len(edge)])
            at += len(edge)
        return out

    def allocate_slices(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return uninitialised memory or a mapped file for slices."""
        return allocate_mapped_tensor(self.folder, shape, like.dtype) if self.maps_slices else like.new_empty(shape)

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
            name: allocate_mapped_tensor(self.folder, (most, *old.shape[1:]), old.dtype)
            for name, old in given.items()
            if old is not None
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
                out = allocate_mapped_tensor(self.folder, (block.edges.num_edges, weight.shape[1]), weight.dtype)
            out[part.first_edge : part.first_edge + len(weight)] = weight
        return out
