"""Ready-made models with modules per type, on graphs of types with columns of their own, shared ones and none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import block_diag, csr_array

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.core.errors import InputError
from outgrow.engine.layer_plan import numbers_per_edge
from outgrow.nn import HGT, RGCN, HeteroEncoder, HGTConv, Model, RGCNConv, RGCNMatrixConv, TypedRGCN
from outgrow.planning.model_sizes import model_sizes
from suites.typed import typed_topology
from support import destinations_of

NAMES = ("author", "paper", "venue")
EDGE_TYPES = (
    ("author", "writes", "paper"),
    ("paper", "written by", "author"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("venue", "of", "paper"),
    ("author", "knows", "author"),
)
BORDERS = (0, 14, 33, 40)


def make_graph(columns: tuple[int, ...]) -> og.Graph:
    """Types with so many feature columns each; one number for shared columns."""
    draw = np.random.default_rng(0)
    topology = typed_topology(40)
    ends = topology.indptr.diff()
    edges = np.stack([topology.indices.numpy(), np.repeat(np.arange(40), ends.numpy())])
    sizes = np.diff(BORDERS)
    x: Any = draw.normal(size=(40, columns[0])).astype("f4")
    if len(columns) > 1:
        parts = [draw.normal(size=(count, width)).astype("f4") for count, width in zip(sizes, columns, strict=True)]
        x = csr_array(block_diag(parts))
    graph = og.from_arrays(
        edges,
        features=x,
        labels=draw.integers(0, 3, 40),
        split={"train": np.arange(14, 27), "val": np.arange(27, 30), "test": np.arange(30, 33)},
        relation=topology.relation,
        num_nodes=40,
    )
    own = columns if len(columns) > 1 else (0, 0, 0)
    kinds = [
        og.NodeType(name=name, first=first, last=last, num_columns=width)
        for name, first, last, width in zip(NAMES, BORDERS[:-1], BORDERS[1:], own, strict=True)
    ]
    names = tuple("__".join(each) for each in EDGE_TYPES)
    return replace(graph, node_types=tuple(kinds), relation_names=names)


GRAPHS = {"shared": (5,), "own": (3, 2, 4), "a-type-without-features": (3, 2, 0)}


@pytest.mark.parametrize("columns", GRAPHS)
@pytest.mark.parametrize("name", ["hgt", "rgcn-typed"])
def test_they_train_by_name(name: str, columns: str) -> None:
    graph = make_graph(GRAPHS[columns])
    assert graph.types.shares_columns == (columns == "shared")
    torch.manual_seed(0)
    model = build_model(name, graph, {"hidden": 8, "dropout": 0.0})
    before = {key: value.clone() for key, value in model.state_dict().items()}
    losses = og.train(graph, model, epochs=40, lr=0.05, progress=False).summary["loss"]
    assert losses[-1] < 0.5 * losses[0]
    assert any(not torch.equal(value, before[key]) for key, value in model.state_dict().items() if "matri" in key)


def kinds_of(model: Model) -> list[str]:
    return [type(layer.conv).__name__ for layer in model.layers_list()]


def test_what_the_models_are_made_of() -> None:
    types = make_graph((3, 2, 0)).types
    model = HGT(5, 8, 3, types=types, heads=2, layers=3)
    assert isinstance(model.encoder, HeteroEncoder)
    assert model.encoder.numbers == {"venue": 7}
    assert HGT(5, 8, 3, types=types, embeddings=False).encoder.without_input == ("venue",)  # type: ignore[union-attr]
    assert kinds_of(model) == [HGTConv.__name__] * 3
    assert [layer.spec.out_features for layer in model.layers_list()] == [8, 8, 3]
    assert kinds_of(RGCN(5, 8, 3, num_relations=6)) == [RGCNConv.__name__] * 2
    full = RGCN(5, 8, 3, num_relations=6, bases=None)
    assert kinds_of(full) == [RGCNMatrixConv.__name__] * 2
    assert full.encoder is None
    blocks = RGCN(8, 8, 3, num_relations=6, bases=None, num_blocks=4)
    shapes = [tuple(layer.conv.aggregation.matrix.shape) for layer in blocks.layers_list()]  # type: ignore[union-attr]
    assert shapes == [(6, 4, 2, 2), (6, 1, 8, 3)]
    typed = TypedRGCN(5, 8, 3, types=types, num_blocks=2)
    assert isinstance(typed.encoder, HeteroEncoder)
    assert typed.encoder.out_features == 8
    shared = TypedRGCN(5, 8, 3, types=make_graph((5,)).types, sparse_input=True)
    assert shared.encoder is None
    assert [layer.accepts_sparse for layer in shared.layers_list()] == [True, False]
    first = RGCN(5, 8, 3, num_relations=6, bases=None, project_first=True)
    assert all(layer.conv.aggregation.sliceable for layer in first.layers_list())


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: RGCN(5, 8, 3, num_relations=6, num_blocks=2), "bases=4"),
        (lambda: RGCN(5, 8, 3, num_relations=6, bases=None, num_blocks=7), "num_blocks 7"),
        (lambda: RGCN(5, 8, 3, num_relations=6, bases=None, num_blocks=0), "num_blocks"),
        (lambda: TypedRGCN(5, 8, 3, types=make_graph((3, 2, 4)).types), "9, the columns"),
        (lambda: HGT(5, 8, 3, types=make_graph((3, 2, 4)).types), "9, the columns"),
    ],
)
def test_models_that_cannot_be_made(make: Callable[[], Model], words: str) -> None:
    with pytest.raises(InputError, match=words):
        make()


def test_predictions_of_a_named_run_know_the_types(tmp_path: Any) -> None:
    graph = make_graph((3, 2, 0))
    og.save_graph(graph, tmp_path / "store")
    model = build_model("hgt", og.load(tmp_path / "store"), {"hidden": 8})
    out = og.predict(graph, model)
    assert out.shape[0] == 40


def test_a_plan_counts_what_a_node_is_multiplied_by() -> None:
    graph = make_graph((5,))
    # 240 edges of 6 relations, of 40 nodes, some of which have several in-edges of a relation.
    relation = graph.topology.relation
    assert relation is not None
    pairs = {(int(v), int(r)) for v, r in zip(destinations_of(graph.topology.block.edges), relation, strict=True)}
    per_node = len(pairs) / graph.num_nodes
    assert 1 < per_node < 6
    first, last = model_sizes(TypedRGCN(5, 8, 3, types=graph.types, layers=2), graph).layers
    # Its type's weight, and the matrices of the relations that a node has in-edges of.
    assert first.weights == (0, round(5 * 8 + per_node * 5 * 8))
    assert last.weights == (0, round(8 * 3 + per_node * 8 * 3))
    hgt = model_sizes(HGT(5, 8, 3, types=graph.types, heads=2, layers=2), graph)
    assert hgt.layers[0].weights == (8 * 16, round(8 * 8 + 8 * 8 + per_node * 2 * 2 * 4 * 4))
    assert numbers_per_edge(hgt.layer_plans[0]) == 3 * 2
