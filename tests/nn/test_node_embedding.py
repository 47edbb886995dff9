"""`NodeEmbedding` and layers without messages: what they compute, and what becomes of nodes that were not trained."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.engine.inference import infer_full_graph
from outgrow.nn import MLP, Embedding, Model, NodeEmbedding
from outgrow.ops.keyed_rows import draw_uniform_rows
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology

TYPES = GraphTypes(names=("a", "b", "c"), borders=(0, 3, 7, 9), columns=(0, 0, 0, 4), edge_types=())


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9, unique=True), st.integers(0, (1 << 62) - 1))
def test_a_row_depends_on_its_node_alone(nodes: list[int], key: int) -> None:
    rows = draw_uniform_rows(torch.tensor(nodes), 5, 0.5, key, torch.float64)
    alone = torch.cat([draw_uniform_rows(torch.tensor([node]), 5, 0.5, key, torch.float64) for node in nodes])
    assert torch.equal(rows, alone)
    assert rows.abs().max() <= 0.5
    assert torch.equal(rows.float(), draw_uniform_rows(torch.tensor(nodes), 5, 0.5, key, torch.float32))


def test_first_rows_have_the_deviation_that_is_asked_for() -> None:
    rows = NodeEmbedding(64, std=0.3).draw_rows(torch.arange(2000))
    assert abs(float(rows.mean())) < 0.01
    assert abs(float(rows.std()) - 0.3) < 0.01
    assert abs(float(NodeEmbedding(64).draw_rows(torch.arange(2000)).norm(dim=1).mean()) - 1) < 0.05


def test_equal_seeds_of_torch_give_equal_rows() -> None:
    torch.manual_seed(5)
    first = NodeEmbedding(4).draw_rows(torch.arange(6))
    assert not torch.equal(first, NodeEmbedding(4).draw_rows(torch.arange(6)))
    torch.manual_seed(5)
    assert torch.equal(first, NodeEmbedding(4).draw_rows(torch.arange(6)))


@pytest.mark.parametrize("combine", ["replace", "add", "concat"])
def test_vectors_beside_features(combine: str) -> None:
    encoder = NodeEmbedding(3, in_features=4, combine=combine).double()
    encoder.weight = normal(9, 3)
    x, nodes = normal(5, 4, seed=2), torch.tensor([8, 0, 3, 3, 1])
    vectors = encoder.weight[nodes]
    expected = {"replace": vectors, "concat": torch.cat([x, vectors], 1)}
    if combine == "add":
        assert encoder.project is not None
        expected["add"] = x @ encoder.project.weight + vectors
    assert torch.allclose(encoder(x, nodes, None), expected[combine])
    assert encoder.out_features == expected[combine].shape[1]
    assert encoder.reads_features == (combine != "replace")


def test_sparse_features_are_projected() -> None:
    encoder = NodeEmbedding(3, in_features=4).double()
    encoder.weight = normal(5, 3)
    dense = torch.eye(4, dtype=torch.float64)[torch.tensor([2, 0, 3, 1, 1])]
    sparse = SparseRows(
        indptr=torch.arange(6), indices=dense.argmax(1).int(), values=torch.ones(5, dtype=torch.float64), num_columns=4
    )
    nodes = torch.arange(5)
    assert torch.allclose(encoder(sparse, nodes, None), encoder(dense, nodes, None))


def test_types_without_vectors_have_zeros() -> None:
    encoder = NodeEmbedding(2, ["c", "a"]).double()
    encoder.bind_types(TYPES)
    encoder.weight = normal(5, 2)
    rows = encoder(torch.empty(9, 0), torch.arange(9), None)
    assert torch.equal(rows[:3], encoder.weight[:3])
    assert not rows[3:7].any()
    assert torch.equal(rows[7:], encoder.weight[3:])
    with pytest.raises(InputError, match="one of a, b, c"):
        NodeEmbedding(2, "A").bind_types(TYPES)


def test_a_new_node_gets_the_mean() -> None:
    encoder = NodeEmbedding(2).double()
    encoder.weight = normal(4, 2)
    rows = encoder(torch.empty(3, 0), torch.tensor([1, 4, 7]), None)
    assert torch.equal(rows[0], encoder.weight[1])
    assert torch.allclose(rows[1:], encoder.weight.mean(0))


def test_a_state_brings_the_vectors() -> None:
    encoder = NodeEmbedding(2)
    fresh = NodeEmbedding(2)
    fresh.load_state_dict(encoder.state_dict())
    assert fresh.weight is None
    assert fresh.seed == encoder.seed
    encoder.weight = normal(4, 2).float()
    fresh.load_state_dict(encoder.state_dict())
    assert fresh.weight is not None
    assert torch.equal(fresh.weight, encoder.weight)
    with pytest.raises(RuntimeError, match="Unexpected key"):
        NodeEmbedding(3).load_state_dict(encoder.state_dict())
    fresh.load_state_dict(NodeEmbedding(2).state_dict())
    assert fresh.weight is None


def test_copies_do_not_train_the_rows_of_the_original() -> None:
    encoder = NodeEmbedding(2)
    encoder.rows = object()  # type: ignore[assignment]
    for other in (copy.deepcopy(encoder), pickle.loads(pickle.dumps(copy.deepcopy(encoder)))):
        assert other.rows is None
        assert other.seed == encoder.seed


def test_mlp_reads_no_neighbour() -> None:
    torch.manual_seed(0)
    model = MLP(4, 6, 3).double()
    x = normal(20, 4)
    first, second = (layer.conv for layer in model.layers_list())
    hidden = torch.relu(x @ first.itself.weight + first.itself.bias)
    expected = hidden @ second.itself.weight + second.itself.bias
    assert torch.allclose(infer_full_graph(model, random_topology(20, 90), x), expected)


def test_a_model_of_vectors_alone_passes_them_on() -> None:
    model: Model = Embedding(0, 5, 5)
    assert list(model.parameters()) == []
    nodes = torch.arange(7)
    rows = infer_full_graph(model.double(), random_topology(7, 20), torch.empty(7, 0, dtype=torch.float64))
    encoder = model.encoder
    assert isinstance(encoder, NodeEmbedding)
    assert torch.equal(rows, encoder.draw_rows(nodes))
    assert Embedding(0, 5, 3).layers_list()[0].conv.spec.out_features == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dim": 0}, "dim"),
        ({"dim": 2, "std": 0.0}, "std above 0"),
        ({"dim": 2, "combine": "sum"}, "combine"),
        ({"dim": 2, "combine": "add"}, "in_features"),
        ({"dim": 2, "combine": "concat"}, "in_features"),
        ({"dim": 2, "in_features": -1}, "in_features"),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        NodeEmbedding(**options)  # type: ignore[arg-type]
