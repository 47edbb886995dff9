"""Relations and feature columns of another graph are matched by name: their order changes nothing."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.alignment import align_graph, describe_schema
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.store.reader import open_store, write_store
from outgrow.graph.store.verify import verify_graph

NAMES = ("cites", "writes", "likes")


def typed(order: list[int], *, seed: int = 0, weighted: bool = False, names: tuple[str, ...] = NAMES) -> Graph:
    """A graph whose relation ``r`` is number ``order[r]``; some edges are there in several relations."""
    random = np.random.default_rng(seed)
    src, dst = random.integers(0, 9, (2, 60))
    relation = random.integers(0, len(names), 60)
    graph = og.from_arrays(
        np.stack([src, dst]),
        features=random.normal(size=(9, 4)).astype("f4"),
        labels=random.integers(0, 2, 9),
        split={"train": np.arange(6), "val": np.arange(6, 9)},
        relation=np.array(order)[relation],
        weight=random.random(60).astype("f4") + 0.1 if weighted else None,
        num_nodes=9,
    )
    return replace(graph, relation_names=tuple(names[order.index(at)] for at in range(len(names))))


@given(st.permutations(range(3)), st.integers(0, 50), st.booleans())
@settings(deadline=None, max_examples=30)
def test_a_model_says_the_same_whatever_number_a_relation_has(order: list[int], seed: int, weighted: bool) -> None:
    torch.manual_seed(seed)
    model = og.nn.RGCN(4, 6, 2, num_relations=3)
    plain = typed([0, 1, 2], seed=seed, weighted=weighted)
    expected = og.predict(plain, model)
    model.schema = describe_schema(plain)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        found = og.predict(typed(order, seed=seed, weighted=weighted), model)
        aligned = align_graph(typed(order, seed=seed, weighted=weighted), model.schema, reads_relations=True)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    verify_graph(aligned)
    assert torch.equal(aligned.topology.relation, plain.topology.relation)
    # Edges that agree in both ends and the relation may stand in either order.
    if weighted:
        assert sorted(aligned.topology.weight.tolist()) == sorted(plain.topology.weight.tolist())


def test_it_is_said_and_only_where_something_changes() -> None:
    schema = describe_schema(typed([0, 1, 2]))
    same = typed([0, 1, 2])
    assert align_graph(same, schema, reads_relations=True) is same
    with pytest.warns(DataWarning, match="relations of 'graph' are in another order than in training"):
        align_graph(typed([2, 0, 1]), schema, reads_relations=True)
    other = typed([2, 0, 1])
    assert align_graph(other, schema, reads_relations=False) is other


@pytest.mark.parametrize(
    ("names", "got"),
    [
        (("cites", "writes", "hates"), "no likes; hates, which the model does not know"),
        (("cites", "writes"), "no likes"),
    ],
)
def test_names_that_are_missing_or_unknown_are_refused(names: tuple[str, ...], got: str) -> None:
    with pytest.raises(InputError, match=r"relations of 'graph' are not those that") as refused:
        align_graph(
            typed(list(range(len(names))), names=names), describe_schema(typed([0, 1, 2])), reads_relations=True
        )
    assert refused.value.got == got


def test_the_last_of_relations_without_names_need_not_occur() -> None:
    fewer = typed([0, 1], names=("0", "1"))
    assert align_graph(fewer, GraphSchema(relations=("0", "1", "2")), reads_relations=True) is fewer


def with_types(order: list[int], *, sparse: bool) -> Graph:
    """A graph of three types, of which each has columns of its own, listed in some order."""
    widths, counts, names = (2, 3, 1), (3, 4, 2), ("paper", "author", "venue")
    random = np.random.default_rng(0)
    blocks = [random.normal(size=(count, width)) for count, width in zip(counts, widths, strict=True)]
    x, types, first, column = np.zeros((9, 6), "f4"), [], 0, 0
    for kind in order:
        last = first + counts[kind]
        x[first:last, column : column + widths[kind]] = blocks[kind]
        types.append(NodeType(name=names[kind], first=first, last=last, num_columns=widths[kind]))
        first, column = last, column + widths[kind]
    from scipy.sparse import csr_array

    graph = og.from_arrays(np.zeros((2, 0), int), features=csr_array(x) if sparse else x, num_nodes=9)
    return replace(graph, node_types=tuple(types))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("order", [[1, 0, 2], [2, 0, 1], [2, 1, 0]])
def test_feature_columns_go_where_their_type_has_them(order: list[int], sparse: bool) -> None:
    plain = with_types([0, 1, 2], sparse=sparse)
    torch.manual_seed(0)
    model = og.nn.SAGE(6, 4, 2, sparse_input=sparse)
    expected = {kind.name: og.predict(plain, model)[kind.first : kind.last] for kind in plain.node_types}
    model.schema = describe_schema(plain)
    other = with_types(order, sparse=sparse)
    with pytest.warns(DataWarning, match="feature columns of 'graph' are in another order"):
        found = og.predict(other, model)
    for kind in other.node_types:
        torch.testing.assert_close(found[kind.first : kind.last], expected[kind.name])
    with pytest.warns(DataWarning):
        verify_graph(replace(align_graph(other, model.schema, reads_relations=False), node_types=plain.node_types[:0]))


def test_a_type_of_another_width_is_refused() -> None:
    plain = with_types([0, 1, 2], sparse=False)
    wider = replace(describe_schema(plain), columns=(("paper", 3), ("author", 3), ("venue", 1)))
    with pytest.raises(InputError, match=r"no paper \(3 columns\); paper \(2 columns\), which the model does not know"):
        align_graph(plain, wider, reads_relations=False)


def test_stores_and_records_keep_the_names(tmp_path) -> None:  # type: ignore[no-untyped-def]
    plain = with_types([2, 0, 1], sparse=True)
    write_store(plain, tmp_path / "store")
    schema = describe_schema(open_store(tmp_path / "store"))
    assert schema == describe_schema(plain)
    assert schema.columns == (("venue", 1), ("paper", 2), ("author", 3))
    assert GraphSchema.from_record(schema.as_record()) == schema


@pytest.mark.parametrize("widths", [(2, 1), (2, 2)], ids=["own columns", "shared columns"])
def test_hetero_data_whose_types_come_in_another_order(widths: tuple[int, int]) -> None:
    data = pytest.importorskip("torch_geometric.data")
    x = {name: torch.randn(5, width) for name, width in zip(("paper", "author"), widths, strict=True)}
    edges = {(a, b): torch.randint(0, 5, (2, 12)) for a in x for b in x}

    def hetero(names: list[str]) -> Graph:
        made = data.HeteroData()
        for name in names:
            made[name].x = x[name]
        for a in names:
            for b in names:
                made[a, "to", b].edge_index = edges[a, b]
        return og.load(made)

    plain, other = hetero(["paper", "author"]), hetero(["author", "paper"])
    model = og.nn.RGCN(plain.num_features, 4, 2, num_relations=4, sparse_input=plain.sparse)
    expected = og.predict(plain, model)
    model.schema = describe_schema(plain)
    with pytest.warns(DataWarning):
        found = og.predict(other, model)
    torch.testing.assert_close(torch.cat([found[5:], found[:5]]), expected, rtol=1e-5, atol=1e-6)
