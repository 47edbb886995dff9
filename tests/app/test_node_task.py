"""Tasks of nodes from end to end: of the command line, and objects that `og.train` is given."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import parquet
from tests.app.conftest import Command, planted
from torch import Tensor, nn
from torch.nn import functional

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store

SMALL = ("--model", "sage", "--hidden", 8, "--epochs", 3)
FAST: dict[str, Any] = {"epochs": 3, "progress": False}


def numbers(columns: int = 1) -> dict[str, np.ndarray]:
    """Arrays of a graph whose labels are sums of features, some of them unknown."""
    arrays = planted()
    labels = arrays["features"][:, :columns] * 2 + arrays["label"][:, None]
    labels[::9, 0] = np.nan
    return {**arrays, "label": labels.squeeze()}


@pytest.fixture
def targets(tmp_path: Path) -> str:
    """A file of a graph with one number for each node."""
    np.savez(tmp_path / "numbers.npz", **numbers())
    return "numbers.npz"


def graph_of(arrays: dict[str, np.ndarray], **changes: Any) -> Graph:
    split = {part: arrays[f"{part}_idx"] for part in ("train", "val", "test")}
    return og.from_arrays(
        arrays["edge_index"], **{"features": arrays["features"], "labels": arrays["label"], "split": split, **changes}
    )


def sage(graph: Graph, outputs: int | None = None) -> og.nn.Stack:
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, 8, outputs or graph.num_classes)


def test_a_regression_from_the_command_line(outgrow: Command, targets: str) -> None:
    refused = outgrow("train", targets, *SMALL, "--out", "run")
    assert refused.code == 2
    assert "--task regression" in refused.err
    assert not Path("run").exists()
    first = outgrow("train", targets, *SMALL, "--task", "regression", "--set", "loss=mae", "--out", "run", "--json")
    assert first.code == 0, first.err
    assert first.summary["metric"] == "mae"
    assert first.summary["task_options"] == {"task": "regression", "loss": "mae", "sample_weight": False}
    lines = [json.loads(line)["val_score"] for line in Path("run/metrics.jsonl").read_text().splitlines()]
    assert first.summary["best_epoch"] == 1 + int(np.argmin(lines))
    assert first.summary["val_accuracy"] == pytest.approx(min(lines))
    again = outgrow("train", "--out", "run", "--resume", "--epochs", 4, "--task", "regression", "--json")
    assert again.summary["epochs"] == 4
    assert again.summary["task_options"]["loss"] == "mae"
    assert outgrow("train", "--out", "run", "--resume", "--task", "nodes", "--epochs", 5).code == 0
    for other in (("--task", "classification"), ("--set", "loss=mse"), ("--task", "links")):
        changed = outgrow("train", "--out", "run", "--resume", *other)
        assert changed.code == 2
        assert "cannot go on with another" in changed.err
    assert outgrow("report", "run").code == 0


@pytest.mark.parametrize("columns", [1, 3])
def test_predictions_of_a_regression(outgrow: Command, tmp_path: Path, columns: int) -> None:
    np.savez(tmp_path / "numbers.npz", **numbers(columns))
    assert outgrow("train", "numbers.npz", *SMALL, "--task", "regression", "--out", "run").code == 0
    for name in ("p.parquet", "p.npy", "logits.npy"):
        asked = ("--what", "logits") if name == "logits.npy" else ()
        made = outgrow("predict", "run", "--out", name, *asked)
        assert made.code == 0, made.err
    rows, table = np.load("logits.npy"), parquet.read_table("p.parquet")
    assert rows.shape == (240, columns)
    assert np.array_equal(np.load("p.npy"), rows[:, 0] if columns == 1 else rows)
    names = ["value"] if columns == 1 else [f"value_{i}" for i in range(columns)]
    assert table.column_names == ["node", *names]
    assert np.array_equal(np.stack([table[name] for name in names], 1), rows)
    for what in ("classes", "probabilities"):
        refused = outgrow("predict", "run", "--out", "q.npy", "--what", what)
        assert refused.code == 2
        assert f"the run has no {what}" in refused.err


def test_whole_numbers_can_be_predicted_as_numbers(outgrow: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "counts.npz", **{**planted(), "label": (np.arange(240) % 90).astype(float)})
    trained = outgrow("train", "counts.npz", *SMALL, "--task", "regression", "--out", "run")
    assert trained.code == 0, trained.err
    assert outgrow("predict", "run", "--out", "p.npy").code == 0
    assert np.load("p.npy").shape == (240,)
    assert outgrow("train", "--out", "run", "--resume", "--epochs", 4).code == 0


def test_class_weights_from_the_command_line(outgrow: Command, npz: Path) -> None:
    options = ("--set", "class_weight=balanced", "--set", "label_smoothing=0.1")
    first = outgrow("train", npz, *SMALL, *options, "--out", "run", "--json")
    assert first.code == 0, first.err
    assert first.summary["train"]["class_weight"] == "balanced"
    assert first.summary["task_options"]["label_smoothing"] == 0.1
    plain = outgrow("train", npz, *SMALL, "--out", "plain", "--json")
    assert plain.summary["loss"] != first.summary["loss"]
    numbers = outgrow("train", npz, *SMALL, "--set", "class_weight=1,2,3,4", "--out", "numbers", "--json")
    assert numbers.summary["train"]["class_weight"] == [1, 2, 3, 4]
    for again in ("class_weight=1,2,3,4", "class_weight=[1,2,3,4]"):
        assert outgrow("train", "--out", "numbers", "--resume", "--epochs", 4, "--set", again).code == 0
    assert outgrow("train", "--out", "numbers", "--resume", "--set", "class_weight=1,2,3,5").code == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "class_weight=1,2"), "4 numbers, one for each class"),
        (("--set", "class_weight=1,2,3,-4"), "class_weight cannot be used"),
        (("--set", "class_weight=0,0,0,0"), "class_weight cannot be used"),
        (("--set", "class_weight=equal"), "unknown class_weight"),
        (("--set", "label_smoothing=1"), "label_smoothing is out of range"),
        (("--set", "pos_weight=balanced"), "pos_weight belongs to another task"),
        (("--set", "loss=mae"), "loss belongs to another task"),
        (("--set", "loss=focal"), "unknown loss"),
        (("--task", "multilabel"), "--task classification"),
        (("--task", "regression", "--set", "class_weight=balanced"), "class_weight belongs to another task"),
        (("--task", "regression", "--set", "decoder=dot"), "a decoder is for links"),
        (("--task", "ranking"), "unknown task"),
    ],
)
def test_options_that_are_refused(outgrow: Command, npz: Path, options: tuple[str, ...], message: str) -> None:
    refused = outgrow("train", npz, *SMALL, *options, "--out", "run")
    assert refused.code == 2
    assert message in refused.err
    assert not Path("run").exists()


def focal_loss(logits: Tensor, classes: Tensor) -> Tensor:
    loss = functional.cross_entropy(logits, classes, reduction="none")
    return (1 - (-loss).exp()) ** 2 * loss


CLASS_TASKS: list[Callable[[], og.NodeClassification]] = [
    lambda: og.NodeClassification(class_weight="balanced", label_smoothing=0.1),
    lambda: og.NodeClassification(loss=focal_loss),
    lambda: og.NodeClassification(sample_weight=np.arange(240) / 240),
]


@pytest.mark.parametrize("make", CLASS_TASKS)
def test_losses_are_the_same_on_two_workers(make: Callable[[], og.NodeClassification]) -> None:
    graph = graph_of(planted())
    one, two = (og.train(graph, sage(graph), task=make(), workers=workers, **FAST) for workers in (1, 2))
    assert two.summary["loss"] == pytest.approx(one.summary["loss"], rel=1e-5)
    assert two.summary["task_options"] == one.summary["task_options"]
    plain = og.train(graph, sage(graph), **FAST)
    assert plain.summary["loss"] != pytest.approx(one.summary["loss"], rel=1e-3)


def test_the_task_may_be_options_or_a_name() -> None:
    graph, several = graph_of(planted()), graph_of(numbers(2))
    task = og.NodeClassification(class_weight=[1, 2, 3, 4])
    asked = og.train(graph, sage(graph), task=task, **FAST)
    given = og.train(graph, sage(graph), class_weight=[1, 2, 3, 4], **FAST)
    assert asked.summary["loss"] == given.summary["loss"]
    assert asked.summary["train"] == {**given.summary["train"], "task": "classification"}
    named = og.train(several, sage(several), task="regression", loss="huber", **FAST)
    same = og.train(several, sage(several), task=og.NodeRegression(loss="huber"), **FAST)
    assert named.summary["loss"] == same.summary["loss"]
    assert og.plan(several, sage(several)).chosen is not None


def test_the_task_of_links_is_its_options() -> None:
    graph = graph_of(planted())
    model = og.nn.SAGE(graph.num_features, 8, 8).with_decoder(og.nn.Dot())
    run = og.train(graph, model, task=og.LinkPrediction(negatives=2, test_links=0.2), **FAST)
    assert run.summary["train"]["negatives"] == 2
    assert run.summary["train"]["test_links"] == 0.2
    assert run.summary["task_options"] == {}


def test_a_task_that_a_graph_or_a_model_does_not_fit() -> None:
    graph, targets = graph_of(planted()), graph_of(numbers())
    links = sage(graph).with_decoder(og.nn.Dot())
    for tried, model, task, message in (
        (targets, sage(targets), None, "--task regression"),
        (graph, sage(graph), og.MultiLabel(), "--task classification"),
        (graph, sage(graph), og.NodeRegression(), "1 outputs, one for each target"),
        (graph, sage(graph), og.LinkPrediction(), "does not fit the model"),
        (graph, links, og.NodeClassification(), "does not fit the model"),
        (graph, links, "regression", "does not fit the model"),
        (graph, sage(graph), 3, "wrong type"),
        (graph, sage(graph), "ranking", "unknown task"),
        (graph, sage(graph), og.NodeClassification(loss=nn.CrossEntropyLoss()), "reduction='none'"),
        (graph, sage(graph), og.NodeClassification(sample_weight=np.full(240, np.nan)), "240 others"),
    ):
        with pytest.raises(InputError, match=message):
            og.train(tried, model, task=task, **FAST)
    with pytest.raises(InputError, match="described twice"):
        og.train(graph, sage(graph), task=og.NodeClassification(), class_weight="balanced", **FAST)


def test_nodes_without_a_target_are_neither_trained_on_nor_scored(tmp_path: Path) -> None:
    arrays = numbers()
    graph = graph_of(arrays)
    known = {
        part: arrays[f"{part}_idx"][~np.isnan(arrays["label"][arrays[f"{part}_idx"]])] for part in ("train", "val")
    }
    assert len(known["train"]) < len(arrays["train_idx"])
    kept = graph_of(arrays, split={**known, "test": arrays["test_idx"]})
    options = {**FAST, "task": "regression", "batch_size": 16, "fanout": (3, 3)}
    one, other = og.train(graph, sage(graph), **options), og.train(kept, sage(kept), **options)
    assert one.summary["loss"] == other.summary["loss"]
    assert one.summary["scores"] == other.summary["scores"]
    write_store(graph, tmp_path / "store")
    stored = og.load(tmp_path / "store")
    assert og.train(stored, sage(stored), **options).summary["loss"] == one.summary["loss"]


def test_one_positive_in_two_hundred_is_found() -> None:
    rng, count = np.random.default_rng(0), 6000
    label = (rng.random(count) < 1 / 200).astype(int)
    features = rng.normal(size=(count, 8)).astype("f4")
    features[:, 0] += 1.2 * label
    positive = np.flatnonzero(label)
    edges = rng.integers(0, count, (2, 5 * count))
    among = np.stack([rng.choice(positive, 3 * len(positive)) for _ in range(2)])
    nodes = np.arange(count)
    split = {"train": nodes[: count // 2], "val": nodes[:0], "test": nodes[count // 2 :]}
    edge_index = np.concatenate([edges, among], 1)
    graph = og.from_arrays(edge_index, features=features, labels=label, split=split, undirected=True)
    found = {}
    for weight in (None, "balanced"):
        model = sage(graph)
        og.train(graph, model, epochs=40, progress=False, class_weight=weight, val="none")
        guess = og.predict(graph, model).argmax(1).numpy()[split["test"]]
        found[weight] = int(guess[label[split["test"]] == 1].sum()), int(label[split["test"]].sum())
    assert found[None][0] <= 0.2 * found[None][1]
    assert found["balanced"][0] >= 0.7 * found["balanced"][1]
