"""The shares of workers against the whole graph: their edges, numbers, and what layers make of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_table import CONVS, IN, RELATIONS, layer_of
from torch import Tensor

from layer_plans import largest_difference, results, whole
from outgrow.core.block import Block
from outgrow.graph.graph import Graph
from outgrow.graph.halo import LocalGraph, build_local_graph
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Layer
from support import (
    destinations_of,
    normal,
    random_topology,
    topologies,
    topology_of,
    with_edge_features,
    with_relations,
)

KEY = 0xFEDCBA9876543210
VALUES = ("relation", "weight", "features")
Divide = Callable[[Topology, int], "Divided"]


class Divided(NamedTuple):
    """A graph and the owners of its nodes."""

    topology: Topology
    part: Tensor
    size: int

    def view(self, self_loops: bool) -> Topology:
        return self.topology.with_self_loops if self_loops else self.topology

    def shares(self, self_loops: bool) -> Iterator[LocalGraph]:
        for rank in range(self.size):
            yield build_local_graph(self.topology, self.part, rank, self.size, self_loops=self_loops)


@st.composite
def divided(draw: st.DrawFn) -> Divided:
    """Any small multi-graph, with or without weights and relations, and any owners: some workers own nothing."""
    topology, size = draw(topologies()), draw(st.integers(1, 5))
    if draw(st.booleans()):
        topology = with_relations(topology, RELATIONS)
    if draw(st.booleans()):
        weight = 0.5 + np.random.default_rng(3).random(topology.num_edges, dtype=np.float32)
        topology = replace(topology, weight=torch.from_numpy(weight))
    features = draw(st.sampled_from([None, torch.float32, torch.bfloat16, torch.int8]))
    if features is not None:
        topology = with_edge_features(topology, dtype=features)
    owner = st.integers(0, size - 1)
    owners = draw(st.lists(owner, min_size=topology.num_nodes, max_size=topology.num_nodes))
    if draw(st.booleans()):
        owners.sort()
    return Divided(topology, torch.tensor(owners, dtype=draw(st.sampled_from([torch.int16, torch.int32]))), size)


def scattered(topology: Topology, size: int) -> Divided:
    """Owners at random; the last worker owns nothing."""
    owners = np.random.default_rng(4).integers(0, max(1, size - 1), topology.num_nodes)
    return Divided(topology, torch.from_numpy(owners.astype(np.int16)), size)


def ranges(topology: Topology, size: int) -> Divided:
    """As many consecutive nodes for each worker."""
    owners = torch.arange(topology.num_nodes) * size // max(1, topology.num_nodes)
    return Divided(topology, owners.short(), size)


def ids_of(block: Block) -> Tensor:
    if block.edge_ids is not None:
        return block.edge_ids
    return torch.arange(block.first_edge, block.first_edge + block.edges.num_edges)


def assert_edges(block: Block, view: Topology, ids: Tensor, own: Tensor, src_nodes: Tensor) -> None:
    """The block has the edges of these ids, and the degrees of the graph to the last bit."""
    edges = block.edges
    assert torch.equal(ids_of(block), ids)
    assert torch.equal(block.dst_nodes, own)
    assert torch.equal(block.src_nodes, src_nodes)
    assert edges.num_src == len(src_nodes)
    assert edges.indices.dtype == torch.int32
    assert torch.equal(src_nodes[edges.indices.long()], view.indices[ids].long())
    assert torch.equal(own[destinations_of(edges)], destinations_of(view.block.edges)[ids])
    assert edges.feature_sizes == view.feature_sizes
    of_view = view.block.edges
    for mine, all_values in ((getattr(each, name) for each in (edges, of_view)) for name in VALUES):
        assert (mine is None) == (all_values is None)
        if mine is not None and all_values is not None:
            assert mine.dtype == all_values.dtype
            assert torch.equal(mine, all_values[ids])
    assert torch.equal(block.src_degree, view.degree[src_nodes])
    assert torch.equal(block.dst_degree, view.degree[own])


def assert_share(share: LocalGraph, rank: int, given: Divided, view: Topology) -> None:
    """From the definition, by indexing the whole graph."""
    part = given.part
    owner = part[destinations_of(view.block.edges)]
    ids = (owner == rank).nonzero()[:, 0]
    sources = view.indices[ids].long()
    own = torch.tensor([v for v in range(view.num_nodes) if part[v] == rank], dtype=torch.int64)
    remote = {(int(part[v]), v) for v in sources.tolist() if part[v] != rank}
    halo = torch.tensor([v for _, v in sorted(remote)], dtype=torch.int64)
    assert torch.equal(share.owned, own)
    assert torch.equal(share.halo, halo)
    assert share.halo_counts == tuple(sum(peer == of for of, _ in remote) for peer in range(given.size))
    assert_edges(share.block, view, ids, own, torch.cat([own, halo]))
    from_own = part[sources] == rank
    assert_edges(share.local_edges, view, ids[from_own], own, own)
    assert_edges(share.halo_edges, view, ids[~from_own], own, halo)
    both = torch.cat([ids_of(share.local_edges), ids_of(share.halo_edges)])
    assert torch.equal(ids[share.edge_order.long()], both)


def assert_divided(given: Divided) -> None:
    """Every share is right, and together they have every edge once."""
    for self_loops in (False, True):
        view, seen = given.view(self_loops), []
        for rank, share in enumerate(given.shares(self_loops)):
            assert_share(share, rank, given, view)
            seen += [ids_of(share.local_edges), ids_of(share.halo_edges)]
        assert torch.equal(torch.cat(seen).sort().values, torch.arange(view.num_edges))


@given(divided())
@settings(deadline=None)
def test_shares_of_any_graph(given: Divided) -> None:
    assert_divided(given)


@pytest.mark.parametrize("divide", [scattered, ranges])
@pytest.mark.parametrize("weighted", [False, True])
def test_shares_of_a_larger_graph(weighted: bool, divide: Divide) -> None:
    topology = with_relations(random_topology(400, 6000, weighted=weighted), RELATIONS)
    assert_divided(divide(with_edge_features(topology), 3))


def test_features_of_a_range_of_rows_are_no_copy() -> None:
    """So that they stay in their file."""
    topology = with_edge_features(random_topology(40, 200))
    given = ranges(topology, 3)
    for share in given.shares(self_loops=False):
        features = share.block.edge_features
        assert features is not None
        assert topology.edge_features is not None
        assert features.untyped_storage().data_ptr() == topology.edge_features.untyped_storage().data_ptr()


def test_shares_of_a_graph_with_wide_indices() -> None:
    assert_divided(scattered(random_topology(40, 200, index=torch.int64), 3))


def test_wide_positions_are_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ranges(random_topology(40, 200, weighted=True), 2)
    narrow = list(given.shares(self_loops=True))
    monkeypatch.setattr("outgrow.ops.subgraph._index_dtype", lambda count: torch.int64)
    for mine, other in zip(given.shares(self_loops=True), narrow, strict=True):
        assert mine.edge_order.dtype == mine.block.edges.indices.dtype == torch.int64
        assert torch.equal(mine.edge_order, other.edge_order.long())
        for block, same in ((mine.block, other.block), (mine.local_edges, other.local_edges)):
            assert torch.equal(block.edges.indices, same.edges.indices.long())
            assert torch.equal(ids_of(block), ids_of(same))


@pytest.mark.parametrize("num_nodes", [0, 1, 6])
def test_shares_of_a_graph_without_edges(num_nodes: int) -> None:
    assert_divided(scattered(topology_of(num_nodes, [], weighted=True), 3))


def heavy() -> Topology:
    """Nodes 7 and 200 hear 3,000 edges, many of them their own: kernels cut these rows, with and without loops.

    Weights are of so many sizes that their sums round.
    """
    random = np.random.default_rng(5)
    src = np.concatenate((random.integers(0, 300, 2_000), random.integers(0, 300, 6_000)))
    dst = np.concatenate((random.integers(0, 300, 2_000), np.repeat([7, 200], 3_000)))
    src[3_000:4_000] = 7
    topology = with_relations(topology_of(300, zip(src.tolist(), dst.tolist(), strict=True)), RELATIONS)
    weight = np.exp(10 * random.standard_normal(topology.num_edges)).astype(np.float32)
    return with_edge_features(replace(topology, weight=torch.from_numpy(weight)))


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Numbers of threads to compare."""
    before = numba.get_num_threads()
    yield [1, min(2, numba.config.NUMBA_NUM_THREADS)]
    numba.set_num_threads(before)


