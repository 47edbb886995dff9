"""Names that users of PyG and DGL write: each means the documented one, and nothing behind the call knows it."""

import inspect
import json
from collections.abc import Callable
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import get_type_hints

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.app.model_registry import MODELS, model_options
from outgrow.core.graph_types import GraphTypes
from outgrow.nn.stack import Stack, StackOptions
from outgrow.ops.sparse import SparseRows

ENTRIES = {entry.build.__name__: entry.build for entry in MODELS.values() if entry.is_stack}
TYPES = GraphTypes(names=("a",), borders=(0, 4), columns=(0, 4), edge_types=(("a", "to", "a"),))
NEEDED: dict[str, dict[str, object]] = {
    "CompGCN": {"num_relations": 2},
    "EdgeNetwork": {"edge_dim": 2},
    "GINE": {"edge_dim": 2},
    "HGT": {"types": TYPES},
    "RGCN": {"num_relations": 2},
    "RGCNDiagonal": {"num_relations": 2},
    "TypedRGCN": {"types": TYPES},
}
EDGES = np.array([[3, 0, 2, 0, 1], [1, 2, 1, 1, 0]])


def made_by(build: Callable[..., og.nn.Model], **options: object) -> og.nn.Model:
    torch.manual_seed(0)
    return build(4, 8, 3, **NEEDED.get(build.__name__, {}), **options)


def small_graph(**options: object) -> og.Graph:
    split = {"train": [0, 2], "val": [1], "test": [3]}
    return og.from_arrays(EDGES, features=np.eye(4, 2), labels=[0, 1, 0, 1], split=split, **options)


@pytest.mark.parametrize("name", ENTRIES)
def test_num_layers_of_models(name: str) -> None:
    build = getattr(og.nn, name)
    model, same = made_by(build, num_layers=3), made_by(build, layers=3)
    assert repr(model) == repr(same)
    assert [*model.state_dict()] == [*same.state_dict()]
    with pytest.raises(og.InputError, match=f"option layers of {name} is given twice"):
        made_by(build, layers=3, num_layers=3)
    with pytest.raises(og.InputError, match="num_layer"):
        made_by(build, num_layer=3)


@pytest.mark.parametrize("name", ENTRIES)
def test_models_show_their_options(name: str) -> None:
    build = getattr(og.nn, name)
    shown = inspect.signature(build).parameters
    assert [*shown][-len(fields(Stack)) :] == [each.name for each in fields(Stack)]
    assert all(each.kind is not each.VAR_KEYWORD for each in shown.values())
    given = {each.name: shown[each.name].default for each in fields(Stack)}
    assert repr(made_by(build)) == repr(made_by(build, **given))
    epilogue = made_by(build).layers_list()[0].epilogue
    if not name.startswith(("Decoupled", "SIGN")):
        assert epilogue is not None
        assert epilogue.activation is given["activation"]


def test_options_of_models_are_those_of_the_stack() -> None:
    hints = get_type_hints(StackOptions)
    assert hints.pop("num_layers") is int
    assert hints == get_type_hints(Stack)
    assert og.nn.Stack(num_layers=3) == og.nn.Stack(layers=3)  # type: ignore[call-arg]
    assert not any("num_layers" in model_options(name) for name in MODELS)
    assert all(("layers" in model_options(name)) == entry.is_stack for name, entry in MODELS.items())


def test_a_graph_by_names_of_pyg() -> None:
    relation, weight = [0, 1, 0, 1, 1], [1.0, 2.0, 3.0, 4.0, 5.0]
    graph = small_graph(edge_type=relation, edge_weight=weight)
    assert graph.x is graph.features
    assert graph.y is graph.labels
    assert graph.edge_index.dtype == torch.int64
    order = np.lexsort((EDGES[0], EDGES[1]))
    assert graph.edge_index.tolist() == EDGES[:, order].tolist()
    assert graph.topology.relation is not None
    assert graph.topology.weight is not None
    assert graph.topology.relation.tolist() == np.array(relation)[order].tolist()
    assert graph.topology.weight.tolist() == np.array(weight)[order].tolist()
    masks = (graph.train_mask, graph.val_mask, graph.test_mask)
    for mask, nodes in zip(masks, (graph.split.train, graph.split.val, graph.split.test), strict=True):
        assert mask.dtype == torch.bool
        assert len(mask) == graph.num_nodes
        assert torch.equal(mask.nonzero()[:, 0], nodes)
    for name in ("x", "y", "edge_index", "train_mask"):
        with pytest.raises(AttributeError):
            setattr(graph, name, None)


