"""Layers that read features of edges against PyTorch Geometric's, in float64: outputs and gradients of all parameters.

A loop that the graph has keeps its features here, while PyG gives it those of an added one: where loops are added,
those of the graph have zeros.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from test_against_pyg import Case, Pair, bias, linear, pyg, same
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from outgrow.core.block import Edges
from outgrow.graph.topology import Topology
from outgrow.nn import EdgeConv, GATConv, GATv2Conv, GINEConv, Layer, NNConv, TransformerConv
from outgrow.ops import edge_features
from outgrow.ops.aggregation import edge_attention, edge_relu
from support import destinations_of, normal, random_topology, topology_of, with_edge_features

IN, OUT, HEADS, EDGE_DIM = 5, 6, 3, 4


def with_zero_loops(topology: Topology) -> tuple[Topology, Topology]:
    """The graph with zeros as features of its loops, and the graph with one loop of zeros per node."""
    assert topology.edge_features is not None
    loops = topology.indices == destinations_of(topology.block.edges)
    view = topology.with_self_loops
    features = topology.edge_features.new_zeros(view.num_edges, EDGE_DIM)
    features[view.indices != destinations_of(view.block.edges)] = topology.edge_features[~loops]
    given = replace(topology, edge_features=topology.edge_features.masked_fill(loops[:, None], 0))
    return given, replace(view, edge_features=features)


GRAPHS = {
    name: with_edge_features(topology, EDGE_DIM)
    for name, topology in {
        "multi-graph": random_topology(30, 160),
        "another": random_topology(50, 90, seed=4),
        "no edges": topology_of(4, []),
        "isolated": topology_of(9, [(0, 4), (4, 0), (4, 4)]),
    }.items()
}


def head(pair: tuple[nn.Parameter | None, nn.Parameter]) -> Pair:
    ours, theirs = pair
    assert ours is not None
    return Pair(ours, theirs, lambda weight: weight[0])


def weight(ours: nn.Parameter | None, theirs: nn.Linear) -> Pair:
    assert ours is not None
    return Pair(ours, theirs.weight, torch.t)


def whole(ours: nn.Module, theirs: nn.Linear) -> list[Pair]:
    assert isinstance(ours.weight, nn.Parameter)
    return [Pair(ours.weight, theirs.weight, torch.t), bias(ours.bias, theirs.bias)]  # type: ignore[arg-type]


def gat(*, average: bool) -> Case:
    ours = GATConv(IN, OUT, HEADS, average=average, edge_dim=EDGE_DIM, self_loops=False)
    columns = OUT if average else OUT // HEADS
    theirs = pyg.GATConv(IN, columns, HEADS, concat=not average, edge_dim=EDGE_DIM, add_self_loops=False)
    assert ours.edge_project is not None
    pairs = [
        linear(ours.project, theirs.lin),
        linear(ours.edge_project, theirs.lin_edge),
        head((ours.source_score, theirs.att_src)),
        head((ours.target_score, theirs.att_dst)),
        head((ours.edge_score, theirs.att_edge)),
        bias(ours.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs)


def gatv2(*, average: bool = False, share: bool = False, edge_dim: int = EDGE_DIM, loops: bool = False) -> Case:
    ours = GATv2Conv(IN, OUT, HEADS, average=average, edge_dim=edge_dim, share_weights=share, self_loops=loops)
    columns = OUT if average else OUT // HEADS
    theirs = pyg.GATv2Conv(
        IN,
        columns,
        HEADS,
        concat=not average,
        edge_dim=edge_dim or None,
        share_weights=share,
        add_self_loops=loops,
        fill_value=0.0,
    )
    pairs = [*whole(ours.message, theirs.lin_l), head((ours.aggregation.attention, theirs.att))]
    pairs.append(bias(ours.bias, theirs.bias))
    if ours.itself is not None:
        pairs += whole(ours.itself, theirs.lin_r)
    if edge_dim:
        pairs.append(weight(ours.aggregation.edge_weight, theirs.lin_edge))
    return Case(ours, theirs, pairs)


def transformer(*, average: bool = False, beta: bool = False, root: bool = True, edge_dim: int = EDGE_DIM) -> Case:
    ours = TransformerConv(IN, OUT, HEADS, average=average, edge_dim=edge_dim, beta=beta, root_weight=root)
    columns = OUT if average else OUT // HEADS
    theirs = pyg.TransformerConv(
        IN, columns, HEADS, concat=not average, beta=beta, edge_dim=edge_dim or None, root_weight=root
    )
    pairs = [
        pair
        for name in ("key", "value", "query")
        for pair in whole(getattr(ours, name), getattr(theirs, f"lin_{name}"))
    ]
    if ours.root is not None:
        pairs += whole(ours.root, theirs.lin_skip)
    else:
        del theirs.lin_skip
        theirs.lin_skip = nn.Identity()
    if ours.gate is not None:
        pairs.append(linear(ours.gate, theirs.lin_beta))
    if edge_dim:
        pairs.append(weight(ours.aggregation.edge_weight, theirs.lin_edge))
    return Case(ours, theirs, pairs)


def gine() -> Case:
    mlp = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, OUT))
    ours, theirs = GINEConv(IN, OUT, EDGE_DIM), pyg.GINEConv(mlp, train_eps=True, edge_dim=EDGE_DIM)
    pairs = [
        linear(ours.first, mlp[0]),
        bias(ours.bias, mlp[0].bias),
        *whole(ours.second, mlp[2]),
        weight(ours.aggregation.weight, theirs.lin),
        bias(ours.aggregation.bias, theirs.lin.bias),
        Pair(ours.eps, theirs.eps, lambda eps: eps.reshape(())),
    ]
    return Case(ours, theirs, pairs)


def edge() -> Case:
    ours, linear_map = EdgeConv(IN, OUT), nn.Linear(2 * IN, OUT)
    theirs = pyg.EdgeConv(nn.Sequential(linear_map, nn.ReLU()))
    pairs = [
        Pair(ours.itself.weight, linear_map.weight, lambda weight: weight[:, :IN].t()),
        Pair(ours.difference.weight, linear_map.weight, lambda weight: weight[:, IN:].t()),
        bias(ours.itself.bias, linear_map.bias),
    ]
    return Case(ours, theirs, pairs)


def network(*, mean: bool) -> Case:
    ours = NNConv(IN, OUT, EDGE_DIM, mean=mean)
    theirs = pyg.NNConv(IN, OUT, StackedWeights(), aggr="mean" if mean else "add")
    pairs = [
        linear(ours.itself, theirs.lin),
        bias(ours.itself.bias, theirs.bias),
        Pair(ours.edge_weights, theirs.nn.weight, lambda weight: weight.view(EDGE_DIM + 1, IN, OUT)),
    ]
    return Case(ours, theirs, pairs)


class StackedWeights(nn.Module):
    """`nn.Linear` whose bias is the last row of its weight, as in our layer."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(EDGE_DIM + 1, IN * OUT))

    def forward(self, features: Tensor) -> Tensor:
        return nn.functional.linear(features, self.weight[:-1].t(), self.weight[-1])


