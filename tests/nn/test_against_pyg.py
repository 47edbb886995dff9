"""Our layers against PyTorch Geometric's, with copied weights, in float64: outputs and gradients of all parameters.

Semantics of self-loops that a graph already has: one is left of each node, with its own weight, as in PyG's GCNConv.
PyG's SAGEConv reads no edge weights. Our weights are ``[in, out]``, PyG's
``[out, in]``. Where one side has a parameter that the other has not, it is held at the value that takes it away.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from outgrow.graph.topology import Topology
from outgrow.nn import (
    CommNetConv,
    Conv,
    Decoupled,
    FiLMConv,
    GATConv,
    GCNConv,
    GGCNConv,
    GGNNConv,
    GINConv,
    Layer,
    Projection,
    RGCNConv,
    RGCNDiagonalConv,
    RGCNMatrixConv,
    SAGEConv,
    SAGEMaxConv,
)
from support import destinations_of, normal, random_topology, topology_of, whole_blocks, with_relations

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")

IN, OUT, HEADS, RELATIONS, BASES = 5, 5, 3, 4, 2
GRAPHS = {
    "multi-graph with loops": with_relations(random_topology(30, 160), RELATIONS),
    "another": with_relations(random_topology(50, 90, seed=4), RELATIONS),
    "no edges": with_relations(topology_of(4, []), RELATIONS),
}


class Pair(NamedTuple):
    """A parameter of ours, PyG's, and how ours is made of PyG's: another shape, or a part of it."""

    ours: nn.Parameter
    theirs: nn.Parameter
    shape: Callable[[Tensor], Tensor]


class Case(NamedTuple):
    """Two layers that should compute the same; ``held`` are parameters of one side alone, and their values."""

    ours: Conv
    theirs: nn.Module
    pairs: list[Pair]
    held: tuple[tuple[nn.Parameter | None, Tensor], ...] = ()


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


def gin(*, project_first: bool) -> Case:
    ours = GINConv(IN, OUT, project_first=project_first)
    mlp = nn.Sequential(nn.Linear(IN, OUT), nn.ReLU(), nn.Linear(OUT, OUT))
    pairs = [
        Pair(ours.first.weight, mlp[0].weight, torch.t),
        bias(ours.bias, mlp[0].bias),
        Pair(ours.second.weight, mlp[2].weight, torch.t),
        bias(ours.second.bias, mlp[2].bias),
    ]
    theirs = pyg.GINConv(mlp, train_eps=True)
    return Case(ours, theirs, [*pairs, Pair(ours.eps, theirs.eps, lambda eps: eps.reshape(()))])


def commnet(*, project_first: bool) -> Case:
    ours, theirs = CommNetConv(IN, OUT, project_first=project_first), pyg.SAGEConv(IN, OUT, bias=False)
    return Case(ours, theirs, [linear(ours.neighbour, theirs.lin_l), linear(ours.itself, theirs.lin_r)])


def ggcn() -> Case:
    ours, theirs = GGCNConv(IN, OUT), pyg.ResGatedGraphConv(IN, OUT)
    pairs = [
        linear(ours.gate, theirs.lin_query),
        bias(ours.gate.bias, theirs.lin_query.bias),
        linear(ours.value, theirs.lin_value),
        bias(ours.value.bias, theirs.lin_value.bias),
        linear(ours.target_gate, theirs.lin_key),
        linear(ours.itself, theirs.lin_skip),
        bias(ours.itself.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs, held=((theirs.lin_key.bias, torch.zeros(OUT)),))


def ggnn() -> Case:
    ours, theirs = GGNNConv(IN, IN), pyg.GatedGraphConv(IN, num_layers=1)
    cells = zip(ours.cell.parameters(), theirs.rnn.parameters(), strict=True)
    pairs = [Pair(ours.message.weight, theirs.weight, lambda weight: weight[0])]
    return Case(ours, theirs, pairs + [Pair(mine, other, same) for mine, other in cells])


def film(*, slope: float) -> Case:
    ours, act = FiLMConv(IN, OUT, slope=slope), nn.ReLU() if slope == 0 else None
    theirs = pyg.FiLMConv(IN, OUT, act=act)
    heard, own = theirs.films[0], theirs.film_skip
    pairs = [
        linear(ours.message, theirs.lins[0]),
        linear(ours.itself, theirs.lin_skip),
        Pair(ours.shift.weight, heard.weight, lambda weight: weight[:OUT].t()),
        Pair(ours.scale.weight, heard.weight, lambda weight: weight[OUT:].t()),
        Pair(ours.own_shift.weight, own.weight, lambda weight: weight[:OUT].t()),
        Pair(ours.own_scale.weight, own.weight, lambda weight: weight[OUT:].t()),
    ]
    assert ours.shift.bias is not None
    assert ours.scale.bias is not None
    pairs.append(Pair(ours.shift.bias, heard.bias, lambda bias: bias[:OUT]))
    pairs.append(Pair(ours.scale.bias, heard.bias, lambda bias: bias[OUT:]))
    held = ((ours.own_shift.bias, torch.zeros(OUT)), (ours.own_scale.bias, torch.zeros(OUT)))
    return Case(ours, theirs, pairs, held)


def rgcn(make: Callable[..., nn.Module], *, project_first: bool) -> Case:
    ours = RGCNConv(IN, OUT, RELATIONS, bases=BASES, project_first=project_first)
    theirs: Any = make(IN, OUT, RELATIONS, num_bases=BASES)
    pairs = [
        Pair(ours.basis.weight, theirs.weight, lambda weight: weight.transpose(0, 1).flatten(1)),
        Pair(ours.share, theirs.comp, same),
        Pair(ours.itself.weight, theirs.root, same),
        bias(ours.itself.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs)


def rgcn_matrices(blocks: int | None, *, project_first: bool) -> Case:
    ours = RGCNMatrixConv(IN, OUT, RELATIONS, num_blocks=blocks, project_first=project_first)
    theirs = pyg.RGCNConv(IN, OUT, RELATIONS, num_blocks=blocks)
    pairs = [
        Pair(ours.aggregation.matrix, theirs.weight, same if blocks else lambda weight: weight[:, None]),
        Pair(ours.itself.weight, theirs.root, same),
        bias(ours.itself.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs)


def rgcn_diagonal() -> Case:
    ours = RGCNDiagonalConv(IN, OUT, RELATIONS)
    theirs = pyg.RGCNConv(IN, OUT, RELATIONS, num_blocks=IN)
    pairs = [
        Pair(ours.aggregation.scale, theirs.weight, lambda weight: weight.flatten(1)),
        Pair(ours.itself.weight, theirs.root, same),
        bias(ours.itself.bias, theirs.bias),
    ]
    return Case(ours, theirs, pairs, held=((ours.neighbour.weight, torch.eye(IN)),))


def linear(ours: Projection, theirs: Any) -> Pair:
    return Pair(ours.weight, theirs.weight, torch.t)


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
    "gin, project first": lambda: gin(project_first=True),
    "gin, aggregate first": lambda: gin(project_first=False),
    "commnet, project first": lambda: commnet(project_first=True),
    "commnet, aggregate first": lambda: commnet(project_first=False),
    "ggcn": ggcn,
    "ggnn": ggnn,
    "film": lambda: film(slope=0.0),
    "film, linear messages": lambda: film(slope=1.0),
    "rgcn, project first": lambda: rgcn(pyg.RGCNConv, project_first=True),
    "rgcn, aggregate first": lambda: rgcn(pyg.RGCNConv, project_first=False),
    "rgcn, against the fast one": lambda: rgcn(pyg.FastRGCNConv, project_first=False),
    "rgcn, matrices, project first": lambda: rgcn_matrices(None, project_first=True),
    "rgcn, matrices, aggregate first": lambda: rgcn_matrices(None, project_first=False),
    "rgcn, blocks, project first": lambda: rgcn_matrices(5, project_first=True),
    "rgcn, blocks, aggregate first": lambda: rgcn_matrices(5, project_first=False),
    "rgcn, diagonal": rgcn_diagonal,
}


def assert_same(case: Case, topology: Topology, edge_weight: Tensor | None = None) -> None:
    """Outputs and all gradients agree to 1e-10 once PyG's parameters are copied."""
    ours, theirs = case.ours.double(), case.theirs.double()
    known = [*(parameter for pair in case.pairs for parameter in pair[:2]), *(held for held, _ in case.held)]
    assert set(map(id, known)) == set(map(id, [*ours.parameters(), *theirs.parameters()]))
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed)
    for held, value in case.held:
        assert held is not None
        held.data = value.double()
    for pair in case.pairs:
        pair.ours.data = pair.shape(pair.theirs.data).contiguous().clone()
    x, x_theirs = (normal(topology.num_nodes, IN, seed=9).requires_grad_() for _ in range(2))
    edge_index = torch.stack([topology.indices.long(), destinations_of(topology.block.edges)])
    view = topology.with_self_loops if ours.spec.self_loops else topology
    out = Layer(ours)(view.block, x, x)
    relation = None if topology.relation is None else topology.relation.long()
    extra = [given for given in (edge_weight, relation if ours.num_relations else None) if given is not None]
    expected = theirs(x_theirs, edge_index, *extra)
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