@pytest.mark.parametrize("divide", [scattered, ranges])
def test_heavy_rows(threads: list[int], divide: Divide) -> None:
    given = divide(heavy(), 3)
    for count in threads:
        numba.set_num_threads(count)
        assert_divided(given)


Way = Callable[[Layer, LocalGraph, Tensor, int | None], Tensor]


def at_once(layer: Layer, share: LocalGraph, x: Tensor, key: int | None) -> Tensor:
    """One worker's rows of the result, from its block."""
    return layer(share.block.with_rng_key(key), x, x[: len(share.owned)])


def in_two(layer: Layer, share: LocalGraph, x: Tensor, key: int | None) -> Tensor:
    """Edges from own nodes, then those from the halo; weighed together."""
    block, num_own = share.block.with_rng_key(key), len(share.owned)
    source = layer.source(x, block.src_nodes)
    target = layer.target(x[:num_own], block.dst_nodes)
    assert source.values is not None
    weight = layer.conv.edge_weight(block, source, target)
    low = high = None
    if weight is not None:
        count = share.local_edges.edges.num_edges
        low, high = weight[share.edge_order].split([count, block.edges.num_edges - count])
    near = layer.conv.aggregation(share.local_edges, source.values[:num_own], target.values, low)
    far = layer.conv.aggregation(share.halo_edges, source.values[num_own:], target.values, high)
    return layer.update(x[:num_own], near + far, block)


