"""Blocks of the chunks of a graph: destinations with their in-edges, from the distinct nodes that these read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.csc import TransposedEdges, write_transpose
from outgrow.strategies.tensor.chunk_schedule import ChunkGroups, NodeGroup

Allocate = Callable[[tuple[int, ...], torch.dtype], Tensor]
"""Returns a tensor of zeros of a shape and a dtype, in a file."""


class ChunkBlock(NamedTuple):
    """A chunk of destinations, and the rows that are exchanged for it.

    Attributes:
        first: First destination.
        last: Last destination, plus 1.
        sources: ``[s]`` int64: the distinct nodes that it reads, ascending; where the graph is.
        block: In-edges; ``src_nodes`` are the sources, on the device of the edges.
        groups: Nodes that it reads and no earlier chunk does, and its destinations; None for one worker.
    """

    first: int
    last: int
    sources: Tensor
    block: Block
    groups: tuple[NodeGroup, NodeGroup] | None

    @property
    def device(self) -> torch.device:
        """Where it is aggregated."""
        return self.block.dst_nodes.device

    def sources_on(self, device: torch.device) -> Tensor:
        """Return the nodes that it reads, ``[s]`` int64, on a device."""
        return self.block.src_nodes if device == self.device else self.sources.to(device)

    def to(self, device: torch.device) -> ChunkBlock:
        """Return the chunk with its edges on a device, which derives from them what kernels need."""
        return self._replace(block=self.block.to(device))

    def without_derived(self) -> ChunkBlock:
        """Return a chunk that keeps what kernels derive of its edges no longer than it is used itself."""
        edges = replace(self.block.edges, cache=dict(self.block.edges.cache))
        return self._replace(block=replace(self.block, edges=edges))

    @property
    def exchange_groups(self) -> tuple[NodeGroup, NodeGroup]:
        """The groups, of several workers."""
        assert self.groups is not None
        return self.groups


def make_chunk_blocks(
    whole: Block,
    ends: Sequence[int],
    groups: ChunkGroups | None,
    allocate: Allocate | None = None,
    *,
    transposes: bool = True,
) -> list[ChunkBlock]:
    """Return the blocks of the chunks of a graph.

    Args:
        whole: All edges; every node is a source and a destination.
        ends: Ends of the chunks.
        groups: Makes the groups of nodes that are exchanged; None for one worker.
        allocate: Allocates what is stored of an edge; None for memory.
        transposes: Whether what is allocated includes the transpose.
    """
    edges = whole.edges
    place = torch.zeros(edges.num_src, dtype=torch.int32, device=edges.indptr.device)
    count = len(ends) - 1
    exchanged = [None] * count if groups is None else groups.of_chunks(edges.indptr, edges.indices, list(ends))
    found = []
    for (first, last), moved in zip(pairwise(ends), exchanged, strict=True):
        part = whole.slice_destinations(first, last)
        sources, indices = _number_sources(part.edges, place)
        if allocate is not None:
            sources, indices = (_store(each, allocate) for each in (sources, indices))
        own = replace(part.edges, indices=indices, num_src=len(sources), cache={})
        if allocate is not None and transposes:
            own.cache["transpose"] = _store_transpose(own, allocate)
        block = replace(part, edges=own, src_nodes=sources, src_degree=whole.src_degree[sources])
        found.append(ChunkBlock(first, last, sources, block, moved))
    return found


def _number_sources(edges: Edges, place_V: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct sources of edges, ascending, and the edges' sources by their places among them.

    Args:
        edges: Edges from all nodes.
        place_V: ``[V]`` int32 zeros; they are zeros again afterwards.
    """
    given = edges.indices.long() if edges.indices.dtype != torch.int64 else edges.indices
    place_V[given] = 1
    sources = place_V.nonzero()[:, 0]
    place_V[sources] = torch.arange(len(sources), dtype=torch.int32, device=place_V.device)
    indices = place_V[given]
    place_V[sources] = 0
    return sources, indices


def _store(given: Tensor, allocate: Allocate) -> Tensor:
    out = allocate(tuple(given.shape), given.dtype)
    return out.copy_(given)


def _store_transpose(edges: Edges, allocate: Allocate) -> TransposedEdges:
    ptr = allocate((edges.num_src + 1,), torch.int64)
    dst, edge = (allocate((edges.num_edges,), torch.int32) for _ in range(2))
    write_transpose(edges.indptr, edges.indices, ptr, dst, edge)
    return TransposedEdges(ptr, dst, edge)
