"""What `HeteroConv`, `to_hetero` and `HeteroEncoder` match by name, and what they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest
import torch
from layer_table import IN, OUT

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
    RGCNConv,
    SAGEConv,
    SAGEMaxConv,
    to_hetero,
)
from outgrow.nn.zoo import GAT, SAGE
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from suites import typed
from support import normal

pyg = pytest.importorskip("torch_geometric.nn")
TOLERANCE = 1e-10
NAMES, BORDERS = ("author", "paper", "venue"), (0, 14, 33, 40)
EDGE_TYPES: tuple[EdgeType, ...] = tuple(each for each in typed.EDGE_TYPES if each[1] != "without_edges")
TYPES = GraphTypes(names=NAMES, borders=BORDERS, columns=(0, 0, 0, IN), edge_types=EDGE_TYPES)
GRAPH = typed.typed_topology(40)


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


@pytest.mark.parametrize(("out", "shape"), [(3, (1, IN)), (1, (3, 1))])
def test_means_come_first_where_that_makes_source_rows_narrower(out: int, shape: tuple[int, int]) -> None:
    """A paper sends its input once, or a projection to each of the three relations that leave it."""
    conv = HeteroConv({each: SAGEConv(IN, out) for each in EDGE_TYPES}).double()
    given = HeteroConv({each: SAGEConv(IN, out, project_first=out == 3) for each in EDGE_TYPES}).double()
    assert conv.spec.source == shape
    # An order that was asked for is kept.
    assert given.spec.source == ((3, out) if out == 3 else (1, IN))
    given.load_state_dict(conv.state_dict())
    x = normal(TYPES.num_nodes, IN)
    for combine in ("sum", "mean"):
        outs = []
        for each in (conv, given):
            each.combine = combine
            each.bind_types(TYPES)
            outs.append(Layer(each)(GRAPH.block, x, x))
        assert (outs[0] - outs[1]).abs().max() < TOLERANCE


WIDTHS = {"author": 4, "paper": 7, "venue": 2}


def in_blocks(rows: SparseRows, types: GraphTypes) -> BlockRows:
    """The same numbers, dense for each type that has columns."""
    dense, kept = rows.to_dense(), [name for name in types.names if len(range(*types.type_columns(name)))]
    parts = [dense[slice(*types.type_nodes(name)), slice(*types.type_columns(name))].contiguous() for name in kept]
    return BlockRows(
        blocks=tuple(parts), rows=tuple(slice(*types.type_nodes(name)) for name in kept), num_rows=len(rows)
    )


@pytest.mark.parametrize("nodes", [torch.arange(TYPES.num_nodes), torch.tensor([39, 0, 20, 5, 33, 13, 21])])
def test_dense_columns_of_types_are_those_of_sparse_rows(nodes: torch.Tensor) -> None:
    """For encoders and for convolutions, of all rows and of a batch; gradients too."""
    torch.manual_seed(0)
    widths = {**WIDTHS, "venue": 0}
    x, types = block_diagonal(widths, filled=False)
    encoder = HeteroEncoder({"author": 4, "paper": 7}, 5, without_input=["venue"]).double()
    encoder.bind_types(types)
    grads = []
    for rows in (x, in_blocks(x, types)):
        encoder.zero_grad()
        out = encoder(rows.index_rows(nodes), nodes, None)
        (out * normal(len(nodes), 5)).sum().backward()
        grads.append([out.detach(), *(each.grad for each in encoder.parameters() if each.grad is not None)])
    assert len(grads[0]) == len(grads[1]) == 6
    assert all(torch.allclose(one, other, atol=TOLERANCE) for one, other in zip(*grads, strict=True))


@pytest.mark.parametrize("kind", [SAGEConv, SAGEMaxConv])
def test_convolutions_read_dense_columns_of_types(kind: type[SAGEConv] | type[SAGEMaxConv]) -> None:
    torch.manual_seed(0)
    x, types = block_diagonal(WIDTHS, filled=False)
    conv = HeteroConv({each: kind((WIDTHS[each[0]], WIDTHS[each[2]]), OUT) for each in EDGE_TYPES}).double()
    conv.bind_types(types)
    dense = in_blocks(x, types)
    assert (Layer(conv)(GRAPH.block, x, x) - Layer(conv)(GRAPH.block, dense, dense)).abs().max() < TOLERANCE


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
    assert encoder.embedding is not None
    assert torch.allclose(whole[33:], encoder.embedding.draw_rows(torch.arange(33, 40)), atol=TOLERANCE)
    assert torch.allclose(whole[:14], x.to_dense()[:14, :4] @ encoder.projections["type_author"].weight)  # type: ignore[operator]
    # Columns that such a type has are passed over.
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
    "features of edges": (
        lambda: HeteroConv(
            {
                **every(lambda: GATConv(4, 4, 2, edge_dim=3, self_loops=False)),
                EDGE_TYPES[0]: GATConv(4, 4, 2, edge_dim=2, self_loops=False),
            }
        ),
        "differ in edge_dim",
    ),
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
