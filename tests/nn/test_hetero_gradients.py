"""`HeteroConv` and `to_hetero` against PyG's with copied weights: results, and gradients of all parameters, float64."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import test_against_pyg as plain
import test_edge_layers as reading
import torch
from torch import Tensor, nn

from outgrow.core.block import Edges
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.nn import Conv, HeteroConv, Layer, Model, PyGConv, SAGEConv, hetero, relation_sums, to_hetero
from outgrow.nn.relation_convs import RelationConvs
from outgrow.nn.zoo import SAGE
from outgrow.ops import relation_blocks
from outgrow.ops.relation_blocks import RelationEdges
from suites import typed
from support import destinations_of, normal, whole_blocks, with_edge_features

pyg = plain.pyg
IN, NAMES = plain.IN, ("author", "paper", "venue")
EDGE_TYPES: tuple[EdgeType, ...] = tuple(each for each in typed.EDGE_TYPES if each[1] != "without_edges")
TYPES = GraphTypes(names=NAMES, borders=(0, 14, 33, 40), columns=(0, 0, 0, IN), edge_types=EDGE_TYPES)
GRAPH = with_edge_features(typed.typed_topology(40), reading.EDGE_DIM)


def parts_of(edges: Edges) -> dict[EdgeType, tuple[Tensor, Tensor]]:
    """The edges of each type as PyG has them, between nodes numbered within their types, and their features."""
    assert edges.relation is not None
    assert edges.features is not None
    found = {}
    for number, each in enumerate(EDGE_TYPES):
        chosen = edges.relation == number
        ends = zip((edges.indices.long()[chosen], destinations_of(edges)[chosen]), (each[0], each[2]), strict=True)
        index = torch.stack([end - TYPES.type_nodes(name)[0] for end, name in ends])
        found[each] = index, edges.features[chosen]
    return found


EDGE_INDEX = {each: index for each, (index, _) in parts_of(GRAPH.block.edges).items()}
FEATURES = {each: features for each, (_, features) in parts_of(GRAPH.block.edges).items()}


def by_type(x: Tensor) -> dict[str, Tensor]:
    return {name: x[slice(*TYPES.type_nodes(name))] for name in NAMES}


def foreign() -> plain.Case:
    """A convolution of PyG, and a copy of it that we wrap."""
    theirs = pyg.GATv2Conv(IN, 3, heads=2, add_self_loops=False, edge_dim=reading.EDGE_DIM)
    ours = PyGConv(copy.deepcopy(theirs), IN, 6)
    both = zip(parameters(ours), parameters(theirs), strict=True)
    return plain.Case(ours, theirs, [plain.Pair(*pair, plain.same) for pair in both])


def parameters(module: nn.Module) -> list[nn.Parameter]:
    return list(module.parameters())


def uneven() -> plain.Case:
    """SAGE to the width of the layers that read features of edges."""
    ours, theirs = SAGEConv(IN, reading.OUT, project_first=False), pyg.SAGEConv(IN, reading.OUT)
    return plain.Case(ours, theirs, plain.sage_pairs(ours, theirs))


first, after = (partial(plain.sage, project_first=each) for each in (True, False))
gat, heads = (partial(reading.gat, average=each) for each in (False, True))
sums, means = (partial(reading.network, mean=each) for each in (False, True))
CONVS: dict[str, tuple[Callable[[], plain.Case], ...]] = {
    "sage": (after,),
    "sage, project first": (first,),
    "no features": (first, plain.sage_max, partial(plain.gin, project_first=False), plain.ggcn, after),
    "commnet and film": (partial(plain.commnet, project_first=True), partial(plain.film, slope=0.0)),
    "gat": (gat,),
    "gat, one without features": (gat, uneven),
    "gatv2": (reading.gatv2,),
    "gatv2, one without features": (reading.gatv2, partial(reading.gatv2, edge_dim=0)),
    "transformer": (reading.transformer,),
    "gine": (reading.gine,),
    "edge network": (sums, means),
    "foreign": (foreign,),
    "six kinds": (gat, reading.gine, uneven, means, reading.gatv2, reading.transformer),
    "four kinds": (heads, foreign, reading.edge, sums),
}


def assert_close(found: Tensor | None, expected: Tensor | None, what: object) -> None:
    """None is a gradient of zeros."""
    known = next(each for each in (found, expected) if each is not None)
    pair = (torch.zeros_like(known) if each is None else each for each in (found, expected))
    torch.testing.assert_close(*pair, rtol=1e-10, atol=1e-10, msg=lambda text: f"{what}: not close\n{text}")


def compare(name: str, combine: str) -> None:
    torch.manual_seed(0)
    makers = CONVS[name]
    cases = {each: makers[number % len(makers)]() for number, each in enumerate(EDGE_TYPES)}
    ours = HeteroConv({each: case.ours for each, case in cases.items()}, combine).double()
    theirs = pyg.HeteroConv({each: case.theirs for each, case in cases.items()}, aggr=combine).double()
    ours.bind_types(TYPES)
    pairs = [pair for case in cases.values() for pair in case.pairs]
    held = [each for case in cases.values() for each in case.held]
    known = [*(each for pair in pairs for each in pair[:2]), *(each for each, _ in held)]
    assert set(map(id, known)) == set(map(id, [*ours.parameters(), *theirs.parameters()]))
    for seed, parameter in enumerate(theirs.parameters()):
        parameter.data = normal(*parameter.shape, seed=seed)
    for alone, value in held:
        assert alone is not None
        alone.data = value.double()
    for pair in pairs:
        pair.ours.data = pair.shape(pair.theirs.data).contiguous().clone()
    x, given = (normal(TYPES.num_nodes, IN, seed=9).requires_grad_() for _ in range(2))
    features = {each: FEATURES[each] for each, case in cases.items() if case.ours.edge_dim}
    # Edges that nothing was derived from yet.
    out = Layer(ours)(replace(GRAPH).block, x, x)
    expected = theirs(by_type(given), EDGE_INDEX, **({"edge_attr_dict": features} if features else {}))
    for kind, part in by_type(out).items():
        assert_close(part, expected[kind], kind)
    probe = normal(*out.shape, seed=11)
    total = sum((expected[kind] * part).sum() for kind, part in by_type(probe).items())
    grads = torch.autograd.grad((out * probe).sum(), [x, *(pair.ours for pair in pairs)], allow_unused=True)
    wanted = torch.autograd.grad(total, [given, *(pair.theirs for pair in pairs)], allow_unused=True)
    shapes = [plain.same, *(pair.shape for pair in pairs)]
    for number, (grad, want, shape) in enumerate(zip(grads, wanted, shapes, strict=True)):
        assert_close(grad, None if want is None else shape(want), f"gradient {number}")


@pytest.mark.parametrize("combine", ["sum", "mean", "max"])
@pytest.mark.parametrize("name", CONVS)
def test_all_gradients_are_those_of_pyg(name: str, combine: str) -> None:
    compare(name, combine)


def require_zeros_of_relations_without_edges() -> None:
    """What edges train has a gradient of zeros where a block has no edges of the relation, as without types."""
    torch.manual_seed(0)
    makers = (gat, reading.gine, reading.gatv2, reading.transformer)
    convs: dict[EdgeType, Conv] = {each: makers[number % len(makers)]().ours for number, each in enumerate(EDGE_TYPES)}
    layer, x = Layer(HeteroConv(convs)).double(), normal(TYPES.num_nodes, IN)
    layer.conv.bind_types(TYPES)
    first, last = TYPES.type_nodes("venue")
    block = replace(GRAPH).block.slice_destinations(first, last)
    assert block.edges.relation is not None
    assert len(block.edges.relation.unique()) == 1
    named = dict(layer.named_parameters())
    grads = torch.autograd.grad(layer(block, x, x[first:last]).sum(), list(named.values()), allow_unused=True)
    of_edges = ("aggregation", "edge_score", "edge_project")
    left = [
        name for name, grad in zip(named, grads, strict=True) if grad is None and any(each in name for each in of_edges)
    ]
    assert not left, f"not close to zeros, but without a gradient: {left}"


def test_relations_without_edges_have_gradients_of_zeros() -> None:
    require_zeros_of_relations_without_edges()


class Net(nn.Module):
    """What PyG's `to_hetero` is given."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 3)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
        return out


