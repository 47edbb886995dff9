"""Layers with weights per node type and edge type against PyG's and against plain loops, in float64."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from tests.ops.aggregation import test_pair_matmul as pairs
from tests.ops.aggregation import test_relation_matmul as sums
from torch import Tensor, nn

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.nn import HGTConv, Layer, RGCNMatrixConv, TypedLinear, relation_matrices, typed_linear
from outgrow.nn.hetero_checks import module_name, type_module_name
from outgrow.nn.slot_layout import TypedRows
from outgrow.ops.aggregation import typed_attention
from outgrow.ops.edge_weight import mean_weight
from outgrow.ops.sparse import SparseRows
from suites.typed import EDGE_TYPES, GRAPHS, NAMES, TYPES
from support import destinations_of, normal

with warnings.catch_warnings():
    warnings.filterwarnings("ignore", category=DeprecationWarning)
    pyg = pytest.importorskip("torch_geometric.nn", reason="needs the extra pyg")

IN, OUT, HEADS = 6, 6, 3
MENTIONED = [name for name in NAMES if name != "nobody"]
"""PyG has no layer for a type without nodes."""


def parts(x: Tensor) -> dict[str, Tensor]:
    return {name: x[slice(*TYPES.type_nodes(name))] for name in MENTIONED}


def edge_index(graph: str) -> dict[EdgeType, Tensor]:
    """PyG's edges, numbered by type."""
    edges = GRAPHS[graph].block.edges
    assert edges.relation is not None
    found = {}
    for number, each in enumerate(EDGE_TYPES):
        chosen = edges.relation == number
        ends = zip((edges.indices.long()[chosen], destinations_of(edges)[chosen]), (each[0], each[2]), strict=True)
        found[each] = torch.stack([end - TYPES.type_nodes(name)[0] for end, name in ends])
    return {each: found[each] for each in EDGE_TYPES}


def join_spans(spans: tuple[int, ...], given: Tensor) -> Tensor:
    """Some of PyG's joined projections, as one of ours."""
    return torch.cat([given[OUT * k : OUT * (k + 1)] for k in spans]).t()


def make_hgt(width_in: int) -> tuple[HGTConv, list[tuple[nn.Parameter, nn.Parameter, Any]], nn.Module]:
    """Ours, PyG's, and pairs of their parameters with how ours is made of PyG's."""
    ours = HGTConv(width_in, OUT, NAMES, EDGE_TYPES, HEADS).double()
    theirs: Any = pyg.HGTConv(width_in, OUT, (MENTIONED, EDGE_TYPES), HEADS).double()
    attention: Any = ours.aggregation
    pairs: list[tuple[Any, Any, Any]] = []
    for name in MENTIONED:
        joined = theirs.kqv_lin.lins[name]
        mine = ours.key_value.projection_of(name), ours.query.projection_of(name), ours.out.projection_of(name)
        # PyG's are keys, queries, values.
        for projection, spans in zip(mine[:2], ((0, 2), (1,)), strict=True):
            shape = partial(join_spans, spans)
            pairs += [(getattr(projection, kind), getattr(joined, kind), shape) for kind in ("weight", "bias")]
        pairs.append((mine[2].weight, theirs.out_lin.lins[name].weight, torch.t))
        pairs.append((mine[2].bias, theirs.out_lin.lins[name].bias, torch.clone))
        if ours.skip is not None:
            pairs.append((ours.skip[type_module_name(name)], theirs.skip[name], torch.clone))
    for number, each in enumerate(EDGE_TYPES):
        name = module_name(each)
        for mine, matrices in ((attention.key_matrices, theirs.k_rel), (attention.value_matrices, theirs.v_rel)):
            # A matrix per head and edge type, the heads outside.
            pairs.append((mine[name], matrices.weight, lambda given, n=number: given[n :: len(EDGE_TYPES)]))
        pairs.append((attention.priors[name], theirs.p_rel["__".join(each)], lambda given: given[0]))
    return ours, pairs, theirs


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("width_in", [IN, 5])
def test_hgt_is_that_of_pyg(graph: str, width_in: int) -> None:
    torch.manual_seed(0)
    ours, pairs, theirs = make_hgt(width_in)
    compared = {id(each) for pair in pairs for each in pair[:2]}
    assert {
        name for name, each in ours.named_parameters() if id(each) not in compared and "nobody" not in name
    } == set()
    # PyG has a gate also where widths differ, which it does not use then.
    alone = {name for name, each in theirs.named_parameters() if id(each) not in compared}
    assert alone == (set() if width_in == OUT else {f"skip.{name}" for name in MENTIONED})
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.copy_(torch.randn_like(parameter))
        for mine, other, shape in pairs:
            mine.copy_(shape(other))
    # Another order of types and relations than that of the graph.
    ours.bind_types(TYPES)
    x, x_theirs = (normal(TYPES.num_nodes, width_in, seed=9).requires_grad_() for _ in range(2))
    out = parts(Layer(ours)(GRAPHS[graph].block, x, x))
    expected = theirs(parts(x_theirs), edge_index(graph))
    assert set(expected) == set(MENTIONED)
    for name in MENTIONED:
        torch.testing.assert_close(out[name], expected[name], rtol=1e-10, atol=1e-10)
    probe = parts(normal(TYPES.num_nodes, OUT, seed=11))
    loss, wanted = (sum((each[name] * probe[name]).sum() for name in MENTIONED) for each in (out, expected))
    grads = torch.autograd.grad(loss, [x, *(mine for mine, _, _ in pairs)])
    theirs_grads = torch.autograd.grad(wanted, [x_theirs, *(other for _, other, _ in pairs)])
    shapes = [torch.clone, *(shape for _, _, shape in pairs)]
    for grad, other, shape in zip(grads, theirs_grads, shapes, strict=True):
        torch.testing.assert_close(grad, shape(other), rtol=1e-10, atol=1e-10)


