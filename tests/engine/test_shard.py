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
from outgrow.engine.shard import Part, Whole, share_of
from outgrow.graph.halo import LocalGraph
from outgrow.graph.partition.methods import Hash, Metis, Range
from outgrow.graph.topology import Topology
from outgrow.nn import GCNConv, GINConv, Layer
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import Alone, Comm
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
        share = Part(GRAPH, owner, comm)
        rows, own = share.rows(values), nodes_of(owner, comm.rank)
        assert isinstance(rows, Tensor)
        assert torch.equal(share.own, own)
        assert torch.equal(rows, values[own])
        shared = rows.untyped_storage().data_ptr() == values.untyped_storage().data_ptr()
        assert shared == (owner is RANGES or len(own) == 0)


def own_rows_of_sparse_values(comm: Comm) -> None:
    """Also those that store nothing."""
    whole, given = sparse_rows() @ torch.eye(2), sparse_rows()
    for owner in DEALS:
        rows, own = Part(GRAPH, owner, comm).rows(given), nodes_of(owner, comm.rank)
        assert isinstance(rows, SparseRows)
        assert rows.shape == (len(own), 2)
        assert torch.equal(rows @ torch.eye(2), whole[own])
        if owner is RANGES:
            assert rows.values.untyped_storage().data_ptr() == given.values.untyped_storage().data_ptr()


def places_of_nodes(comm: Comm) -> None:
    """In the order given, those of own nodes only."""
    nodes = torch.randperm(NODES, generator=torch.Generator().manual_seed(3))[:20]
    for owner in DEALS:
        share = Part(GRAPH, owner, comm)
        places = share.places(nodes)
        assert torch.equal(share.own[places], nodes[owner[nodes] == comm.rank])
        assert len(share.places(nodes[:0])) == 0


def rows_of_the_halo(comm: Comm) -> None:
    """Of any shape; each comes from its owner, and beside the own rows."""
    for owner in DEALS:
        share = Part(GRAPH, owner, comm)
        halo = halo_of(GRAPH, owner, comm.rank)
        for values in (normal(NODES, 3), normal(NODES, 2, 4, dtype=torch.float32), normal(NODES, 5).half()):
            own = values[share.own]
            fetched, beside = share.fetch(own, Kind.FEATURES).wait(), share.beside(own, Kind.FEATURES)
            assert torch.equal(share.halo, halo)
            assert torch.equal(fetched, values[halo])
            assert torch.equal(beside, values[torch.cat([share.own, halo])])


def gradients_of_the_halo(comm: Comm) -> None:
    """The gradient of a row is the sum of what all workers make of it."""
    for owner, shape in ((SCATTERED, (3,)), (RANGES, (2, 3))):
        share = Part(GRAPH, owner, comm)
        probes = [normal(NODES, *shape, seed=rank) for rank in range(comm.size)]
        rows = torch.zeros(len(share.own), *shape, dtype=torch.float64, requires_grad=True)
        beside = share.beside(rows, Kind.ACTIVATIONS)
        (beside * probes[comm.rank][torch.cat([share.own, share.halo])]).sum().backward()
        expected = probes[comm.rank].clone()
        for peer in range(comm.size):
            halo = halo_of(GRAPH, owner, peer)
            expected[halo] += probes[peer][halo] if peer != comm.rank else 0
        assert rows.grad is not None
        torch.testing.assert_close(rows.grad, expected[share.own])


def rows_for_the_leader(comm: Comm) -> None:
    """The leader gets all rows in the order of the graph, others nothing."""
    for owner in DEALS:
        share = Part(GRAPH, owner, comm)
        for values in (normal(NODES, 3), torch.arange(NODES)):
            got = share.to_leader(values[share.own])
            assert got is None if comm.rank else torch.equal(got, values)