def compare_models(combine: str) -> None:
    torch.manual_seed(0)
    model: Model = to_hetero(SAGE(IN, 8, 3, dropout=0.0), TYPES, combine).double()
    theirs: Any = pyg.to_hetero(Net(), (list(NAMES), list(EDGE_TYPES)), aggr=combine).double()
    x, given = (normal(TYPES.num_nodes, IN, seed=9).requires_grad_() for _ in range(2))
    theirs(by_type(given), EDGE_INDEX)  # now PyG knows the widths
    pairs = list[plain.Pair]()
    for layer, stage in zip(model.layers_list(), ("conv1", "conv2"), strict=True):
        assert isinstance(layer.conv, HeteroConv)
        for each in EDGE_TYPES:
            conv = layer.conv.conv_of(each)
            assert isinstance(conv, SAGEConv)
            pairs += plain.sage_pairs(conv, theirs.get_submodule(stage)["__".join(each)])
    known = [parameter for pair in pairs for parameter in pair[:2]]
    assert set(map(id, known)) == set(map(id, [*model.parameters(), *theirs.parameters()]))
    for seed, pair in enumerate(pairs):
        pair.theirs.data = normal(*pair.theirs.shape, seed=seed)
        pair.ours.data = pair.shape(pair.theirs.data).contiguous().clone()
    out = model(whole_blocks(model, replace(GRAPH)), x)
    expected = theirs(by_type(given), EDGE_INDEX)
    for kind, part in by_type(out).items():
        assert_close(part, expected[kind], kind)
    probe = normal(*out.shape, seed=11)
    total = sum((expected[kind] * part).sum() for kind, part in by_type(probe).items())
    grads = torch.autograd.grad((out * probe).sum(), [x, *(pair.ours for pair in pairs)])
    wanted = torch.autograd.grad(total, [given, *(pair.theirs for pair in pairs)])
    for number, (grad, want) in enumerate(zip(grads, wanted, strict=True)):
        assert_close(grad, want if not number else pairs[number - 1].shape(want), f"gradient {number}")