def test_names_match_types_in_any_order() -> None:
    torch.manual_seed(1)
    first = HGTConv(IN, OUT, NAMES, EDGE_TYPES, HEADS).double()
    other = HGTConv(IN, OUT, NAMES[::-1], EDGE_TYPES[2:] + EDGE_TYPES[:2], HEADS).double()
    other.load_state_dict(first.state_dict())
    x = normal(TYPES.num_nodes, IN)
    outs = []
    for conv in (first, other):
        conv.bind_types(TYPES)
        outs.append(Layer(conv)(GRAPHS["types"].block, x, x))
    assert torch.equal(*outs)


def test_a_type_without_in_edges_gets_what_a_sum_of_zeros_gives() -> None:
    conv = HGTConv(IN, 4, ["a"], [("a", "to", "a")], 2).double()
    types = GraphTypes(names=("a",), borders=(0, 40), columns=(0, IN), edge_types=(("a", "to", "a"),))
    conv.bind_types(types)
    with torch.no_grad():
        conv.out.projection_of("a").bias.add_(3)  # type: ignore[union-attr]
    topology = GRAPHS["few"]
    # The only relation of a graph need not be stored.
    block = replace(topology.block, edges=replace(topology.block.edges, relation=None, cache={}))
    out = Layer(conv)(block, normal(40, IN), normal(40, IN))
    alone = topology.indptr.diff() == 0
    assert alone.any()
    assert torch.equal(out[alone], torch.full((int(alone.sum()), 4), 3.0, dtype=torch.float64))
    assert not (out[~alone] == 3).any()


def make_rgcn(**options: Any) -> RGCNMatrixConv:
    torch.manual_seed(2)
    conv = RGCNMatrixConv(IN, 4, len(EDGE_TYPES), node_types=NAMES[::-1], **options).double()
    conv.bind_types(TYPES)
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return conv


@pytest.mark.parametrize("blocks", [None, 2])
@pytest.mark.parametrize("graph", GRAPHS)
def test_rgcn_with_types_is_a_loop_over_relations(graph: str, blocks: int | None) -> None:
    topology, results = GRAPHS[graph], []
    relation = cast(Tensor, topology.relation).long()
    weight = torch.ones(len(relation)).double() if topology.weight is None else topology.weight.double()
    for form in ("loop", False, True):
        conv = make_rgcn(num_blocks=blocks, project_first=form is True)
        x = normal(TYPES.num_nodes, IN, seed=3).requires_grad_()
        if form == "loop":
            root: Any = conv.itself
            lin = [root.projection_of(name) for name in NAMES]
            kinds = TYPES.types_of(torch.arange(TYPES.num_nodes))
            weights, biases = (torch.stack([getattr(each, kind) for each in lin]) for kind in ("weight", "bias"))
            out = torch.einsum("vd,vdo->vo", x, weights[kinds]) + biases[kinds]
            dst = destinations_of(topology.block.edges)
            for number in range(len(EDGE_TYPES)):
                matrix = torch.block_diag(*conv.aggregation.matrix[number])  # type: ignore[union-attr, index]
                for v in dst[relation == number].unique().tolist():
                    chosen = (relation == number) & (dst == v)
                    mean = (weight[chosen, None] * x[topology.indices.long()[chosen]]).sum(0) / weight[chosen].sum()
                    out = out.index_add(0, torch.tensor([v]), (mean @ matrix)[None])
        else:
            out = Layer(conv)(topology.block, x, x)
        probe = normal(*out.shape, seed=4)
        results.append([out.detach(), *torch.autograd.grad((out * probe).sum(), [x, *conv.parameters()])])
    for mine in results[1:]:
        for one, other in zip(mine, results[0], strict=True):
            torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("scattered", [False, True])
