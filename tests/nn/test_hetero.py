"""`HeteroConv`, `to_hetero` and `HeteroEncoder` against PyG with copied weights, and what they refuse."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from layer_table import IN, OUT
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.core.graph_types import EdgeType, GraphTypes
from outgrow.graph.topology import Topology
from outgrow.nn import (
    Conv,
    Epilogue,
    GATConv,
    GCNConv,
    HeteroConv,
    HeteroEncoder,
    Layer,
    Model,
    PyGConv,
    RGCNConv,
    SAGEConv,
    SAGEMaxConv,
    to_hetero,
)
from outgrow.nn.zoo import GAT, SAGE
from outgrow.ops.sparse import SparseRows
from suites import typed
from support import normal, whole_blocks

pyg = pytest.importorskip("torch_geometric.nn")
TOLERANCE = 1e-10
NAMES, BORDERS = ("author", "paper", "venue"), (0, 14, 33, 40)
EDGE_TYPES: tuple[EdgeType, ...] = tuple(each for each in typed.EDGE_TYPES if each[1] != "without_edges")
TYPES = GraphTypes(names=NAMES, borders=BORDERS, columns=(0, 0, 0, IN), edge_types=EDGE_TYPES)
GRAPH = typed.typed_topology(40)


def edge_indices() -> dict[EdgeType, Tensor]:
    """The edges of each type, as PyG has them: nodes are numbered within their types."""
    assert GRAPH.relation is not None
    dst = torch.repeat_interleave(torch.arange(GRAPH.num_nodes), GRAPH.indptr.diff())
    found = {}
    for number, each in enumerate(EDGE_TYPES):
        chosen = GRAPH.relation == number
        begin = [TYPES.type_nodes(name)[0] for name in (each[0], each[2])]
        found[each] = torch.stack([GRAPH.indices.long()[chosen] - begin[0], dst[chosen] - begin[1]])
    return found


def by_type(x: Tensor) -> dict[str, Tensor]:
    return {name: x[slice(*TYPES.type_nodes(name))] for name in NAMES}


def copy_sage(ours: Conv, theirs: Any) -> None:
    assert isinstance(ours, SAGEConv)
    assert ours.itself.bias is not None
    with torch.no_grad():
        theirs.lin_l.weight.copy_(ours.neighbour.weight.T)
        theirs.lin_r.weight.copy_(ours.itself.weight.T)
        theirs.lin_l.bias.copy_(ours.itself.bias)


def copy_gat(ours: Conv, theirs: Any) -> None:
    assert isinstance(ours, GATConv)
    with torch.no_grad():
        for each in (theirs.lin_src, theirs.lin_dst):
            each.weight.copy_(ours.project.weight.T)
        theirs.att_src[0].copy_(ours.source_score)
        theirs.att_dst[0].copy_(ours.target_score)
        theirs.bias.copy_(ours.bias)


def sage_pair(project_first: bool) -> Callable[[], tuple[Conv, nn.Module]]:
    def make() -> tuple[Conv, nn.Module]:
        ours, theirs = SAGEConv(IN, OUT, project_first=project_first), pyg.SAGEConv((IN, IN), OUT)
        copy_sage(ours, theirs)
        return ours, theirs

    return make


def gat_pair() -> tuple[Conv, nn.Module]:
    ours = GATConv(IN, OUT, 2, self_loops=False)
    theirs = pyg.GATConv((IN, IN), OUT // 2, heads=2, add_self_loops=False)
    copy_gat(ours, theirs)
    return ours, theirs


def foreign_pair() -> tuple[Conv, nn.Module]:
    theirs = pyg.GATv2Conv((IN, IN), OUT // 2, heads=2, add_self_loops=False)
    return PyGConv(copy.deepcopy(theirs), IN, OUT), theirs


PAIRS: dict[str, tuple[Callable[[], tuple[Conv, nn.Module]], ...]] = {
    "sage": (sage_pair(False),),
    "sage-project-first": (sage_pair(True),),
    "gat": (gat_pair,),
    "foreign": (foreign_pair,),
    "mixed": (gat_pair, sage_pair(False), foreign_pair, sage_pair(True)),
}


@pytest.mark.parametrize("combine", ["sum", "mean", "max"])
@pytest.mark.parametrize("pairs", PAIRS)
def test_the_result_and_all_gradients_are_those_of_pyg(pairs: str, combine: str) -> None:
    torch.manual_seed(0)
    makers = PAIRS[pairs]
    made = {each: makers[number % len(makers)]() for number, each in enumerate(EDGE_TYPES)}
    ours = HeteroConv({each: pair[0] for each, pair in made.items()}, combine).double()
    theirs = pyg.HeteroConv({each: pair[1] for each, pair in made.items()}, aggr=combine).double()
    ours.bind_types(TYPES)
    x, factor = normal(TYPES.num_nodes, IN).requires_grad_(), normal(TYPES.num_nodes, OUT, seed=2)
    out = Layer(ours)(GRAPH.block, x, x)
    found = torch.autograd.grad((out * factor).sum(), (x, *ours.parameters()), allow_unused=True)
    given = x.detach().clone().requires_grad_()
    expected = theirs(by_type(given), edge_indices())
    total = sum((expected[name] * part).sum() for name, part in by_type(factor).items())
    [grad] = torch.autograd.grad(total, given, retain_graph=True)
    assert max((out[slice(*TYPES.type_nodes(name))] - expected[name]).abs().max().item() for name in NAMES) < TOLERANCE
    assert (found[0] - grad).abs().max() < TOLERANCE
    # The gradients of parameters, of which PyG may have two where ours is one: in norm over all of a convolution.
    for each in EDGE_TYPES:
        conv = ours.conv_of(each)
        mine = {name: found[1 + number] for number, (name, _) in enumerate(ours.named_parameters())}
        if isinstance(conv, SAGEConv):
            [weight] = torch.autograd.grad(total, made[each][1].lin_l.weight, retain_graph=True)
            name = next(key for key, value in ours.named_parameters() if value is conv.neighbour.weight)
            assert mine[name] is not None
            assert (mine[name].T - weight).abs().max() < TOLERANCE


def test_to_hetero_is_that_of_pyg() -> None:
    torch.manual_seed(0)
    model = to_hetero(SAGE(IN, 8, 3, dropout=0.0), TYPES).double()

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv1, self.conv2 = pyg.SAGEConv((-1, -1), 8), pyg.SAGEConv((-1, -1), 3)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.conv2(self.conv1(x, edge_index).relu(), edge_index)
            return out

    theirs = pyg.to_hetero(Net(), (list(NAMES), list(EDGE_TYPES)), aggr="sum").double()
    x = normal(TYPES.num_nodes, IN)
    theirs(by_type(x), edge_indices())
    for layer, stage in zip(model.layers_list(), ("conv1", "conv2"), strict=True):
        assert isinstance(layer.conv, HeteroConv)
        for each in EDGE_TYPES:
            copy_sage(layer.conv.conv_of(each), theirs.get_submodule(stage)["__".join(each)])
    out = model(whole_blocks(model, GRAPH), x)
    expected = theirs(by_type(x), edge_indices())
    assert max((out[slice(*TYPES.type_nodes(name))] - expected[name]).abs().max().item() for name in NAMES) < TOLERANCE
    weights = [layer.conv.conv_of(EDGE_TYPES[0]).neighbour.weight for layer in model.layers_list()]  # type: ignore[operator, union-attr]
    assert not torch.equal(weights[0], model.layers_list()[0].conv.conv_of(EDGE_TYPES[1]).neighbour.weight)  # type: ignore[operator]


def test_edge_types_are_matched_by_name() -> None:
    torch.manual_seed(0)
    conv = HeteroConv({each: SAGEConv(IN, OUT) for each in reversed(EDGE_TYPES)}).double()
    conv.bind_types(TYPES)
    x = normal(TYPES.num_nodes, IN)
    first = Layer(conv)(GRAPH.block, x, x)
    order = torch.tensor([5, 3, 1, 0, 2, 4])
    assert GRAPH.relation is not None
    renumbered = Topology(
        indptr=GRAPH.indptr, indices=GRAPH.indices, relation=order[GRAPH.relation.long()].to(torch.int8)
    )
    names = [EDGE_TYPES[order.tolist().index(number)] for number in range(len(EDGE_TYPES))]
    conv.bind_types(GraphTypes(names=NAMES, borders=BORDERS, columns=TYPES.columns, edge_types=tuple(names)))
    assert (Layer(conv)(renumbered.block, x, x) - first).abs().max() < TOLERANCE


def block_diagonal(widths: Mapping[str, int], *, filled: bool) -> tuple[SparseRows, GraphTypes]:
    """Features of types with columns of their own, all of them filled or about half of them."""
    ends = [0]
    for name in NAMES:
        ends.append(ends[-1] + widths[name])
    types = GraphTypes(names=NAMES, borders=BORDERS, columns=tuple(ends), edge_types=EDGE_TYPES)
    dense = torch.zeros(TYPES.num_nodes, ends[-1], dtype=torch.float64)
    for name in NAMES:
        (first, last), (low, high) = types.type_nodes(name), types.type_columns(name)
        part = normal(last - first, high - low, seed=first)
        dense[first:last, low:high] = part if filled else part.clamp_min(0)
    stored = dense != 0
    indptr = torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)])
    values = SparseRows(indptr=indptr, indices=stored.nonzero()[:, 1].int(), values=dense[stored], num_columns=ends[-1])
    return values, types


WIDTHS = {"author": 4, "paper": 7, "venue": 2}


@pytest.mark.parametrize("filled", [True, False])
@pytest.mark.parametrize("kind", [SAGEConv, SAGEMaxConv])
def test_types_have_columns_of_their_own(kind: type[SAGEConv] | type[SAGEMaxConv], filled: bool) -> None:
    torch.manual_seed(0)
    x, types = block_diagonal(WIDTHS, filled=filled)
    conv = HeteroConv({each: kind((WIDTHS[each[0]], WIDTHS[each[2]]), OUT) for each in EDGE_TYPES}).double()
    conv.bind_types(types)
    assert conv.spec.in_features == sum(WIDTHS.values())
    out = Layer(conv)(GRAPH.block, x, x)
    # The same with all columns: what a type does not have is zero.
    wide = HeteroConv({each: kind(sum(WIDTHS.values()), OUT) for each in EDGE_TYPES}).double()
    wide.bind_types(types)
    with torch.no_grad():
        for each in EDGE_TYPES:
            for (name, theirs), (_, ours) in zip(
                wide.conv_of(each).named_parameters(), conv.conv_of(each).named_parameters(), strict=True
            ):
                if theirs.shape == ours.shape:
                    theirs.copy_(ours)
                else:
                    theirs[slice(*types.type_columns(each[2 if name.startswith("itself") else 0]))] = ours
    dense = x.to_dense()
    assert (Layer(wide)(GRAPH.block, dense, dense) - out).abs().max() < TOLERANCE


def test_an_encoder_gives_each_type_its_input() -> None:
    torch.manual_seed(0)
    widths = {"author": 4, "paper": 7, "venue": 0}
    x, types = block_diagonal(widths, filled=True)
    encoder = HeteroEncoder({"author": 4, "paper": 7}, 5, embeddings={"venue": 7}).double()
    encoder.bind_types(types)
    nodes = torch.tensor([39, 0, 20, 5, 33])
    whole = encoder(x, torch.arange(TYPES.num_nodes), None)
    assert torch.equal(encoder(x.index_rows(nodes), nodes, None), whole[nodes])
    assert torch.allclose(whole[33:], encoder.embeddings["type_venue"], atol=TOLERANCE)
    assert torch.allclose(whole[:14], x.to_dense()[:14, :4] @ encoder.projections["type_author"].weight)  # type: ignore[operator]
    # Columns that readers made up for a type are passed over.
    x_more, more = block_diagonal({**widths, "venue": 3}, filled=True)
    encoder.bind_types(more)
    assert encoder.in_features == 14
    assert torch.equal(encoder(x_more, torch.arange(40), None)[33:], whole[33:])
    silent = HeteroEncoder({"author": 4, "paper": 7}, 5, without_input=["venue"]).double()
    silent.bind_types(types)
    torch.nn.init.ones_(silent.biases["type_venue"])
    assert torch.equal(silent(x, torch.arange(40), None)[33:], torch.ones(7, 5, dtype=torch.float64))


def every(make: Callable[[], Conv]) -> dict[EdgeType, Conv]:
    return {each: make() for each in EDGE_TYPES}


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no convolution": (lambda: HeteroConv({}), "a HeteroConv has no convolutions"),
    "self-loops": (lambda: HeteroConv(every(lambda: GCNConv(4, 4))), "without self-loops"),
    "relations": (lambda: HeteroConv(every(lambda: RGCNConv(4, 4, 2))), "of one relation"),
    "widths": (lambda: HeteroConv({**every(lambda: SAGEConv(4, 4)), EDGE_TYPES[0]: SAGEConv(3, 4)}), "in_features"),
    "outputs": (lambda: HeteroConv({**every(lambda: SAGEConv(4, 4)), EDGE_TYPES[0]: SAGEConv(4, 3)}), "out_features"),
    "combine": (lambda: HeteroConv(every(lambda: SAGEConv(4, 4)), "median"), "unknown combine"),
    "a raw module": (lambda: HeteroConv({EDGE_TYPES[0]: pyg.SAGEConv(4, 4)}), "HeteroConv"),
    "a missing convolution": (
        lambda: HeteroConv({EDGE_TYPES[0]: SAGEConv(4, 4)}).bind_types(TYPES),
        "no convolution for",
    ),
    "an unknown edge type": (
        lambda: HeteroConv({**every(lambda: SAGEConv(4, 4)), ("a", "b", "c"): SAGEConv(4, 4)}).bind_types(TYPES),
        "which the graph does not have",
    ),
    "a pair outside": (lambda: Layer(SAGEConv((4, 3), 4)), "two input widths"),
    "columns of other widths": (
        lambda: HeteroConv(every(lambda: SAGEConv((4, 4), 4))).bind_types(block_diagonal(WIDTHS, filled=True)[1]),
        "columns of the graph's types",
    ),
    "a type without input": (
        lambda: HeteroEncoder({"author": 4, "paper": 7}, 5).bind_types(block_diagonal(WIDTHS, filled=True)[1]),
        "none for venue",
    ),
    "two inputs": (lambda: HeteroEncoder({"a": 4}, 5, without_input=["a"]), "two inputs"),
    "an embedding of other nodes": (
        lambda: HeteroEncoder({"author": 4, "paper": 7}, 5, embeddings={"venue": 3}).bind_types(
            block_diagonal({**WIDTHS, "venue": 0}, filled=True)[1]
        ),
        "7 rows",
    ),
    "to_hetero of types": (lambda: to_hetero(to_hetero(SAGE(IN, 4, 3), TYPES), TYPES), "already"),
    "to_hetero without input": (
        lambda: to_hetero(SAGE(11, 4, 3), block_diagonal({**WIDTHS, "venue": 0}, filled=True)[1]),
        "no features of venue",
    ),
    "types unknown": (
        lambda: HeteroConv(every(lambda: SAGEConv(4, 4, project_first=True))).source_of_nodes(
            torch.ones(2, 4), torch.arange(2)
        ),
        "bind_types",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_does_not_fit_is_refused(what: str) -> None:
    call, said = REFUSED[what]
    with pytest.raises(InputError, match=said):
        call()


def test_a_type_that_no_relation_enters_must_not_be_read() -> None:
    types = GraphTypes(names=("a", "b"), borders=(0, 2, 4), columns=(0, 0, 3), edge_types=(("a", "to", "b"),))
    one = [Layer(HeteroConv({("a", "to", "b"): SAGEConv(3, 3)}))]
    Model(one).bind_types(types)
    with pytest.raises(InputError, match="no relation enters a, of which layer 2 reads what layer 1 gives"):
        Model([*one, Layer(HeteroConv({("a", "to", "b"): SAGEConv(3, 3)}), Epilogue())]).bind_types(types)


def test_attention_loses_its_self_loops() -> None:
    model = to_hetero(GAT(IN, 8, 3, heads=2), TYPES)
    assert not any(layer.spec.self_loops for layer in model.layers_list())