CASES: dict[str, Callable[[], Case]] = {
    "gat": lambda: gat(average=False),
    "gat, averaged": lambda: gat(average=True),
    "gatv2": gatv2,
    "gatv2, averaged": lambda: gatv2(average=True),
    "gatv2, shared": lambda: gatv2(share=True),
    "gatv2, loops": lambda: gatv2(loops=True),
    "gatv2, no features": lambda: gatv2(edge_dim=0),
    "transformer": transformer,
    "transformer, averaged": lambda: transformer(average=True),
    "transformer, beta": lambda: transformer(beta=True),
    "transformer, averaged, beta": lambda: transformer(average=True, beta=True),
    "transformer, no root": lambda: transformer(root=False),
    "transformer, no features": lambda: transformer(edge_dim=0),
    "gine": gine,
    "edge": edge,
    "edge network": lambda: network(mean=False),
    "edge network, mean": lambda: network(mean=True),
}


def assert_same(case: Case, topology: Topology) -> None:
    """Outputs and all gradients agree to 1e-10 once PyG's parameters are copied."""
    ours, theirs = case.ours.double(), case.theirs.double()
    known = [*(parameter for pair in case.pairs for parameter in pair[:2]), *(held for held, _ in case.held)]
    assert set(map(id, known)) == set(map(id, [*ours.parameters(), *theirs.parameters()]))
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed)
    for pair in case.pairs:
        pair.ours.data = pair.shape(pair.theirs.data).contiguous().clone()
    given, view = with_zero_loops(topology) if ours.spec.self_loops else (topology, topology)
    x, x_theirs = (normal(topology.num_nodes, IN, seed=9).requires_grad_() for _ in range(2))
    edge_index = torch.stack([given.indices.long(), destinations_of(given.block.edges)])
    out = Layer(ours)(view.block, x, x)
    expected = theirs(x_theirs, edge_index, *([given.edge_features] if ours.edge_dim else []))
    torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
    probe = normal(*out.shape, seed=11)
    grads = torch.autograd.grad((out * probe).sum(), [x, *(pair.ours for pair in case.pairs)])
    wanted = torch.autograd.grad(
        (expected * probe).sum(), [x_theirs, *(pair.theirs for pair in case.pairs)], allow_unused=True
    )
    for grad, want, shape in zip(grads, wanted, [same, *(pair.shape for pair in case.pairs)], strict=True):
        # PyG leaves the weights of features out of a graph without edges.
        expected_grad = torch.zeros_like(grad) if want is None else shape(want)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients(name: str, graph: str) -> None:
    assert_same(CASES[name](), GRAPHS[graph])