@pytest.mark.parametrize("bias", [False, True])
def test_typed_linear_is_that_of_pyg(scattered: bool, bias: bool) -> None:
    ours = TypedLinear(IN, 4, NAMES, bias=bias).double()
    ours.bind_types(TYPES)
    theirs = pyg.HeteroDictLinear(IN, 4, types=MENTIONED, bias=bias).double()
    with torch.no_grad():
        for name in MENTIONED:
            ours.projection_of(name).weight.copy_(theirs.lins[name].weight.t())
            if bias:
                cast(Tensor, ours.projection_of(name).bias).copy_(theirs.lins[name].bias)
    nodes = normal(TYPES.num_nodes, seed=5).argsort() if scattered else torch.arange(TYPES.num_nodes)
    x, x_theirs = (normal(TYPES.num_nodes, IN).requires_grad_() for _ in range(2))
    expected = torch.cat(list(theirs(parts(x_theirs)).values()))[nodes]
    out = ours(x[nodes], nodes)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    probe = normal(*out.shape, seed=6)
    mine = torch.autograd.grad((out * probe).sum(), [x, *(ours.projection_of(name).weight for name in MENTIONED)])
    wanted = torch.autograd.grad(
        (expected * probe).sum(), [x_theirs, *(theirs.lins[name].weight for name in MENTIONED)]
    )
    for grad, other in zip(mine, [wanted[0], *(each.t() for each in wanted[1:])], strict=True):
        torch.testing.assert_close(grad, other, rtol=1e-12, atol=1e-12)


def own_columns(x: dict[str, Tensor], least: float) -> tuple[SparseRows, GraphTypes]:
    """Block-diagonal sparse rows of types with columns of their own, of which none below a number is stored."""
    dense = torch.block_diag(*x.values())
    kept = torch.block_diag(*(each > least for each in x.values())).bool()
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), kept.sum(1).cumsum(0)])
    rows = SparseRows(indptr=ends, indices=kept.nonzero()[:, 1].int(), values=dense[kept], num_columns=dense.shape[1])
    sizes, widths = ([each.shape[axis] for each in x.values()] for axis in (0, 1))
    borders, columns = ((0, *torch.tensor(each).cumsum(0).tolist()) for each in (sizes, widths))
    return rows, GraphTypes(names=tuple(x), borders=borders, columns=columns, edge_types=(("a", "to", "a"),))


