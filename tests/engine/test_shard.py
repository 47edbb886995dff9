"""What a worker holds of a graph: its own rows, and those of others that it asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from generators import apart
from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind, Link
from outgrow.engine import shard as share_module
from outgrow.engine.shard import FullGraphShard, PartitionShard, make_shard
from outgrow.graph.halo import LocalGraph
from outgrow.graph.partition.methods import HashPartitioner, MetisPartitioner, RangePartitioner
from outgrow.graph.topology import Topology
from outgrow.nn import GCNConv, GINConv, Layer
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.distributed.launch import run_workers
from suites.checks import named, on_workers
from support import destinations_of, normal, random_topology

NODES, WORKERS = 30, 3
GRAPH = random_topology(NODES, 160)
SCATTERED = torch.from_numpy(np.random.default_rng(0).integers(0, 2, NODES) * 2)  # worker 1 owns nothing
RANGES = torch.arange(NODES) // 12
DEALS = (SCATTERED, RANGES)
with apart():
    LOOPED, PLAIN = Layer(GCNConv(4, 2)), Layer(GINConv(4, 2))


def halo_of(topology: Topology, owner: Tensor, rank: int) -> Tensor:
    """Sources of edges into own nodes that others own, by owner and number."""
    to_own = owner[destinations_of(topology.block.edges)] == rank
    heard = topology.indices.long()[to_own].unique()
    heard = heard[owner[heard] != rank]
    return heard[owner[heard].argsort(stable=True)]


def nodes_of(owner: Tensor, rank: int) -> Tensor:
    """The nodes of a worker."""
    return (owner == rank).nonzero()[:, 0]


def sparse_rows() -> SparseRows:
    """Row ``v`` stores ``v % 3`` values."""
    sizes = torch.arange(NODES) % 3
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    count = int(ends[-1])
    columns = torch.cat([torch.arange(int(size), dtype=torch.int32) for size in sizes])
    return SparseRows(indptr=ends, indices=columns, values=torch.arange(count) + 1.0, num_columns=2)


def own_rows_of_dense_values(comm: Comm) -> None:
    """A view where the own nodes are consecutive."""
    values = normal(NODES, 3)
    for owner in DEALS:
        share = PartitionShard(GRAPH, owner, comm)
        rows, own = share.select_owned(values), nodes_of(owner, comm.rank)
        assert isinstance(rows, Tensor)
        assert torch.equal(share.owned_nodes, own)
        assert torch.equal(rows, values[own])
        shared = rows.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        assert shared == (owner is RANGES or len(own) == 0)


def own_rows_of_sparse_values(comm: Comm) -> None:
    """Also those that store nothing."""
    whole, given = sparse_rows() @ torch.eye(2), sparse_rows()
    for owner in DEALS:
        rows, own = PartitionShard(GRAPH, owner, comm).select_owned(given), nodes_of(owner, comm.rank)
        assert isinstance(rows, SparseRows)
        assert rows.shape == (len(own), 2)
        assert torch.equal(rows @ torch.eye(2), whole[own])
        if owner is RANGES:
            assert rows.values.untyped_storage().data_ptr() == given.values.untyped_storage().data_ptr()


def places_of_nodes(comm: Comm) -> None:
    """In the order given, those of own nodes only."""
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(3))[:20]
    for owner in DEALS:
        share = PartitionShard(GRAPH, owner, comm)
        places = share.local_index(nodes)
        assert torch.equal(share.owned_nodes[places], nodes[owner[nodes] == comm.rank])
        assert len(share.local_index(nodes[:0])) == 0


def rows_of_the_halo(comm: Comm) -> None:
    """Of any shape; each comes from its owner, and beside the own rows."""
    for owner in DEALS:
        share = PartitionShard(GRAPH, owner, comm)
        halo = halo_of(GRAPH, owner, comm.rank)
        for values in (normal(NODES, 3), normal(NODES, 2, 4, dtype=torch.float32), normal(NODES, 5).half()):
            own = values[share.owned_nodes]
            fetched, beside = share.fetch_halo(own, Kind.FEATURES).wait(), share.with_halo(own, Kind.FEATURES)
            assert torch.equal(share.halo_nodes, halo)
            assert torch.equal(fetched, values[halo])
            assert torch.equal(beside, values[torch.cat([share.owned_nodes, halo])])


def gradients_of_the_halo(comm: Comm) -> None:
    """The gradient of a row is the sum of what all workers make of it."""
    for owner, shape in ((SCATTERED, (3,)), (RANGES, (2, 3))):
        share = PartitionShard(GRAPH, owner, comm)
        probes = [normal(NODES, *shape, seed=rank) for rank in range(comm.size)]
        rows = torch.zeros(len(share.owned_nodes), *shape, dtype=torch.float64, requires_grad=True)
        beside = share.with_halo(rows, Kind.ACTIVATIONS)
        (beside * probes[comm.rank][torch.cat([share.owned_nodes, share.halo_nodes])]).sum().backward()
        expected = probes[comm.rank].clone()
        for peer in range(comm.size):
            halo = halo_of(GRAPH, owner, peer)
            expected[halo] += probes[peer][halo] if peer != comm.rank else 0
        assert rows.grad is not None
        torch.testing.assert_close(rows.grad, expected[share.owned_nodes])


def rows_for_the_leader(comm: Comm) -> None:
    """The leader gets all rows in the order of the graph, others nothing."""
    for owner in DEALS:
        share = PartitionShard(GRAPH, owner, comm)
        for values in (normal(NODES, 3), torch.arange(NODES)):
            got = share.gather_to_rank_zero(values[share.owned_nodes])
            assert got is None if comm.rank else torch.equal(got, values)


def the_second_view(comm: Comm) -> None:
    """Either view may come first; both have the same nodes, and the bytes to find them are sent once."""
    for first in (False, True):
        share = PartitionShard(GRAPH, SCATTERED, comm, self_loops=first)
        before = sum(comm.ledger.bytes_by_link.values())
        views = {layer: share.layer_view(layer) for layer in (LOOPED, PLAIN)}
        crossed = sum(comm.ledger.bytes_by_link.values()) - before
        assert crossed == 0
        for layer, topology in ((LOOPED, GRAPH.with_self_loops), (PLAIN, GRAPH)):
            view = views[layer]
            assert share.layer_view(layer) is view
            assert torch.equal(view.block.src_nodes, torch.cat([share.owned_nodes, share.halo_nodes]))
            assert torch.equal(view.block.src_degree, topology.degree[view.block.src_nodes])
            assert view.local_graph is not None
            edges = [part.edges.num_edges for part in (view.local_graph.local_edges, view.local_graph.halo_edges)]
            assert sum(edges) == view.block.edges.num_edges == topology.indptr.diff()[share.owned_nodes].sum()


def ids_are_sent_once(comm: Comm) -> None:
    """With the first rows a worker tells the owners of its halo what it needs: 8 bytes for each node."""
    comm.ledger.bytes_by_link.clear()
    share, values = PartitionShard(GRAPH, SCATTERED, comm), normal(NODES, 3)
    for _ in range(3):
        share.with_halo(values[share.owned_nodes], Kind.FEATURES)
        share.layer_view(LOOPED), share.layer_view(PLAIN)
    assert comm.ledger.bytes_by_link[Link.PEER, Kind.IDS] == 8 * len(share.halo_nodes)


def edges_are_held_when_needed(comm: Comm) -> None:
    """Own nodes need none; rows of the halo need one view, the one that layers want or one that is there."""
    made: list[bool] = []
    right = share_module.build_local_graph

    def local_graph(*given: Any, self_loops: bool) -> LocalGraph:
        made.append(self_loops)
        return right(*given, self_loops=self_loops)

    values, found = normal(NODES, 3), []
    with patch.object(share_module, "build_local_graph", local_graph):
        for begun in (LOOPED, PLAIN, None):
            share = PartitionShard(GRAPH, SCATTERED, comm, self_loops=True)
            rows = share.select_owned(values)
            assert isinstance(rows, Tensor)
            share.gather_to_rank_zero(rows)
            found += [
                len(share.filter_owned(torch.arange(NODES)))
                == len(share.local_index(torch.arange(NODES)))
                == len(share.owned_nodes)
            ]
            found += [not made]
            if begun is not None:
                share.layer_view(begun)
            share.with_halo(rows, Kind.FEATURES)
            found += [made == [begun is not PLAIN]]
            made.clear()
    assert all(found)


def a_view_needs_nobody_else(comm: Comm) -> None:
    """One worker may look at its edges while others do not."""
    share = PartitionShard(GRAPH, RANGES, comm)
    before = sum(comm.ledger.bytes_by_link.values())
    if comm.rank == 1:
        share.layer_view(PLAIN)
        assert torch.equal(share.halo_nodes, halo_of(GRAPH, RANGES, 1))
    assert sum(comm.ledger.bytes_by_link.values()) == before


def shares_by_a_method(comm: Comm) -> None:
    """Every worker takes the partition that the leader made."""
    for method in (RangePartitioner(), HashPartitioner(seed=3)):
        share = make_shard(GRAPH, comm, method, None, self_loops=True)
        owned = comm.all_gather_object(share.owned_nodes)
        assert isinstance(share, PartitionShard)
        expected = method.partition_nodes(GRAPH, comm.size).part
        assert [nodes.tolist() for nodes in owned] == [nodes_of(expected, r).tolist() for r in range(comm.size)]


CHECKS = named(
    own_rows_of_dense_values,
    own_rows_of_sparse_values,
    places_of_nodes,
    rows_of_the_halo,
    gradients_of_the_halo,
    rows_for_the_leader,
    the_second_view,
    ids_are_sent_once,
    edges_are_held_when_needed,
    a_view_needs_nobody_else,
    shares_by_a_method,
)


test_three_workers = on_workers(CHECKS, WORKERS)


def test_one_worker_holds_all() -> None:
    share, values, nodes = FullGraphShard(GRAPH), normal(NODES, 3), torch.tensor([4, 2])
    assert share.select_owned(values) is values
    assert share.local_index(nodes) is nodes
    assert share.with_halo(values, Kind.FEATURES) is values
    assert share.gather_to_rank_zero(values) is values
    assert share.fetch_halo(values, Kind.FEATURES).wait().shape == (0, 3)
    assert share.owned_nodes.tolist() == list(range(NODES))
    assert share.layer_view(PLAIN).block is GRAPH.block
    assert share.layer_view(LOOPED).block is GRAPH.with_self_loops.block
    assert share.layer_view(PLAIN).local_graph is None


def test_one_worker_makes_no_partition(tmp_path: Path) -> None:
    comm = SingleProcessComm()
    share = make_shard(GRAPH, comm, MetisPartitioner(), tmp_path, self_loops=False)
    assert isinstance(share, FullGraphShard)
    assert share.comm is comm
    assert list(tmp_path.iterdir()) == []


def too_many(comm: Comm) -> None:
    make_shard(random_topology(2, 1), comm, RangePartitioner(), None, self_loops=False)


def test_more_workers_than_nodes() -> None:
    with pytest.raises(InputError, match=r"1 to 2 parts(.|\n)*3 parts"):
        run_workers(lambda place: too_many(place.comm), 3)