def test_what_a_graph_lacks_it_lacks_by_both_names() -> None:
    bare = og.from_arrays(EDGES)
    assert bare.x is bare.features is None
    assert bare.y is bare.labels is None
    assert not any(mask.any() for mask in (bare.train_mask, bare.val_mask, bare.test_mask))
    assert isinstance(og.load("wordnet").x, SparseRows)
    assert og.from_arrays(np.empty((2, 0), np.int64), num_nodes=3).edge_index.shape == (2, 0)


def test_relations_and_weights_of_edges() -> None:
    pairs = {"relation": "edge_type", "weight": "edge_weight"}
    values = {"relation": [0, 1, 0, 1, 1], "weight": [1.0, 2.0, 3.0, 4.0, 5.0]}
    for name, synonym in pairs.items():
        by_name, by_synonym = (getattr(small_graph(**{each: values[name]}).topology, name) for each in (name, synonym))
        assert torch.equal(by_name, by_synonym)
        with pytest.raises(og.InputError, match=f"option {name} of from_arrays is given twice"):
            small_graph(**{name: values[name], synonym: values[name]})
    rows = [[each] for each in values["weight"]]
    assert torch.equal(small_graph(edge_attr=rows).edge_attr, small_graph(edge_features=rows).edge_features)
    with pytest.raises(og.InputError, match="edge_features of from_arrays is given twice"):
        small_graph(edge_features=rows, edge_attr=rows)
    with pytest.raises(og.InputError, match=r"needed: shape \[5, De\]"):
        small_graph(edge_attr=values["weight"])


def test_num_neighbors_is_the_fanout(tmp_path: Path) -> None:
    config = og.TrainConfig(num_neighbors=[5, 3])  # type: ignore[call-arg]
    assert config == og.TrainConfig(fanout=(5, 3)) == og.TrainConfig().with_options(num_neighbors=[5, 3])
    assert "num_neighbors" not in asdict(config)
    graph = small_graph()
    with pytest.raises(og.InputError, match="option fanout of training is given twice"):
        og.train(graph, og.nn.SAGE(2, 4, 2), fanout=(5, 3), num_neighbors=(5, 3))
    run = og.train(
        graph, og.nn.SAGE(2, 4, 2), epochs=1, batch_size=2, num_neighbors=[5, 3], out=tmp_path / "run", progress=False
    )
    recorded = json.loads((tmp_path / "run" / "config.json").read_text())["train"]
    assert recorded == json.loads((tmp_path / "run" / "summary.json").read_text())["train"]
    assert recorded["fanout"] == [5, 3]
    assert "num_neighbors" not in recorded
    resumed = og.train(
        graph,
        og.nn.SAGE(2, 4, 2),
        epochs=2,
        batch_size=2,
        num_neighbors=[5, 3],
        out=tmp_path / "run",
        resume=True,
        progress=False,
    )
    assert resumed.loss[:1] == run.loss
    plans = [
        og.plan(graph, og.nn.SAGE(2, 4, 2), workers=1, memory="4GiB", batch_size=2, **{name: (5, 3)})
        for name in ("fanout", "num_neighbors")
    ]
    assert str(plans[0]) == str(plans[1])


def test_facts_of_the_strategy_have_both_names() -> None:
    graph = small_graph()
    summary = og.train(graph, og.nn.GCN(2, 4, 2), epochs=1, strategy=og.Offload(chunks=2), progress=False).summary
    assert summary["strategy_facts"]["chunks"] == 2
    assert summary["found"] == summary["strategy_facts"]


def test_a_number_of_workers_needs_no_name() -> None:
    assert og.Workers(4) == og.Workers(number=4)
    assert og.Workers(4, max_restarts=2).max_restarts == 2
    with pytest.raises(og.InputError, match="wrong arguments"):
        og.Workers(4, "cpu")  # type: ignore[misc]
    with pytest.raises(og.InputError, match="number of workers is out of range"):
        og.Workers(0)


def test_layers_are_listed_without_submodules() -> None:
    listed = dir(og.nn)
    assert {"GCN", "SAGEConv", "Stack", "mean_weight"} <= set(listed)
    assert not any(isinstance(getattr(og.nn, name), ModuleType) for name in listed)
    assert "TYPE_CHECKING" not in listed