@pytest.mark.parametrize("combine", ["sum", "mean", "max"])
def test_to_hetero_is_that_of_pyg(combine: str) -> None:
    compare_models(combine)


@contextmanager
def features_of_the_first_edges() -> Iterator[None]:
    """The edges of a relation have the features of the first edges of the block."""
    right = relation_blocks._compact

    def compact(edges: Edges, position: Tensor, dst_e: Tensor) -> RelationEdges:
        found = right(edges, position, dst_e)
        assert edges.features is not None
        return replace(found, edges=replace(found.edges, features=edges.features[: len(position)], cache={}))

    with patch.object(relation_blocks, "_compact", compact):
        yield


@contextmanager
def first_for_maximum() -> Iterator[None]:
    """Where results of relations are combined by their maximum, the first one is taken."""
    with patch.dict(hetero.COMBINE, {"max": lambda parts: parts[0]}):  # type: ignore[arg-type]
        yield


@contextmanager
def matrices_of_the_next_relation() -> Iterator[None]:
    """Sums of means are multiplied by the matrix of the relation after theirs."""
    right = relation_sums.relation_matmul_sum

    def multiply(edges: Edges, x: Tensor, weight: Tensor, matrix: Tensor) -> Tensor:
        return right(edges, x, weight, matrix.roll(1, 0))

    with patch.object(relation_sums, "relation_matmul_sum", multiply):
        yield


@contextmanager
def maximum_of_nothing_is_zero() -> Iterator[None]:
    """A node without in-edges of a relation has zeros as their aggregate, whatever the convolution has."""
    make = RelationConvs.__init__

    def leave_zeros(relations: RelationConvs, convs: Sequence[Conv], types: GraphTypes) -> None:
        make(relations, convs, types)
        relations.fills_empty = [isinstance(conv, PyGConv) for conv in convs]

    with patch.object(RelationConvs, "__init__", leave_zeros):
        yield


@contextmanager
def relations_without_edges_left_out() -> Iterator[None]:
    """What edges train has no gradient where a block has no edges of the relation."""
    with patch.object(RelationConvs, "parameters_without_edges", lambda relations, present, *, of_weights: []):
        yield


MUTANTS: dict[str, tuple[Callable[[], AbstractContextManager[None]], Callable[[], None]]] = {
    make.__name__: (make, check)
    for make, check in (
        (features_of_the_first_edges, partial(compare, "gine", "sum")),
        (first_for_maximum, partial(compare, "gat", "max")),
        (matrices_of_the_next_relation, partial(compare_models, "sum")),
        (relations_without_edges_left_out, require_zeros_of_relations_without_edges),
        (maximum_of_nothing_is_zero, partial(compare, "four kinds", "sum")),
    )
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    broken, check = MUTANTS[name]
    with broken(), pytest.raises(AssertionError, match="not close"):
        check()