def in_two_alone(layer: Layer, share: LocalGraph, x: Tensor, key: int | None) -> Tensor:
    """The same, but each part weighs its own edges, with the graph's degrees."""
    num_own = len(share.owned)
    nodes = share.block.src_nodes
    target = layer.target(x[:num_own], nodes[:num_own])
    near = layer.aggregate(share.local_edges, layer.source(x[:num_own], nodes[:num_own]), target)
    far = layer.aggregate(share.halo_edges, layer.source(x[num_own:], nodes[num_own:]), target)
    return layer.update(x[:num_own], near + far, share.block.with_rng_key(key))


def ways_of(layer: Layer) -> list[Way]:
    """The ways that a layer promises to run by."""
    ways: list[Way] = [at_once]
    if layer.conv.aggregation.additive:
        ways.append(in_two)
        if layer.spec.static_edge_weight and not layer.spec.needs_full_neighborhood:
            ways.append(in_two_alone)
    return ways


def difference(way: Way, layer: Layer, given: Divided) -> float:
    """Between what the workers compute together, gradients included, and the layer on the whole graph."""

    def by_worker(layer: Layer, view: Topology, x: Tensor, key: int | None) -> Tensor:
        shares = list(given.shares(layer.spec.self_loops))
        rows = [way(layer, share, x[share.block.src_nodes], key) for share in shares]
        return torch.cat(rows)[torch.cat([share.owned for share in shares]).argsort()]

    x = normal(given.topology.num_nodes, IN)
    reference = results(whole, layer, given.topology, x, KEY)
    return largest_difference(results(by_worker, layer, given.topology, x, KEY), reference)


LAYER_GRAPHS = {
    "weighted": with_relations(random_topology(40, 250, weighted=True), RELATIONS),
    "no-edges": with_relations(topology_of(5, []), RELATIONS),
}