@pytest.mark.parametrize("make", [GATv2Conv, GINEConv])
def test_sums_in_registers_are_those_of_the_general_kernels(make: type[GATv2Conv] | type[GINEConv]) -> None:
    block = GRAPHS["multi-graph"].with_self_loops.block
    torch.manual_seed(0)
    layer = (
        Layer(make(IN, OUT, edge_dim=EDGE_DIM)).double()
        if make is GINEConv
        else Layer(GATv2Conv(IN, OUT, HEADS, edge_dim=EDGE_DIM)).double()
    )
    x = normal(block.edges.num_dst, IN).requires_grad_()
    found = []
    for least in (0, 1 << 60):
        with patch.object(edge_relu, "LEAST_NUMBERS", least):
            out = layer(block, x, x)
            found.append([out, *torch.autograd.grad(out.sin().sum(), [x, *layer.parameters()])])
    for ours, other in zip(*found, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-12, atol=1e-12)


def test_no_tensor_is_as_long_as_the_edges_and_as_wide_as_the_rows() -> None:
    """Neither in torch nor in the memory of kernels: heads and features are all that is held for an edge."""
    heads, columns, topology = 4, 32, with_edge_features(random_topology(60, 30_000), 3)
    # Four numbers of float64 for an edge, in a buffer of the pool, which has few sizes; a row has 128.
    width, most = heads * columns, int(8 * 4 * topology.num_edges * 1.2)
    layers = [
        GATConv(IN, width, heads, edge_dim=3, self_loops=False),
        GATv2Conv(IN, width, heads, edge_dim=3, self_loops=False, attention_dropout=0.5),
        TransformerConv(IN, width, heads, edge_dim=3),
        GINEConv(width, IN, 3),
        NNConv(width, IN, 3),
        EdgeConv(IN, width),
    ]
    for conv in layers:
        layer, x = Layer(conv.double()), normal(60, conv.spec.in_features).requires_grad_()
        # Once before: the transpose of the edges is kept with them, and kernels are compiled.
        layer(topology.block.with_rng_key(1), x, x).sum().backward()
        tracemalloc.start()
        with LargestTensor() as seen:
            layer(topology.block.with_rng_key(1), x, x).sum().backward()
        held = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert seen.bytes <= most, type(conv).__name__
        assert held <= most, type(conv).__name__


class LargestTensor(TorchDispatchMode):
    """Bytes of the largest tensor that an operation of torch makes."""

    bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.bytes = max(self.bytes, out.nbytes)
        return out


@contextmanager
def softmax_over_part_of_a_row() -> Iterator[None]:
    """Every other edge of a destination has a softmax of its own."""

    def softmax(edges: Edges, score_EK: Tensor) -> Tensor:
        group = 2 * destinations_of(edges) + torch.arange(edges.num_edges) % 2
        power = score_EK.exp()
        return power / power.new_zeros(2 * edges.num_dst, power.shape[1]).index_add(0, group, power)[group]

    with patch.object(edge_attention, "softmax_over_in_edges", softmax):
        yield


@contextmanager
def values_without_features() -> Iterator[None]:
    """The features of an edge reach the keys, but not the values."""
    right = edge_attention.edge_feature_sum
    with patch.object(edge_attention, "edge_feature_sum", lambda *given: 0 * right(*given)):
        yield


@contextmanager
def gradient_without_the_last_part() -> Iterator[None]:
    """The gradient of the projection of features leaves the last edges out."""
    right = edge_features.edge_projection_grad

    def shorter(values: Tensor, starts: Tensor | None, grad: Tensor, out: Tensor) -> None:
        most = len(grad) - len(grad) // edge_features.MOST_SHARES
        right(values[:most], starts, grad[:most], out)

    with patch.object(edge_features, "edge_projection_grad", shorter):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (softmax_over_part_of_a_row, values_without_features, gradient_without_the_last_part)
}
FOUND_BY = {
    "softmax_over_part_of_a_row": "gatv2",
    "values_without_features": "transformer",
    "gradient_without_the_last_part": "gat",
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name](), pytest.raises(AssertionError, match="not close"):
        assert_same(CASES[FOUND_BY[name]](), GRAPHS["multi-graph"])