@pytest.mark.parametrize("loops", [True, False])
def test_gcn_with_weighted_edges(loops: bool) -> None:
    drawn = random_topology(30, 160)
    pairs = zip(drawn.indices.tolist(), destinations_of(drawn.block.edges).tolist(), strict=True)
    others = [pair for pair in pairs if pair[0] != pair[1]]
    # Node 5 has two loops: the last one counts.
    own = [(v, v) for v in (0, 3, 5, 5, 29)] if loops else []
    topology = topology_of(30, [*others, *own], weighted=True)
    assert topology.weight is not None
    assert_same(gcn(), topology, topology.weight.double())


@pytest.mark.parametrize("graph", GRAPHS)
def test_restarts_are_those_of_appnp(graph: str) -> None:
    topology = GRAPHS[graph]
    model = Decoupled(IN, 7, OUT, rounds=4, alpha=0.2, dropout=0.0).double()
    x = normal(topology.num_nodes, IN)
    edges = torch.stack([topology.indices.long(), destinations_of(topology.block.edges)])
    encoded = model.encode_input(x, topology.nodes, None)
    theirs = pyg.APPNP(K=4, alpha=0.2)(encoded, edges)
    torch.testing.assert_close(model(whole_blocks(model, topology), x), theirs, rtol=1e-11, atol=1e-11)
