"""Chunks of a graph's rows in the order of their aggregation, and the rows exchanged for each.

A chunk is a range of rows with all their edges: destinations with their in-edges forward, sources with their
out-edges backward. The rows that it is the first to read are split before it, its results are gathered after
it; no row is exchanged twice. Ai et al.: NeutronTP, PVLDB 18(2), 2024, section 4.2.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.graph.partition.partition import balanced_range_ends, range_of_each
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.csc import cached_transpose

_EDGES = 1 << 20
"""Edges whose sources are converted at a time, which bounds the copy."""


class NodeGroup(NamedTuple):
    """Nodes whose rows are exchanged together.

    Attributes:
        nodes: ``[k]`` int64, ordered by owner, then ascending; on the device of slices.
        own_rows: ``[m]`` int64, positions of the own ones among all own nodes; on the device of whole rows.
        sizes: Number of nodes of each worker.
    """

    nodes: Tensor
    own_rows: Tensor
    sizes: tuple[int, ...]


class AggregationChunk(NamedTuple):
    """A range of rows that is aggregated at once.

    Attributes:
        first: First row.
        last: Last row, plus 1.
        indptr: ``[last - first + 1]`` int64, from 0.
        indices: ``[e]`` row that each edge reads.
        edge: ``[e]`` number of each edge; None if they are consecutive from ``first_edge``.
        first_edge: Number of the first edge.
        read_group: Nodes that it reads and no earlier chunk does.
        output_group: Nodes of its rows.
    """

    first: int
    last: int
    indptr: Tensor
    indices: Tensor
    edge: Tensor | None
    first_edge: int
    read_group: NodeGroup
    output_group: NodeGroup


class ChunkSchedules(NamedTuple):
    """The chunks of both directions."""

    forward: list[AggregationChunk]
    backward: list[AggregationChunk]


def chunk_ends(indptr: Tensor, chunks: int) -> list[int]:
    """Return ``chunks + 1`` ends of ranges with about equally many rows plus edges; fewer for few rows."""
    num_rows = len(indptr) - 1
    if num_rows == 0:
        return [0, 0]
    # Rows count as well as edges: each is written and exchanged even if it has no edge.
    cost = as_numpy(indptr) + np.arange(num_rows + 1)
    ends: list[int] = balanced_range_ends(cost, min(chunks, num_rows)).tolist()
    return ends


def first_chunk_reading(indptr: Tensor, indices: Tensor, ends: list[int], num_rows: int) -> Tensor:
    """Return the first chunk that reads each row, ``[num_rows]`` int64; the last chunk for unread rows."""
    found = torch.full((num_rows,), len(ends) - 2, dtype=torch.int64)
    # Backwards, so that of several chunks that read a row the first one writes last.
    for number, (first, last) in reversed(list(enumerate(pairwise(ends)))):
        for some in torch.split(indices[int(indptr[first]) : int(indptr[last])], _EDGES):
            found[some.long()] = number
    return found


def assign_owners(indptr: Tensor, indices: Tensor, chunks: int, workers: int) -> Tensor:
    """Return the worker of each node, ``[V]`` int32.

    Of the nodes that a chunk is the first to read, each worker gets an equal part; a remainder goes to
    another worker for each chunk.

    Args:
        indptr: ``[V + 1]`` int64 ends of the in-edges of each node.
        indices: ``[E]`` their sources.
        chunks: Number of chunks.
        workers: Number of workers.
    """
    num_nodes = len(indptr) - 1
    reader = first_chunk_reading(indptr, indices, chunk_ends(indptr, chunks), num_nodes)
    counts = torch.bincount(reader, minlength=1)
    order = torch.argsort(reader, stable=True)
    # Position of each node among those with the same first reader.
    rank = torch.arange(num_nodes) - (counts.cumsum(0) - counts)[reader[order]]
    owner = torch.empty(num_nodes, dtype=torch.int32)
    # The reader's number rotates the workers, or the remainders of all chunks would fall to the same ones.
    owner[order] = ((rank * workers // counts[reader[order]] + reader[order]) % workers).int()
    return owner


class ChunkGroups:
    """Makes the groups of nodes that chunks exchange, of a number of workers. Final.

    Args:
        owner: ``[V]`` integer, the worker of each node.
        own: ``[n]`` int64, the nodes of this worker, ascending.
        workers: Number of workers.
        devices: Devices of slices and of whole rows.
    """

    def __init__(self, owner: Tensor, own: Tensor, workers: int, devices: tuple[torch.device, torch.device]) -> None:
        self.owner = owner
        self.own = own
        self.workers = workers
        self.devices = devices

    def of_chunks(self, indptr: Tensor, indices: Tensor, ends: list[int]) -> Iterator[tuple[NodeGroup, NodeGroup]]:
        """Yield of each chunk the nodes that it reads and no earlier chunk does, and those of its rows.

        Args:
            indptr: ``[V + 1]`` int64 ends of the edges of each row.
            indices: ``[E]`` row that each edge reads.
            ends: Ends of the chunks.
        """
        reader = first_chunk_reading(indptr.cpu(), indices.cpu(), ends, len(self.owner))
        maker = as_tensor(range_of_each(np.asarray(ends)))
        yield from zip(self._divide(reader, len(ends) - 1), self._divide(maker, len(ends) - 1), strict=True)

    def _divide(self, group: Tensor, count: int) -> list[NodeGroup]:
        """Return the nodes of each group, by worker."""
        own, workers = self.own, self.workers
        # One key for group and worker; the sort is stable, so nodes of the same key stay ascending.
        place = group * workers + self.owner
        sizes = torch.bincount(place, minlength=count * workers).view(count, workers)
        nodes = torch.argsort(place, stable=True)
        own_order = torch.argsort(group[own], stable=True)
        by_group = torch.split(nodes, sizes.sum(1).tolist())
        own_by_group = torch.split(own_order, torch.bincount(group[own], minlength=count).tolist())
        return [
            NodeGroup(whole.to(self.devices[0]), part.to(self.devices[1]), tuple(each))
            for whole, part, each in zip(by_group, own_by_group, sizes.tolist(), strict=True)
        ]


def make_schedules(edges: Edges, chunks: int, groups: ChunkGroups) -> ChunkSchedules:
    """Return the chunks of a whole graph.

    Args:
        edges: All in-edges; every node is a source and a destination.
        chunks: How many chunks.
        groups: Makes the groups of nodes.
    """
    back = cached_transpose(edges)

    def make_schedule(indptr: Tensor, indices: Tensor, edge: Tensor | None) -> list[AggregationChunk]:
        on_host = indptr.cpu()
        ends = chunk_ends(on_host, chunks)
        found = []
        for (first, last), (read, made) in zip(pairwise(ends), groups.of_chunks(on_host, indices, ends), strict=True):
            low = int(on_host[first])
            high = int(on_host[last])
            edges_of = None if edge is None else edge[low:high]
            rows = indptr[first : last + 1] - low
            found.append(AggregationChunk(first, last, rows, indices[low:high], edges_of, low, read, made))
        return found

    return ChunkSchedules(
        make_schedule(edges.indptr, edges.indices, None), make_schedule(back.indptr, back.indices, back.edge)
    )


def read_groups(chunks: Sequence[AggregationChunk]) -> list[tuple[str, NodeGroup]]:
    """Return the groups that chunks are the first to read, with the names of their splits in the timeline."""
    return [(f"split {number}", chunk.read_group) for number, chunk in enumerate(chunks)]
