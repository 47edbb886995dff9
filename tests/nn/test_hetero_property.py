"""Any typed graph, with types and edge types of nothing: cut in any way, and against sums edge by edge."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layer_table import IN, OUT
from torch import Tensor, nn

import layer_plans
from layer_plans import Plan, largest_difference, plans_for
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.graph.topology import Topology
from outgrow.nn import Conv, Epilogue, GATConv, GGCNConv, GINConv, HeteroConv, Layer, SAGEConv, SAGEMaxConv
from support import normal, topology_of

TOLERANCE = 1e-11


class TypedGraph(NamedTuple):
    topology: Topology
    types: GraphTypes


@st.composite
def typed_graphs(draw: st.DrawFn) -> TypedGraph:
    sizes = draw(st.lists(st.integers(0, 4), min_size=1, max_size=4))
    names = tuple(f"type {number}" for number in range(len(sizes)))
    borders = tuple(sum(sizes[:count]) for count in range(len(sizes) + 1))
    ends = st.tuples(st.integers(0, len(sizes) - 1), st.integers(0, len(sizes) - 1))
    kinds = draw(st.lists(ends, min_size=1, max_size=5))
    edge_types: tuple[EdgeType, ...] = tuple((names[s], f"r{n}", names[t]) for n, (s, t) in enumerate(kinds))
    edges = list[tuple[int, int, int]]()
    for number, (source, target) in enumerate(kinds):
        if sizes[source] and sizes[target]:
            nodes = st.tuples(
                st.integers(borders[source], borders[source + 1] - 1),
                st.integers(borders[target], borders[target + 1] - 1),
            )
            edges += [(src, dst, number) for src, dst in draw(st.lists(nodes, max_size=6))]
    edges.sort(key=lambda edge: (edge[1], edge[0], edge[2]))
    plain = topology_of(borders[-1], [(src, dst) for src, dst, _ in edges], weighted=draw(st.booleans()))
    relation = torch.tensor([number for *_, number in edges], dtype=torch.int8)
    topology = Topology(indptr=plain.indptr, indices=plain.indices, weight=plain.weight, relation=relation)
    columns = (*(0 for _ in sizes), IN)
    return TypedGraph(topology, GraphTypes(names=names, borders=borders, columns=columns, edge_types=edge_types))


MAKERS = {
    "sums of means": (lambda: SAGEConv(IN, OUT, project_first=False),),
    "one kind": (lambda: GATConv(IN, OUT, 2, attention_dropout=0.4, self_loops=False),),
    "several kinds": (
        lambda: SAGEConv(IN, OUT, project_first=True),
        lambda: GGCNConv(IN, OUT),
        lambda: GATConv(IN, OUT, 3, self_loops=False),
        lambda: SAGEMaxConv(IN, OUT),
        lambda: GINConv(IN, OUT, project_first=False),
    ),
}


def typed_layer(graph: TypedGraph, kind: str, combine: str) -> Layer:
    torch.manual_seed(0)
    makers = MAKERS[kind]
    convs: dict[EdgeType, Conv] = {
        each: makers[number % len(makers)]() for number, each in enumerate(graph.types.edge_types)
    }
    layer = Layer(HeteroConv(convs, combine), Epilogue(norm=True, activation=nn.functional.elu, dropout=0.3)).double()
    layer.conv.bind_types(graph.types)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return layer


@pytest.mark.parametrize(
    ("kind", "combine"),
    [*(("sums of means", each) for each in ("sum", "mean", "max")), ("one kind", "sum"), ("several kinds", "mean")],
)
@given(graph=typed_graphs(), key=st.none() | st.integers(0, 2**64 - 1))
@settings(deadline=None, max_examples=10)
def test_any_typed_graph_cut_in_any_way(kind: str, combine: str, graph: TypedGraph, key: int | None) -> None:
    layer = typed_layer(graph, kind, combine)
    x = normal(graph.types.num_nodes, IN)
    whole = results(layer_plans.whole, layer, graph, x, key)
    for plan in plans_for(layer):
        assert largest_difference(results(plan, layer, graph, x, key), whole) <= TOLERANCE, plan.__name__


def results(plan: Plan, layer: Layer, graph: TypedGraph, x: Tensor, key: int | None) -> list[Tensor]:
    """The output of a plan, and the gradients of input and parameters; zeros for modules of absent types."""
    leaves = [x.clone().requires_grad_(), *layer.parameters()]
    out = plan(layer, graph.topology, leaves[0], key)
    factor = normal(*out.shape, seed=4)
    grads = torch.autograd.grad((out * factor).sum(), leaves, allow_unused=True)
    return [
        out.detach(),
        *(torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(leaves, grads, strict=True)),
    ]


@pytest.mark.parametrize("combine", ["sum", "mean", "max"])
@given(graph=typed_graphs())
@settings(deadline=None, max_examples=20)
def test_means_edge_by_edge(combine: str, graph: TypedGraph) -> None:
    layer = typed_layer(graph, "sums of means", combine)
    conv, types, topology = layer.conv, graph.types, graph.topology
    assert isinstance(conv, HeteroConv)
    assert topology.relation is not None
    x = normal(types.num_nodes, IN)
    dst = torch.repeat_interleave(torch.arange(types.num_nodes), topology.indptr.diff())
    weight = torch.ones(len(dst)).double() if topology.weight is None else topology.weight.double()
    out = Layer(conv)(topology.block, x, x)
    for node in range(types.num_nodes):
        name = types.names[int(types.types_of(torch.tensor([node])))]
        parts = list[Tensor]()
        for number in types.in_relations(name):
            inner = conv.conv_of(types.edge_types[number])
            assert isinstance(inner, SAGEConv)
            mine = (dst == node) & (topology.relation == number)
            rows = x[topology.indices.long()[mine]] * weight[mine][:, None]
            mean = rows.sum(0) / weight[mine].sum() if mine.any() else torch.zeros(IN).double()
            parts.append(inner.itself(x[node : node + 1])[0] + mean @ inner.neighbour.weight)
        if not parts:
            assert not out[node].any()
            continue
        stacked = torch.stack(parts)
        expected = {"sum": stacked.sum(0), "mean": stacked.mean(0), "max": stacked.amax(0)}[combine]
        assert (out[node] - expected).abs().max() <= TOLERANCE
