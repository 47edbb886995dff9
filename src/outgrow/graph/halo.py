"""The subgraph of one worker in full-graph training: its own nodes, their in-edges and its halo.

Every node has one owner, which holds all its in-edges. The *halo* of a worker is the set of nodes of other
workers that these edges come from.

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
    """One worker's part of a topology, or of its view with self-loops.

    Degrees and edge ids in the blocks are those of the whole graph or view. The division into edges from own
    nodes and edges from the halo is made on first use.

    Attributes:
        owned: ``[n]`` int64, the nodes that the worker owns, ascending.
        halo: ``[h]`` int64, nodes of other workers with an edge to an own node; sorted by owner, then by id.
        halo_counts: Number of halo nodes that each worker owns; 0 for the worker itself.
        block: All in-edges of the own nodes, in the graph's order; source rows are the own nodes, then the
            halo.
    """

    owned: Tensor
    halo: Tensor
    halo_counts: tuple[int, ...]
    block: Block

    @property
    def local_edges(self) -> Block:
        """The edges of ``block`` from own nodes, with ``n`` source rows and all destinations."""
        return self._local_and_halo[0]

    @property
    def halo_edges(self) -> Block:
        """The edges of ``block`` from the halo, with ``h`` source rows and all destinations."""
        return self._local_and_halo[1]

    @property
    def edge_order(self) -> Tensor:
        """``[E]`` int32 or int64: the position in ``block`` of each edge of ``local_edges``, then of ``halo_edges``.

        ``weight_EK[edge_order]``, split after the edges of ``local_edges``, gives the weights of both.
        """
        return self._local_and_halo[2]

    def to(self, device: torch.device) -> LocalGraph:
        """Return a copy with its blocks on a device; itself if they are there already."""
        if self.block.dst_nodes.device == device:
            return self
        moved = replace(self, block=self.block.to(device))
        own_edges, halo_edges, order = self._local_and_halo
        # The kernels that divide the edges run on the CPU: the cached property is filled with copies instead.
        vars(moved)["_local_and_halo"] = own_edges.to(device), halo_edges.to(device), order.to(device)
        return moved

    @cached_property
    def _local_and_halo(self) -> tuple[Block, Block, Tensor]:
        return _split_by_locality(self.block)


def build_local_graph(topology: Topology, part: Tensor, rank: int, size: int, *, self_loops: bool) -> LocalGraph:
    """Build the subgraph of one worker.

    In addition to the result it needs memory for a few small integers per node of the graph, and none per
    edge. If the own nodes are a range and no loops are added, weights, relations and features of the edges of
    ``block`` share memory with the topology, and so do sources if none is renumbered.

    Args:
        topology: In-edges of all nodes, in memory or memory-mapped.
        part: ``[V]`` integer, the owner of each node.
        rank: The worker.
        size: Number of workers. A worker may own no node.
        self_loops: Take the subgraph of `Topology.with_self_loops`. The view is not built: all edges are read
            once, to count the loops of the graph.

    Raises:
        ValueError: ``part`` has the wrong length or an owner out of range, or ``rank`` is out of range.
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
        features=topology.edge_features,
        feature_sizes=topology.feature_sizes,
    )
    halo, place_V = _find_halo(edges, rows, part)
    # Own nodes first: every destination then has the same row as source and as destination.
    src_nodes = torch.cat([own, halo])
    # The only pass over all edges of the graph: ids of the view depend on the loops of earlier rows.
    before = count_loops_before(edges.indptr, edges.indices) if self_loops else None
    looped = None if before is None else add_self_loops(rows, before)
    view = rows if looped is None else looped
    # Degrees of the whole graph: halo nodes have in-edges that this worker does not hold.
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
    """Return the halo of the owner of some rows, and ``[V]`` the source row of every node that has one."""
    own = rows.nodes
    # The table has an entry for every node of the graph, so the narrow type matters.
    dtype = torch.int32 if len(part) < 2**31 else torch.int64
    place_V = torch.full((len(part),), NOT_PRESENT, dtype=dtype)
    place_V[own] = torch.arange(len(own), dtype=dtype)
    # Own nodes have their row already and are not marked, so what is marked is the halo.
    mark_sources(rows, edges.indices, place_V)
    halo = (place_V == IS_SOURCE).nonzero()[:, 0]
    # Grouped by owner: a worker then receives the rows of each peer as one slice, without a copy. The stable
    # sort keeps ids ascending within an owner.
    halo = halo[part[halo].argsort(stable=True)]
    place_V[halo] = torch.arange(len(own), len(own) + len(halo), dtype=dtype)
    return halo, place_V


def _split_by_locality(block: Block) -> tuple[Block, Block, Tensor]:
    """Return the edges from own nodes, the edges from the halo, and their positions in the block."""
    num_own = len(block.dst_nodes)
    low, high, order = partition_by_source(block.edges, num_own)
    # Without ids the edges are consecutive from the first one.
    if block.edge_ids is None:
        ids = order.to(torch.int64, copy=True).add_(block.first_edge)
    else:
        ids = block.edge_ids.index_select(0, order)
    own_edges = _block_from_sources(block, low, slice(0, num_own), ids[: low.num_edges])
    return own_edges, _block_from_sources(block, high, slice(num_own, None), ids[low.num_edges :]), order


def _block_from_sources(block: Block, edges: Edges, sources: slice, edge_ids: Tensor) -> Block:
    """Return a block of some edges of a block, all from a range of its source rows."""
    return replace(
        block,
        edges=edges,
        src_nodes=block.src_nodes[sources],
        src_degree=block.src_degree[sources],
        first_edge=0,
        edge_ids=edge_ids,
    )
