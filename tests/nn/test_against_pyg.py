"""Our layers against PyTorch Geometric's, with copied weights, in float64: outputs and gradients of all parameters.

Semantics of self-loops that a graph already has: we replace them all by one of weight 1. PyG's GATConv does the same;
its GCNConv keeps the weight of an existing loop, which is the same wherever edges have no weights. So weighted graphs
are compared without loops of their own. PyG's SAGEConv reads no edge weights. Our weights are ``[in, out]``, PyG's
``[out, in]``.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from outgrow.graph.csc import Topology
from outgrow.nn import Conv, GATConv, GCNConv, Layer, SAGEConv, SAGEMaxConv
from support import destinations_of, normal, random_topology, topology_of

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")

IN, OUT, HEADS = 5, 5, 3
GRAPHS = {
    "multi-graph with loops": random_topology(30, 160),
    "another": random_topology(50, 90, seed=4),
    "no edges": topology_of(4, []),
}


class Pair(NamedTuple):
    """A parameter of ours, PyG's, and how PyG's shape becomes ours."""

    ours: nn.Parameter
    theirs: nn.Parameter
    shape: Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """Two layers that should compute the same."""

    ours: Conv
    theirs: nn.Module
    pairs: list[Pair]


def same(tensor: Tensor) -> Tensor:
    return tensor


def gcn() -> Case:
    ours, theirs = GCNConv(IN, OUT), pyg.GCNConv(IN, OUT)
    return Case(ours, theirs, [Pair(ours.project.weight, theirs.lin.weight, torch.t), bias(ours.bias, theirs.bias)])


def sage(*, project_first: bool) -> Case:
    ours, theirs = SAGEConv(IN, OUT, project_first=project_first), pyg.SAGEConv(IN, OUT)
    return Case(ours, theirs, sage_pairs(ours, theirs))


def sage_max() -> Case:
    ours, theirs = SAGEMaxConv(IN, OUT), pyg.SAGEConv(IN, OUT, aggr="max", project=True)
    pool = [Pair(ours.pool.weight, theirs.lin.weight, torch.t), bias(ours.pool.bias, theirs.lin.bias)]
    return Case(ours, theirs, pool + sage_pairs(ours, theirs))


def sage_pairs(ours: SAGEConv | SAGEMaxConv, theirs: Any) -> list[Pair]:
    return [
        Pair(ours.neighbour.weight, theirs.lin_l.weight, torch.t),
        Pair(ours.itself.weight, theirs.lin_r.weight, torch.t),
        bias(ours.itself.bias, theirs.lin_l.bias),
    ]


def gat(*, average: bool) -> Case:
    width = OUT if average else OUT * HEADS
    ours = GATConv(IN, width, HEADS, average=average)
    theirs = pyg.GATConv(IN, OUT, heads=HEADS, concat=not average)
    pairs = [
        Pair(ours.project.weight, theirs.lin.weight, torch.t),
        Pair(ours.source_score, theirs.att_src, lambda score: score[0]),
        Pair(ours.target_score, theirs.att_dst, lambda score: score[0]),
        bias(ours.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs)


def bias(ours: nn.Parameter | None, theirs: nn.Parameter | None) -> Pair:
    assert ours is not None
    assert theirs is not None
    return Pair(ours, theirs, same)


CASES: dict[str, Callable[[], Case]] = {
    "gcn": gcn,
    "sage, project first": lambda: sage(project_first=True),
    "sage, aggregate first": lambda: sage(project_first=False),
    "sage, max": sage_max,
    "gat, concatenated": lambda: gat(average=False),
    "gat, averaged": lambda: gat(average=True),
}


def assert_same(case: Case, topology: Topology, edge_weight: Tensor | None = None) -> None:
    """Outputs and all gradients agree to 1e-10 once PyG's parameters are copied."""
    ours, theirs = case.ours.double(), case.theirs.double()
    assert len(case.pairs) == len(list(ours.parameters())) == len(list(theirs.parameters()))
    for seed, pair in enumerate(case.pairs):
        pair.theirs.data = normal(*pair.theirs.shape, seed=seed)
        pair.ours.data = pair.shape(pair.theirs.data).contiguous().clone()
    x, x_theirs = (normal(topology.num_nodes, IN, seed=9).requires_grad_() for _ in range(2))
    edge_index = torch.stack([topology.indices.long(), destinations_of(topology.block.edges)])
    view = topology.with_self_loops if ours.widths.self_loops else topology
    out = Layer(ours)(view.block, x, x)
    expected = theirs(x_theirs, edge_index, *([] if edge_weight is None else [edge_weight]))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    probe = normal(*out.shape, seed=11)
    grads = torch.autograd.grad((out * probe).sum(), [x, *(pair.ours for pair in case.pairs)])
    wanted = torch.autograd.grad((expected * probe).sum(), [x_theirs, *(pair.theirs for pair in case.pairs)])
    for grad, want, shape in zip(grads, wanted, [same, *(pair.shape for pair in case.pairs)], strict=True):
        torch.testing.assert_close(grad, shape(want), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", CASES)
def test_same_outputs_and_gradients(name: str, graph: str) -> None:
    assert_same(CASES[name](), GRAPHS[graph])


def test_gcn_with_weighted_edges_and_no_loops() -> None:
    loops = random_topology(30, 160)
    pairs = zip(loops.indices.tolist(), destinations_of(loops.block.edges).tolist(), strict=True)
    topology = topology_of(30, [pair for pair in pairs if pair[0] != pair[1]], weighted=True)
    assert topology.weight is not None
    assert_same(gcn(), topology, topology.weight.double())