@pytest.mark.parametrize("conv", CONVS)
@pytest.mark.parametrize("graph", LAYER_GRAPHS)
@pytest.mark.parametrize("divide", [scattered, ranges])
def test_layers_on_shares(conv: str, graph: str, divide: Divide) -> None:
    layer, given = layer_of(CONVS[conv](), "finished"), divide(LAYER_GRAPHS[graph], 4)
    differences = {way.__name__: difference(way, layer, given) for way in ways_of(layer)}
    assert not {name: value for name, value in differences.items() if not value <= 1e-12}


def test_the_ways_that_layers_run_by() -> None:
    """Otherwise the test above would show less than it seems to."""
    promised = {name: len(ways_of(layer_of(CONVS[name](), "bare"))) for name in ("gcn", "gat-averaged", "sage-max")}
    assert promised == {"gcn": 3, "gat-averaged": 2, "sage-max": 1}


@pytest.mark.parametrize("self_loops", [False, True])
def test_nothing_is_made_for_the_whole_graph(self_loops: bool) -> None:
    given = scattered(random_topology(40, 250, weighted=True), 3)
    list(given.shares(self_loops))
    assert not {"with_self_loops", "degree", "block", "nodes"} & set(vars(given.topology))


@pytest.fixture
def mapped(tmp_path: Path) -> Topology:
    """A weighted graph with relations in a store: node ``v`` hears ``v``, ``v + 1`` and ``v + 2``, of 12 in a ring."""
    pairs = [((v + step) % 12, v) for v in range(12) for step in range(3)]
    topology = with_relations(topology_of(12, pairs, weighted=True), RELATIONS)
    write_store(Graph(name="ring", topology=topology, relation_names=("a", "b", "c")), tmp_path / "store")
    return open_store(tmp_path / "store").topology


def shares_memory(mine: Tensor | None, whole: Tensor | None) -> bool:
    assert mine is not None
    assert whole is not None
    return np.shares_memory(mine.numpy(), whole.numpy())


@pytest.mark.parametrize(("owners", "kept"), [([0] * 12, True), ([0] * 6 + [1] * 6, True), ([1] * 6 + [0] * 6, False)])
def test_a_range_of_a_mapped_graph_is_not_copied(mapped: Topology, owners: list[int], kept: bool) -> None:
    """Sources are where the source rows, own nodes and halo, are the first nodes of the graph in their order."""
    given = Divided(mapped, torch.tensor(owners, dtype=torch.int16), 2)
    share = next(given.shares(self_loops=False))
    assert_share(share, 0, given, mapped)
    edges = share.block.edges
    assert share.block.edge_ids is None
    assert shares_memory(edges.weight, mapped.weight)
    assert shares_memory(edges.relation, mapped.relation)
    assert shares_memory(edges.indices, mapped.indices) == kept


def test_consecutive_nodes_have_consecutive_edges_in_the_view(mapped: Topology) -> None:
    given = Divided(mapped, torch.tensor([0] * 5 + [1] * 7), 2)
    blocks = [share.block for share in given.shares(self_loops=True)]
    assert [(block.first_edge, block.edge_ids) for block in blocks] == [(0, None), (15, None)]


@pytest.mark.parametrize(
    ("part", "rank", "what"),
    [
        ([0, 1], 0, r"shape \[3\], got \[2\]"),
        ([0, 1, 0], 2, "rank must be from 0 to 1, got 2"),
        ([0, 1, 0], -1, "rank must be from 0 to 1, got -1"),
        ([0, 2, 0], 0, "owners must be from 0 to 1, got 0 to 2"),
        ([0, -1, 0], 0, "owners must be from 0 to 1, got -1 to 0"),
    ],
)
def test_what_does_not_fit_is_refused(part: list[int], rank: int, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        build_local_graph(topology_of(3, [(0, 1)]), torch.tensor(part), rank, 2, self_loops=False)