@pytest.mark.parametrize("least", [-torch.inf, 0.5])
@pytest.mark.parametrize("form", ["sparse", "dense", "half"])
def test_types_read_their_own_columns(form: str, least: float) -> None:
    x = {"a": normal(5, 3), "b": normal(4, 2, seed=1), "c": normal(7, 1, seed=2)}
    rows, types = own_columns(x, least)
    widths = {name: each.shape[1] for name, each in x.items()}
    linear = TypedLinear(dict(reversed(widths.items())), 4, ["c", "a", "b"], bias=True).double()
    linear.bind_types(types)
    nodes = normal(16, seed=3).argsort()
    given: Any = rows.index_rows(nodes)
    if form != "sparse":
        given = given.to_dense().to(torch.float16 if form == "half" else torch.float64)
    out = linear(given, nodes)
    plain = rows.to_dense().to(torch.float16 if form == "half" else torch.float64).double()
    blocks = torch.block_diag(*(linear.projection_of(name).weight for name in x))
    whole = torch.cat([plain[slice(*types.type_nodes(name))] @ blocks for name in x])
    at = [slice(4 * number, 4 * number + 4) for number in types.types_of(nodes).tolist()]
    bias = [cast(Tensor, linear.projection_of(types.names[n]).bias) for n in types.types_of(nodes).tolist()]
    expected = torch.stack([whole[v, span] + b for v, span, b in zip(nodes.tolist(), at, bias, strict=True)])
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    probe = normal(*out.shape, seed=6)
    for one, other in zip(
        torch.autograd.grad((out * probe).sum(), list(linear.parameters()), retain_graph=True),
        torch.autograd.grad((expected * probe).sum(), list(linear.parameters())),
        strict=True,
    ):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_other_types_are_refused() -> None:
    other = replace(TYPES, names=("author", "nobody", "paper", "place"))
    for module in (TypedLinear(IN, OUT, NAMES), HGTConv(IN, OUT, NAMES, EDGE_TYPES, 2), make_rgcn()):
        with pytest.raises(InputError, match=r"(?s)place.*venue"):
            module.bind_types(other)
    with pytest.raises(InputError, match="writes"):
        HGTConv(IN, OUT, NAMES, EDGE_TYPES[1:], 2).bind_types(TYPES)
    with pytest.raises(InputError, match="6 of venue"):
        TypedLinear({"author": 1, "nobody": 1, "paper": 1, "venue": 1}, OUT, NAMES).bind_types(TYPES)
    with pytest.raises(InputError, match="bind_types"):
        TypedLinear(IN, OUT, NAMES)(normal(3, IN), torch.arange(3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: HGTConv(IN, 7, NAMES, EDGE_TYPES, 2), "2 heads and 7"),
        (lambda: HGTConv(IN, OUT, NAMES, [], 2), "none"),
        (lambda: HGTConv(IN, OUT, NAMES, [("author", "to", "place")], 2), "place"),
        (lambda: HGTConv(IN, OUT, NAMES, [EDGE_TYPES[0]] * 2, 2), "two of the same"),
        (lambda: TypedLinear(IN, OUT, []), "there is none"),
        (lambda: TypedLinear(IN, OUT, ["a", "a"]), "twice"),
        (lambda: TypedLinear({"b": 2}, OUT, ["a"]), "widths of b"),
        (lambda: RGCNMatrixConv(IN, OUT, 2, num_blocks=4), "4 blocks for 6 and 6"),
        (lambda: RGCNMatrixConv(IN, OUT, 0), "num_relations"),
    ],
)
def test_what_cannot_be_made(make: Any, words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def mean_over_all_relations() -> AbstractContextManager[object]:
    """R-GCN divides by the in-degree of the destination, over all its relations together."""
    return patch.object(
        relation_matrices, "relation_mean_weight", lambda block, relations, dtype: mean_weight(block, dtype)
    )


def weights_of_another_type() -> AbstractContextManager[object]:
    """Nodes have the weights of the type after theirs."""

    class Shifted(TypedRows):
        def __init__(self, types: GraphTypes, nodes_V: Tensor) -> None:
            super().__init__(types, nodes_V)
            self.rows = {(kind + 1) % types.num_types: rows for kind, rows in self.rows.items()}

    return patch.object(typed_linear, "TypedRows", Shifted)


def softmax_by_relation() -> AbstractContextManager[object]:
    """Attention of HGT is divided by the sum over the edges of one relation."""

    def divide(edges: Edges, score_EK: Tensor) -> Tensor:
        assert edges.relation is not None
        slot = destinations_of(edges) * len(EDGE_TYPES) + edges.relation.long()
        weight = torch.exp(score_EK)
        totals = weight.new_zeros(int(slot.max()) + 1, weight.shape[1]).index_add(0, slot, weight)
        return weight / totals[slot]

    return patch.object(typed_attention, "softmax_over_in_edges", divide)


Check = Callable[[], None]
MUTANTS: dict[str, tuple[str | None, Callable[[], AbstractContextManager[object]], Check]] = {
    make.__name__: (make.__doc__, make, check)
    for make, check in (
        (mean_over_all_relations, partial(test_rgcn_with_types_is_a_loop_over_relations, "types", None)),
        (weights_of_another_type, partial(test_typed_linear_is_that_of_pyg, False, False)),
        (softmax_by_relation, partial(test_hgt_is_that_of_pyg, "types", IN)),
        (sums.gradient_of_one_part, partial(sums.test_block_kernels, torch.float64, 4)),
        (sums.edges_in_the_order_of_the_block, partial(sums.test_block_kernels, torch.float64, 4)),
        (pairs.matrix_gradient_of_one_part, partial(pairs.test_types, torch.float64)),
        (pairs.weights_in_the_order_of_the_sources, partial(pairs.test_types, torch.float64)),
    )
}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str) -> None:
    _, make, check = MUTANTS[mutant]
    with make(), pytest.raises(AssertionError):
        check()
