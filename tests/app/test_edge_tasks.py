"""`og.EdgeClassification` and `og.EdgeRegression`: what they learn, what they refuse, and that targets do not leak."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph import edge_targets
from outgrow.graph.edge_targets import EdgeColumn, take_edge_column
from outgrow.graph.topology import Topology

NODES, EDGES, CLASSES = 200, 3000, 4
QUIET: dict[str, Any] = {"progress": False, "lr": 0.02, "weight_decay": 0.0}


def drawn() -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.int64], NDArray[np.float32]]:
    """Ends, features of nodes, a class for each edge that both ends tell, and a number that tells nothing."""
    random = np.random.default_rng(0)
    ends = random.integers(0, NODES, (2, EDGES))
    group = random.integers(0, 3, NODES)
    features = np.eye(3, dtype="f4")[group] + 0.1 * random.normal(size=(NODES, 3)).astype("f4")
    return ends, features, (group[ends[0]] + 2 * group[ends[1]]) % CLASSES, random.normal(size=EDGES).astype("f4")


def graph_of(*, unknown: bool = False) -> og.Graph:
    """Classes, numbers that hang on them, and numbers that tell nothing, as features of edges."""
    ends, features, kind, noise = drawn()
    columns = np.stack([kind, 2.0 * kind - 3, noise], 1).astype("f4")
    if unknown:
        columns[::5, 0], columns[::4, 1] = -1, 99
    return og.from_arrays(ends, features=features, edge_features=columns)


def model_of(outputs: int, edge_dim: int = 0) -> og.nn.Model:
    torch.manual_seed(0)
    return og.nn.SAGE(3, 16, 16).with_decoder(og.nn.EdgeMLP(16, outputs, edge_dim=edge_dim))


def majority() -> float:
    return float(np.bincount(drawn()[2]).max() / EDGES)


@pytest.mark.parametrize(
    "options", [{"strategy": "full"}, {"strategy": "sampled", "batch_size": 500, "fanout": (5, 5)}]
)
@pytest.mark.parametrize("unknown", [False, True])
def test_classes_that_both_ends_tell_are_learned(options: dict[str, Any], unknown: bool) -> None:
    # Without the number that hangs on the class.
    graph = og.hide_edge_target(graph_of(unknown=unknown), 1)
    steps = 1 if "batch_size" in options else 4
    task = og.EdgeClassification(target=0, class_weight="balanced", link_steps=steps)
    run = og.train(graph, model_of(CLASSES, 1), task=task, epochs=12, metrics="f1-macro", **options, **QUIET)
    scores = run.summary["scores"]["test"]
    assert run.summary["task"] == "edges"
    assert run.summary["metric"] == "accuracy"
    assert run.summary["task_options"]["target"] == 0
    assert scores["accuracy"] > majority() + 0.4
    assert scores["f1-macro"] > 0.9


def test_numbers_are_learned_on_two_workers() -> None:
    # The numbers alone.
    graph = og.hide_edge_target(og.hide_edge_target(graph_of(unknown=True), 2), 0)
    task = og.EdgeRegression(target=0, loss="huber", unknown=99)
    one, two = (
        og.train(graph, model_of(1), task=task, epochs=25, strategy="split", batch_size=400, workers=workers, **QUIET)
        for workers in (1, 2)
    )
    assert one.summary["metric"] == "mae"
    assert one.summary["scores"]["test"]["mae"] < 0.8
    assert one.summary["loss"] == pytest.approx(two.summary["loss"], rel=1e-4)
    assert one.summary["scores"]["test"]["mae"] == pytest.approx(two.summary["scores"]["test"]["mae"], rel=1e-3)


def test_a_decoder_of_ones_own_and_categories_by_name(tmp_path: Path) -> None:
    class Difference(og.nn.EdgeDecoder):
        def __init__(self) -> None:
            super().__init__()
            self.edge_dim = 1
            self.map = torch.nn.Linear(17, 3)

        def score(self, heads_PF, relations_P, tails_PF, edge_features_PI):  # type: ignore[no-untyped-def]
            return self.map(torch.cat([heads_PF - tails_PF, edge_features_PI], 1))

    ends, features, kind, noise = drawn()
    words = np.array(["card", "", "cash", "cheque"])[kind]
    rows = zip(*ends, words, noise, strict=True)
    (tmp_path / "edges.csv").write_text("src,dst,kind,amount\n" + "".join(f"{a},{b},{c},{d}\n" for a, b, c, d in rows))
    names = ",".join(f"feat_{at}" for at in range(3))
    nodes = (f"{node}," + ",".join(map(str, row)) for node, row in enumerate(features))
    (tmp_path / "nodes.csv").write_text(f"id,{names}\n" + "\n".join(nodes) + "\n")
    graph = og.load(tmp_path, edge_features="kind,amount")
    hidden = og.hide_edge_target(graph, "kind")
    assert [column.name for column in hidden.topology.feature_columns] == ["amount"]
    assert hidden.num_edge_features == 1
    torch.manual_seed(0)
    model = og.nn.SAGE(3, 16, 16).with_decoder(Difference())
    task = og.EdgeClassification(target="kind")
    run = og.train(graph, model, task=task, epochs=3, out=tmp_path / "run", **QUIET)
    # The rows without a text are of no class.
    _, column = take_edge_column(graph.topology, "kind", "graph")
    assert column.category_names == tuple(dict.fromkeys(word for word in column.category_names if word))
    assert int((column.values < 0).sum()) == int((kind == 1).sum())
    assert run.summary["scores"]["test"]["accuracy"] >= 0
    again = og.train(graph, model, task=task, epochs=4, out=tmp_path / "run", resume=True, **QUIET)
    assert again.summary["epochs"] == 4
    other = og.EdgeClassification(target=0)
    with pytest.raises(InputError, match="another target of edges"):
        og.train(graph, model, task=other, epochs=5, out=tmp_path / "run", resume=True, **QUIET)
    assert og.embed(hidden, og.load_run(tmp_path / "run").model).shape == (NODES, 16)


def leaking(topology: Topology, column: str | int, where: str) -> tuple[Topology, EdgeColumn]:
    """The target stays among the features, in the place of another column."""
    rest, taken = take_edge_column(topology, column, where)
    assert rest.edge_features is not None
    rest.edge_features[:, 0] = taken.values
    return rest, taken


@pytest.mark.parametrize("leaks", [False, True])
def test_a_target_that_nothing_tells_is_not_learned_unless_it_leaks(leaks: bool) -> None:
    ends, features, _, noise = drawn()
    secret = np.random.default_rng(1).integers(0, 2, EDGES)
    graph = og.from_arrays(ends, features=features, edge_features=np.stack([noise, secret.astype("f4")], 1))
    mutant: AbstractContextManager[Any] = nullcontext()
    if leaks:
        mutant = patch("outgrow.app.edge_task.take_edge_column", leaking)
    with mutant:
        run = og.train(graph, model_of(2, 1), task=og.EdgeClassification(target=1), epochs=60, test=None, **QUIET)
    accuracy = run.summary["scores"]["test"]["accuracy"]
    assert accuracy > 0.95 if leaks else accuracy < 0.6
    assert edge_targets.take_edge_column is take_edge_column


CLASS, NUMBER = og.EdgeClassification, og.EdgeRegression


def reader() -> og.nn.Model:
    """A model whose decoder reads the other features, so that nothing is warned of."""
    return model_of(CLASSES, 2)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("column by name", {"task": CLASS(target="kind")}, "unknown column of features of edges"),
    ("column by number", {"task": CLASS(target=3)}, "no such column"),
    ("no whole numbers", {"task": CLASS(target=2)}, "has no classes"),
    ("outputs", {"task": CLASS(target=0), "model": lambda: model_of(3)}, "does not fit the targets"),
    (
        "features of the target",
        {"task": NUMBER(target=1), "model": lambda: model_of(1, 3)},
        "decoder does not fit the edges",
    ),
    ("no decoder", {"task": CLASS(target=0), "model": lambda: og.nn.SAGE(3, 16, CLASSES)}, "does not fit the model"),
    (
        "a decoder of links",
        {"task": CLASS(target=0), "model": lambda: og.nn.SAGE(3, 16, 16).with_decoder(og.nn.Dot())},
        "does not fit the model",
    ),
    ("a task of nodes", {"task": og.NodeClassification()}, "does not fit the model"),
    ("a task of links", {"task": og.LinkPrediction()}, "does not fit the model"),
    ("no task", {}, "needs to be told its target"),
    ("an option twice", {"task": CLASS(target=0), "val_links": 0.2}, "described twice"),
    ("an option of links", {"task": CLASS(target=0), "hide": 0.2}, "described twice"),
    (
        "an option of links in a config",
        {"task": CLASS(target=0), "config": og.TrainConfig(hide=0.2)},
        "described twice",
    ),
    ("a task by name", {"task": "edge-classification"}, "needs to be told its target"),
    (
        "a batch too large for a strategy",
        {"task": CLASS(target=0), "batch_size": 2700, "strategy": "sampled", "model": reader},
        "larger than the edges",
    ),
    ("no validation", {"task": CLASS(target=0, val_links=1e-9)}, "too few edges with a known target"),
    (
        "a batch too large",
        {"task": CLASS(target=0), "batch_size": 5000, "model": reader},
        "larger than the edges",
    ),
    (
        "steps of batches",
        {"task": CLASS(target=0, link_steps=2), "batch_size": 500, "model": reader},
        "no such option",
    ),
    (
        "exclusion on the whole graph",
        {"task": CLASS(target=0, exclude="target"), "model": reader},
        "no such option",
    ),
    (
        "a metric of another task",
        {"task": NUMBER(target=1), "model": lambda: model_of(1), "metrics": "auroc"},
        "metric",
    ),
    ("weights", {"task": CLASS(target=0, class_weight=(1, 2))}, "does not fit the classes"),
]


@pytest.mark.parametrize(("options", "message"), [each[1:] for each in REFUSED], ids=[each[0] for each in REFUSED])
def test_what_is_refused(options: dict[str, Any], message: str) -> None:
    model = options.get("model", lambda: model_of(CLASSES))()
    given = {name: value for name, value in options.items() if name != "model"}
    with pytest.raises(InputError, match=message):
        og.train(graph_of(), model, **given, **QUIET)


@pytest.mark.parametrize(
    ("column", "task", "message"),
    [
        (np.ones(EDGES), CLASS(target=0), "too few classes"),
        (np.full(EDGES, np.nan), CLASS(target=0), "no edge of a known class"),
        (np.full(EDGES, np.nan), NUMBER(target=0), "too few edges with a known target"),
        (np.full(EDGES, np.inf), NUMBER(target=0), "infinite"),
    ],
)
def test_targets_that_cannot_be_predicted(column: NDArray[np.float64], task: Any, message: str) -> None:
    ends, features, *_ = drawn()
    graph = og.from_arrays(ends, features=features, edge_features=np.zeros((EDGES, 1), "f4"))
    graph = replace(graph, topology=replace(graph.topology, edge_features=torch.from_numpy(column)[:, None]))
    with pytest.raises(InputError, match=message):
        og.train(graph, model_of(1), task=task, **QUIET)


def test_edges_without_features_or_with_codes() -> None:
    ends, features, kind, _ = drawn()
    plain = og.from_arrays(ends, features=features)
    with pytest.raises(InputError, match="have no features"):
        og.train(plain, model_of(1), task=CLASS(target=0), **QUIET)
    coded = og.from_arrays(ends, features=features, edge_features=kind[:, None], edge_feature_sizes=(CLASSES,))
    with pytest.raises(InputError, match="is one of categories"):
        og.train(coded, model_of(1), task=NUMBER(target=0), **QUIET)
    run = og.train(coded, model_of(CLASSES), task=CLASS(target=0, link_steps=4), epochs=12, **QUIET)
    assert run.summary["scores"]["test"]["accuracy"] > majority() + 0.4
