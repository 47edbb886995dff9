"""Chunks of a graph's rows in the order in which workers aggregate them, and the rows that travel for each.

A chunk is a range of rows with all their edges: destinations with their in-edges forward, sources with their out-edges
backward. What it reads is split before it, what it has made is gathered behind it; nothing travels twice. Ai et al.:
NeutronTP, PVLDB 18(2), 2024, section 4.2.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.graph.partition.balanced_ranges import balanced_range_ends, range_of_each
from outgrow.ops.backend import as_numpy, as_tensor
from outgrow.ops.csc import cached_transpose

_EDGES = 1 << 20
"""Edges that are looked at together: their sources are copied."""


class NodeGroup(NamedTuple):
    """Nodes whose rows travel together.

    Attributes:
        nodes: ``[k]`` int64: those of worker 0 first, ascending.
        own_rows: ``[m]`` int64, rows of the own ones among all own nodes; where whole rows are.
        sizes: How many each worker owns.
    """

    nodes: Tensor
    own_rows: Tensor
    sizes: tuple[int, ...]


class AggregationChunk(NamedTuple):
    """Rows that are aggregated at once.

    Attributes:
        first: First row.
        last: Last row, plus 1.
        indptr: ``[last - first + 1]`` int64, from 0.
        indices: ``[e]`` row that each edge reads.
        edge: ``[e]`` number of each edge; None if they are consecutive from ``first_edge``.
        first_edge: Number of the first.
        read_group: What it reads, and no chunk before it.
        output_group: Its rows.
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
    """``chunks + 1`` ends of ranges with about as many rows and edges each; fewer where there are fewer rows."""
    num_rows = len(indptr) - 1
    if num_rows == 0:
        return [0, 0]
    cost = as_numpy(indptr) + np.arange(num_rows + 1)
    ends: list[int] = balanced_range_ends(cost, min(chunks, num_rows)).tolist()
    return ends


def first_chunk_reading(indptr: Tensor, indices: Tensor, ends: list[int], num_rows: int) -> Tensor:
    """``[num_rows]`` int64: the first chunk that reads each row; the last one, of those that none reads."""
    found = torch.full((num_rows,), len(ends) - 2, dtype=torch.int64)
    for number, (first, last) in reversed(list(enumerate(pairwise(ends)))):
        for some in torch.split(indices[int(indptr[first]) : int(indptr[last])], _EDGES):
            found[some.long()] = number
    return found


def assign_owners(indptr: Tensor, indices: Tensor, chunks: int, workers: int) -> Tensor:
    """``[V]`` int32: the worker of each node. Of what a chunk is the first to read, each gets an equal part.

    Where it cannot be equal, another worker gets more of each chunk.

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
    rank = torch.arange(num_nodes) - (counts.cumsum(0) - counts)[reader[order]]
    owner = torch.empty(num_nodes, dtype=torch.int32)
    owner[order] = ((rank * workers // counts[reader[order]] + reader[order]) % workers).int()
    return owner


def make_schedules(
    edges: Edges, chunks: int, owner: Tensor, own: Tensor, workers: int, row_device: torch.device | None = None
) -> ChunkSchedules:
    """The chunks of a whole graph.

    Args:
        edges: All in-edges, each node being source and destination.
        chunks: How many chunks.
        owner: ``[V]`` integer, the worker of each node.
        own: ``[n]`` int64, the nodes of this worker, ascending.
        workers: Number of workers.
        row_device: Where whole rows are; None for where the edges are.
    """
    back = cached_transpose(edges)

    def make_schedule(indptr: Tensor, indices: Tensor, edge: Tensor | None) -> list[AggregationChunk]:
        on_host = indptr.cpu()
        places = (indices.device, row_device or indices.device)
        ends = chunk_ends(on_host, chunks)
        reader = first_chunk_reading(on_host, indices.cpu(), ends, len(owner))
        maker = as_tensor(range_of_each(np.asarray(ends)))
        reads = _make_groups(reader, owner, own, len(ends) - 1, workers, places)
        makes = _make_groups(maker, owner, own, len(ends) - 1, workers, places)
        found = []
        for (first, last), read, made in zip(pairwise(ends), reads, makes, strict=True):
            low = int(on_host[first])
            high = int(on_host[last])
            edges_of = None if edge is None else edge[low:high]
            rows = indptr[first : last + 1] - low
            found.append(AggregationChunk(first, last, rows, indices[low:high], edges_of, low, read, made))
        return found

    return ChunkSchedules(
        make_schedule(edges.indptr, edges.indices, None), make_schedule(back.indptr, back.indices, back.edge)
    )


def _make_groups(
    group: Tensor, owner: Tensor, own: Tensor, count: int, workers: int, devices: tuple[torch.device, torch.device]
) -> list[NodeGroup]:
    """The nodes of each party, by worker; ``devices`` are those of slices and of whole rows."""
    place = group * workers + owner
    sizes = torch.bincount(place, minlength=count * workers).view(count, workers)
    nodes = torch.argsort(place, stable=True)
    mine = torch.argsort(group[own], stable=True)
    of_party = torch.split(nodes, sizes.sum(1).tolist())
    of_mine = torch.split(mine, torch.bincount(group[own], minlength=count).tolist())
    return [
        NodeGroup(whole.to(devices[0]), part.to(devices[1]), tuple(each))
        for whole, part, each in zip(of_party, of_mine, sizes.tolist(), strict=True)
    ]
