"""Edges, weights and slices in files are those in memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.graph.topology import Topology
from outgrow.nn import Conv, GCNConv, GINConv, Layer, NodeMessages, PropagateConv, SAGEConv
from outgrow.ops.csc import cached_transpose
from outgrow.runtime.system.process_memory import resident_bytes
from outgrow.strategies.tensor.mapped_graph import MappedGraph
from support import random_topology

NONE = NodeMessages(None, None)


def files_of(folder: Path, topology: Topology, chunks: int = 3) -> MappedGraph:
    return MappedGraph(folder, topology, chunks=chunks, maps_slices=True)


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    nodes=st.integers(1, 40), edges=st.integers(0, 200), chunks=st.integers(1, 7), loops=st.booleans(), w=st.booleans()
)
def test_the_same_edges_both_ways(disk: Path, nodes: int, edges: int, chunks: int, loops: bool, w: bool) -> None:
    topology = random_topology(nodes, edges, weighted=w)
    expected = (topology.with_self_loops if loops else topology).block
    files = files_of(disk, topology, chunks)
    found = files.make_block(self_loops=loops)
    files.store_transpose(found.edges)
    for name in ("indptr", "indices", "weight"):
        mine, theirs = getattr(found.edges, name), getattr(expected.edges, name)
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.equal(mine.long() if name == "indices" else mine, theirs.to(mine.dtype))
    for mine, theirs in zip(cached_transpose(found.edges), cached_transpose(expected.edges), strict=True):
        assert torch.equal(mine, theirs.to(mine.dtype))
    assert torch.equal(found.src_degree, expected.src_degree)
    assert torch.equal(found.dst_degree, expected.dst_degree)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(
    "make",
    [
        lambda: GCNConv(4, 3),
        lambda: SAGEConv(4, 3),
        lambda: GINConv(4, 3),
        lambda: PropagateConv(4),
        lambda: PropagateConv(4, gamma=0.5),
    ],
)
def test_the_same_weights(disk: Path, make: Callable[[], Conv], weighted: bool) -> None:
    conv, topology = make(), random_topology(40, 250, weighted=weighted)
    layer = Layer(conv)
    loops = layer.spec.self_loops
    whole = (topology.with_self_loops if loops else topology).block
    expected = conv.edge_weight(whole, NodeMessages(torch.empty(0, dtype=torch.float64), None), NONE)
    files = files_of(disk, topology)
    found = files.edge_weights(layer, files.make_block(self_loops=loops), torch.float64)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert torch.equal(found, expected)
        edge = torch.randperm(len(found))
        assert torch.equal(files.transpose_weights(found, edge.split(70)), expected[edge])


def test_layers_of_other_weights_are_told_apart(disk: Path) -> None:
    files = files_of(disk, random_topology(40, 250))
    block = files.make_block(self_loops=True)
    one, other = (
        files.edge_weights(Layer(PropagateConv(4, gamma=gamma)), block, torch.float64) for gamma in (0.5, 0.9)
    )
    assert one is not None
    assert other is not None
    assert not torch.equal(one, other)
    assert files.edge_weights(Layer(PropagateConv(4, gamma=0.5)), block, torch.float64) is one


def test_no_names_and_no_memory_are_left(disk: Path) -> None:
    before = resident_bytes()
    slices = files_of(disk, random_topology(5, 9)).allocate_slices((1 << 20, 1, 16), torch.empty(0))
    slices.fill_(3)
    assert list(disk.iterdir()) == []
    assert resident_bytes() - before < slices.nbytes // 4
    assert slices.sum().item() == 3 * slices.numel()


def test_the_graph_itself_keeps_nothing_of_it(disk: Path) -> None:
    topology = random_topology(9, 20)
    files = files_of(disk, topology)
    files.store_transpose(files.make_block(self_loops=False).edges)
    assert "transpose" not in topology.block.edges.cache


def test_weights_of_unknown_layers_are_their_own(disk: Path) -> None:
    files = files_of(disk, random_topology(9, 20))
    block = files.make_block(self_loops=True)
    one, other = (files.edge_weights(Layer(type("Mine", (GCNConv,), {})(4, 3)), block, torch.float64) for _ in range(2))
    assert one is not other
    ours = [files.edge_weights(Layer(GCNConv(4, 3)), block, torch.float64) for _ in range(2)]
    assert ours[0] is ours[1]
