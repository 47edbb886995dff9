"""A worker's share of a graph: what it holds of the topology when all nodes are trained at once on several workers.

Every node has one owner, which holds all its in-edges. The *halo* of a worker are the nodes of others that these edges
come from.

Letters: ``V`` nodes of the graph, ``n`` own nodes, ``h`` nodes of the halo, ``E`` in-edges of own nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.graph.topology import Topology
from outgrow.ops.subgraph import (
    RowSlices,
    add_self_loops,
    count_loops_before,
    in_subgraph,
    mark_sources,
    partition_by_source,
    row_edge_ids,
    row_slices,
    subgraph_degrees,
)
from outgrow.ops.subgraph_kernels import IS_SOURCE, NOT_PRESENT


@dataclass(frozen=True, kw_only=True, eq=False)
class LocalGraph:
    """What one worker holds of a topology, or of its view with self-loops.

    Degrees and edge ids in the blocks are those of the whole graph or view. The same edges in two parts are made when
    they are first asked for.

    Attributes:
        owned: ``[n]`` int64, nodes that the worker owns, ascending.
        halo: ``[h]`` int64, nodes of other workers with an edge to an own node; by owner, then ascending.
        halo_counts: How many nodes of the halo each worker owns; 0 for the worker itself.
        block: All in-edges of the own nodes, in the graph's order; source rows are the own nodes, then the halo.
    """

    owned: Tensor
    halo: Tensor
    halo_counts: tuple[int, ...]
    block: Block

    @property
    def local_edges(self) -> Block:
        """The edges of ``block`` from own nodes; its ``n`` source rows are these, and all destinations remain."""
        return self._local_and_halo[0]

    @property
    def halo_edges(self) -> Block:
        """The edges of ``block`` from the halo; its ``h`` source rows are these, and all destinations remain."""
        return self._local_and_halo[1]

    @property
    def edge_order(self) -> Tensor:
        """``[E]`` int32 or int64: the position in ``block`` of each edge of ``owned_in_edges``, then of ``halo_edges``.

        ``weight_EK[edge_order]``, cut after the edges of ``owned_in_edges``, has the weights of both.
        """
        return self._local_and_halo[2]

    def to(self, device: torch.device) -> LocalGraph:
        """The same with its blocks on a device; itself if they are there."""
        if self.block.dst_nodes.device == device:
            return self
        moved = replace(self, block=self.block.to(device))
        own_edges, halo_edges, order = self._local_and_halo
        vars(moved)["_local_and_halo"] = own_edges.to(device), halo_edges.to(device), order.to(device)
        return moved

    @cached_property
    def _local_and_halo(self) -> tuple[Block, Block, Tensor]:
        return _split_by_locality(self.block)


def build_local_graph(topology: Topology, part: Tensor, rank: int, size: int, *, self_loops: bool) -> LocalGraph:
    """The share of one worker.

    Beside the result it takes memory for a few small integers per node of the graph, and none per edge. Where the own
    nodes are a range and no loops are added, weights and relations of ``block`` share memory with the topology, as do
    sources where none changes its number.

    Args:
        topology: In-edges of all nodes, in memory or memory-mapped.
        part: ``[V]`` integer, the worker that owns each node.
        rank: The worker.
        size: Number of workers. One may own nothing.
        self_loops: Give the share of `Topology.with_self_loops`. It is not built: all edges are read once, to count
            the loops that the graph has.

    Raises:
        ValueError: ``part`` has another length, or names workers that there are not; there is no worker ``rank``.
    """
    _validate_owners(topology, part, rank, size)
    own = (part == rank).nonzero()[:, 0]
    rows = row_slices(topology.indptr, own)
    edges = Edges(
        indptr=topology.indptr,
        indices=topology.indices,
        num_src=topology.num_nodes,
        relation=topology.relation,
        weight=topology.weight,
    )
    halo, place_V = _find_halo(edges, rows, part)
    src_nodes = torch.cat([own, halo])
    before = count_loops_before(edges.indptr, edges.indices) if self_loops else None
    looped = None if before is None else add_self_loops(rows, before)
    view = rows if looped is None else looped
    degree = subgraph_degrees(edges, src_nodes, before)
    block = Block(
        edges=in_subgraph(edges, rows, looped, place_V, len(src_nodes)),
        src_nodes=src_nodes,
        dst_nodes=own,
        src_degree=degree,
        dst_degree=degree[: len(own)],
        first_edge=view.first_edge,
        edge_ids=row_edge_ids(view),
    )
    return LocalGraph(
        owned=own,
        halo=halo,
        halo_counts=tuple(torch.bincount(part[halo], minlength=size).tolist()),
        block=block,
    )


def _validate_owners(topology: Topology, part: Tensor, rank: int, size: int) -> None:
    if part.shape != (topology.num_nodes,):
        raise ValueError(f"part must have shape [{topology.num_nodes}], got {list(part.shape)}")
    if not 0 <= rank < size:
        raise ValueError(f"rank must be from 0 to {size - 1}, got {rank}")
    if len(part) and (part.min() < 0 or part.max() >= size):
        raise ValueError(f"owners must be from 0 to {size - 1}, got {part.min()} to {part.max()}")


def _find_halo(edges: Edges, rows: RowSlices, part: Tensor) -> tuple[Tensor, Tensor]:
    """The halo of the owner of some rows, and ``[V]`` the source row of every node that has one."""
    own = rows.nodes
    dtype = torch.int32 if len(part) < 2**31 else torch.int64
    place_V = torch.full((len(part),), NOT_PRESENT, dtype=dtype)
    place_V[own] = torch.arange(len(own), dtype=dtype)
    mark_sources(rows, edges.indices, place_V)
    halo = (place_V == IS_SOURCE).nonzero()[:, 0]
    halo = halo[part[halo].argsort(stable=True)]
    place_V[halo] = torch.arange(len(own), len(own) + len(halo), dtype=dtype)
    return halo, place_V


def _split_by_locality(block: Block) -> tuple[Block, Block, Tensor]:
    """Edges from own nodes, edges from the halo, and where in the block these were."""
    num_own = len(block.dst_nodes)
    low, high, order = partition_by_source(block.edges, num_own)
    if block.edge_ids is None:
        ids = order.to(torch.int64, copy=True).add_(block.first_edge)
    else:
        ids = block.edge_ids.index_select(0, order)
    own_edges = _block_from_sources(block, low, slice(0, num_own), ids[: low.num_edges])
    return own_edges, _block_from_sources(block, high, slice(num_own, None), ids[low.num_edges :]), order


def _block_from_sources(block: Block, edges: Edges, sources: slice, edge_ids: Tensor) -> Block:
    """Some edges of a block, all from a range of its source rows."""
    return replace(
        block,
        edges=edges,
        src_nodes=block.src_nodes[sources],
        src_degree=block.src_degree[sources],
        first_edge=0,
        edge_ids=edge_ids,
    )