def the_second_view(comm: Comm) -> None:
    """Either view may come first; both have the same nodes, and the bytes to find them are sent once."""
    for first in (False, True):
        share = Part(GRAPH, SCATTERED, comm, self_loops=first)
        before = sum(comm.ledger.crossed.values())
        views = {layer: share.view(layer) for layer in (LOOPED, PLAIN)}
        crossed = sum(comm.ledger.crossed.values()) - before
        assert crossed == 0
        for layer, topology in ((LOOPED, GRAPH.with_self_loops), (PLAIN, GRAPH)):
            view = views[layer]
            assert share.view(layer) is view
            assert torch.equal(view.block.src_nodes, torch.cat([share.own, share.halo]))
            assert torch.equal(view.block.src_degree, topology.degree[view.block.src_nodes])
            assert view.local is not None
            edges = [part.edges.num_edges for part in (view.local.own_edges, view.local.halo_edges)]
            assert sum(edges) == view.block.edges.num_edges == topology.indptr.diff()[share.own].sum()


def ids_are_sent_once(comm: Comm) -> None:
    """With the first rows a worker tells the owners of its halo what it needs: 8 bytes for each node."""
    comm.ledger.crossed.clear()
    share, values = Part(GRAPH, SCATTERED, comm), normal(NODES, 3)
    for _ in range(3):
        share.beside(values[share.own], Kind.FEATURES)
        share.view(LOOPED), share.view(PLAIN)
    assert comm.ledger.crossed[Link.PEER, Kind.IDS] == 8 * len(share.halo)


def edges_are_held_when_needed(comm: Comm) -> None:
    """Own nodes need none; rows of the halo need one view, the one that layers want or one that is there."""
    made: list[bool] = []
    right = share_module.local_graph

    def local_graph(*given: Any, self_loops: bool) -> LocalGraph:
        made.append(self_loops)
        return right(*given, self_loops=self_loops)

    values, found = normal(NODES, 3), []
    with patch.object(share_module, "local_graph", local_graph):
        for begun in (LOOPED, PLAIN, None):
            share = Part(GRAPH, SCATTERED, comm, self_loops=True)
            rows = share.rows(values)
            assert isinstance(rows, Tensor)
            share.to_leader(rows)
            found += [len(share.mine(torch.arange(NODES))) == len(share.places(torch.arange(NODES))) == len(share.own)]
            found += [not made]
            if begun is not None:
                share.view(begun)
            share.beside(rows, Kind.FEATURES)
            found += [made == [begun is not PLAIN]]
            made.clear()
    assert all(found)


def a_view_needs_nobody_else(comm: Comm) -> None:
    """One worker may look at its edges while others do not."""
    share = Part(GRAPH, RANGES, comm)
    before = sum(comm.ledger.crossed.values())
    if comm.rank == 1:
        share.view(PLAIN)
        assert torch.equal(share.halo, halo_of(GRAPH, RANGES, 1))
    assert sum(comm.ledger.crossed.values()) == before


def shares_by_a_method(comm: Comm) -> None:
    """Every worker takes the partition that the leader made."""
    for method in (Range(), Hash(seed=3)):
        share = share_of(GRAPH, comm, method, None, self_loops=True)
        owned = comm.gather(share.own)
        assert isinstance(share, Part)
        expected = method.split(GRAPH, comm.size).part
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
    share, values, nodes = Whole(GRAPH), normal(NODES, 3), torch.tensor([4, 2])
    assert share.rows(values) is values
    assert share.places(nodes) is nodes
    assert share.beside(values, Kind.FEATURES) is values
    assert share.to_leader(values) is values
    assert share.fetch(values, Kind.FEATURES).wait().shape == (0, 3)
    assert share.own.tolist() == list(range(NODES))
    assert share.view(PLAIN).block is GRAPH.block
    assert share.view(LOOPED).block is GRAPH.with_self_loops.block
    assert share.view(PLAIN).local is None


def test_one_worker_makes_no_partition(tmp_path: Path) -> None:
    comm = Alone()
    share = share_of(GRAPH, comm, Metis(), tmp_path, self_loops=False)
    assert isinstance(share, Whole)
    assert share.comm is comm
    assert list(tmp_path.iterdir()) == []


def too_many(comm: Comm) -> None:
    share_of(random_topology(2, 1), comm, Range(), None, self_loops=False)


def test_more_workers_than_nodes() -> None:
    with pytest.raises(InputError, match=r"1 to 2 parts(.|\n)*3 parts"):
        run_workers(lambda place: too_many(place.comm), 3)
