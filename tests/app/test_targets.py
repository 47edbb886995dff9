"""Targets of any type, from folders of tables and objects of PyG to runs, metrics and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.conftest import Command
from tests.app.typed_shop import ITEMS, KINDS, MAKERS, SHOPS, USERS, model_of, write_shop

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.store.fingerprint import fingerprint_graph
from outgrow.graph.store.reader import open_store


def test_labels_of_types_are_read_and_stored(shop: Path) -> None:
    graph = open_store(shop, verify=True)
    names = [kind.name for kind in graph.node_types]
    assert graph.target_types == tuple(name for name in names if name != "maker")
    assert graph.labels is None
    own = {each.name: each for each in graph.type_labels}
    assert own["user"].class_names == ("bronze", "gold", "silver")
    assert own["item"].class_names == ("book", "toy")
    assert own["shop"].are_numbers
    assert graph.num_classes == 3 + 2 + 1
    again = og.load(shop.parent / "tables", split="0.5,0.25,0.25")
    assert fingerprint_graph(again) == fingerprint_graph(graph)
    for each in again.type_labels:
        assert torch.equal(each.labels, own[each.name].labels)
    # Another label is another fingerprint.
    again.type_labels[0].labels[0] = 1 - again.type_labels[0].labels[0]
    assert fingerprint_graph(again)["labels"] != fingerprint_graph(graph)["labels"]


def test_targets_are_chosen(shop: Path) -> None:
    graph = og.load(shop)
    users = graph.select_targets("user")
    kinds = {kind.name: kind for kind in graph.node_types}
    first, last = kinds["user"].first, kinds["user"].last
    assert (users.num_classes, users.class_names, users.type_labels) == (3, ("bronze", "gold", "silver"), ())
    assert users.labels is not None
    assert (users.labels[:first] == -1).all()
    assert (users.labels[first:last] >= 0).all()
    assert len(users.split.train) == USERS // 2
    assert ((users.split.train >= first) & (users.split.train < last)).all()
    two = graph.select_targets(["user", "item"])
    assert [each.name for each in two.type_labels] == ["user", "item"]
    assert two.num_classes == 5
    assert two.select_targets("item").num_classes == 2
    # The labels of one type are those that it would have alone.
    assert torch.equal(two.select_targets("user").task_labels, users.labels)


@pytest.mark.parametrize(
    ("targets", "got"),
    [
        ("nobody", "nobody, which is no type of its nodes"),
        ("maker", "maker, which has no labels"),
        (["user", "user"], "user twice"),
        ({"user": 0.0, "item": 1.0}, "user with 0.0"),
        ({"user": -1.0, "item": 1.0}, "user with -1.0"),
        ({"user": float("nan"), "item": 1.0}, "user with nan"),
        ("user=half,item", "user with 'half'"),
        ({"user": 0.5}, "user=0.5"),
        ([], "no name"),
        (7, "7"),
    ],
)
def test_other_targets_are_refused(shop: Path, targets: Any, got: str) -> None:
    graph = og.load(shop)
    with pytest.raises(InputError) as refused:
        og.train(graph, model_of(graph), targets=targets, epochs=1, progress=False)
    assert got in refused.value.got


def test_runs_go_on_with_the_same_targets(shop: Path, tmp_path: Path) -> None:
    graph = og.load(shop)
    two = graph.select_targets(("user", "item"))
    options: dict[str, Any] = {"targets": {"user": 1.0, "item": 2.0}, "progress": False}
    whole = og.train(graph, model_of(two), epochs=4, **options)
    og.train(graph, model_of(two), epochs=2, out=tmp_path / "run", **options)
    resumed = og.train(graph, model_of(two), epochs=4, out=tmp_path / "run", resume=True, **options)
    assert resumed.summary["loss"] == whole.summary["loss"]
    with pytest.raises(InputError, match="cannot go on with another targets"):
        og.train(
            graph, model_of(two), epochs=5, out=tmp_path / "run", resume=True, **(options | {"targets": "user,item"})
        )
    swapped = options | {"targets": {"item": 2.0, "user": 1.0}}
    with pytest.raises(InputError, match="cannot go on with another targets"):
        og.train(graph, model_of(two), epochs=5, out=tmp_path / "run", resume=True, **swapped)
    # What was given as an object, the command line cannot make again.
    task = {"user": og.NodeClassification(label_smoothing=0.1)}
    og.train(graph, model_of(two), epochs=1, task=task, out=tmp_path / "own", **options)
    config = json.loads((tmp_path / "own/config.json").read_text())
    assert config["task_objects"] == ["task of user"]


def test_a_model_of_other_outputs_is_refused(shop: Path) -> None:
    graph = og.load(shop)
    with pytest.raises(InputError, match="does not fit the graph") as refused:
        og.train(graph, model_of(graph), targets="user,item", epochs=1, progress=False)
    assert refused.value.needed == "5 outputs, those of user (3), item (2)"


def test_metrics_and_monitors_of_types(shop: Path) -> None:
    graph = og.load(shop).select_targets(("user", "item"))
    run = og.train(
        graph, model_of(graph), metrics="f1-macro,auroc", monitor="item/auroc", patience=5, epochs=3, progress=False
    )
    names = {f"{name}/{metric}" for name in ("user", "item") for metric in ("accuracy", "f1-macro", "auroc")}
    assert set(run.summary["scores"]["val"]) == names | {"mean_accuracy"}
    assert run.summary["metric"] == "item/auroc"
    assert run.logits is not None
    # The metrics of a type are those of its own nodes and outputs.
    sub = graph.select_targets("item")
    assert sub.labels is not None
    right = run.logits[sub.split.test][:, 3:].argmax(1) == sub.labels[sub.split.test]
    assert run.summary["scores"]["test"]["item/accuracy"] == pytest.approx(right.double().mean().item())
    with pytest.raises(InputError, match="the metric r2 is not for these targets"):
        og.train(graph, model_of(graph), metrics="r2", epochs=1, progress=False)
    with pytest.raises(InputError, match="metric to monitor"):
        og.train(graph, model_of(graph), monitor="shop/mae", epochs=1, progress=False)


def test_a_loop_of_ones_own_and_batches(shop: Path) -> None:
    graph = og.load(shop).select_targets(("user", "item"))
    train = graph.split.train
    with og.prepare(graph, model_of(graph), targets={"user": 1.0, "item": 2.0}, batch_size=7, fanout=(-1, -1)) as loop:
        assert sum(step.num_seeds for step in loop.steps(0)) == len(train)
        assert {"user/accuracy", "item/accuracy", "mean_accuracy", "loss"} == set(loop.evaluate("val"))
    batch = next(iter(og.NeighborLoader(graph, "train", batch_size=5, fanout=(2, 2), output="block")))
    assert torch.equal(batch.y.long(), graph.task_labels[batch.seeds].long())
    plan = og.plan(graph, model_of(graph), workers=1)
    assert "full" in str(plan)


def test_the_command_line(outgrow: Command, shop: Path) -> None:
    info = json.loads(outgrow("info", shop, "--json").out)
    facts = {each["type"]: each for each in info["target_types"]}
    assert {name: (each["labels_are"], each["train_nodes"]) for name, each in facts.items()} == {
        "user": ("classes", 15),
        "item": ("classes", 10),
        "shop": ("numbers", 6),
    }
    shown = outgrow("info", shop).out
    assert "Labels of node types" in shown
    assert "user/gold" in shown
    few = ("--hidden", 8, "--epochs", 2)
    found = outgrow(
        "train", shop, *few, "--target", "user", "--target", "item=0.5", "--out", "run", "--metric", "auroc"
    )
    assert found.code == 0, found.err
    assert "targets: user (classification, 3 outputs, loss weight 1), item" in found.err
    line = json.loads(Path("run/metrics.jsonl").read_text().splitlines()[-1])
    assert {"user/accuracy", "item/accuracy", "mean_accuracy", "user/auroc"} <= set(line["scores"])
    assert outgrow("train", "--resume", "--out", "run", "--epochs", 4, "--target", "user,item=0.5").code == 0
    refused = outgrow("train", "--resume", "--out", "run", "--target", "user")
    assert refused.code == 2
    assert "cannot go on with another targets" in refused.err
    assert outgrow("plan", shop, "--target", "user,item", "--workers", 1, "--hidden", 8).code == 0
    assert outgrow("plan", shop, "--target", "maker").code == 2
    assert outgrow("plan", "--workload", "reddit", "--hardware", "4xT4", "--target", "user").code == 2
    assert outgrow("report", "run").code == 0
    html = Path("run/report.html").read_text()
    assert "item/auroc" in html
    for option, wrong in (("--target", "maker"), ("--target", "user=0"), ("--link-relations", "user__buys__item")):
        assert outgrow("train", shop, *few, option, wrong, "--out", "other").code == 2
        assert not Path("other").exists()


def test_predictions_have_the_classes_of_each_type(outgrow: Command, shop: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert outgrow("train", shop, "--hidden", 8, "--epochs", 2, "--out", "run").code == 0
    logits = og.predict(og.load(shop), og.load_run("run").model)
    for workers in (1, 2):
        assert outgrow("predict", "run", "--out", "p.parquet", "--workers", workers).code == 0
        rows = parquet.read_table("p.parquet").to_pylist()
        for row in rows:
            own = {"user": (KINDS, False), "item": (("toy", "book"), False), "shop": ((), True), "maker": ((), False)}
            names, has_value = own[row["type"]]
            assert (row["class"] in names) == bool(names)
            assert (row["label"] is None) == (row["probability"] is None) == (not names)
            assert (row["value"] is not None) == has_value
        # Items have the first outputs: types are in alphabetical order.
        assert [row["label"] for row in rows[:ITEMS]] == logits[:ITEMS, :2].argmax(1).tolist()
    assert outgrow("predict", "run", "--out", "p.parquet", "--what", "probabilities").code == 0
    first = parquet.read_table("p.parquet")["probabilities"][0].as_py()
    assert first[:2] == pytest.approx(logits[0, :2].softmax(0).tolist())
    assert np.isnan(first[2:]).all()
    assert outgrow("predict", "run", "--out", "p.npy", "--what", "logits").code == 0
    assert np.load("p.npy").shape == (USERS + ITEMS + SHOPS + MAKERS, 6)
    for what in ("classes", "probabilities", "values"):
        assert outgrow("predict", "run", "--out", "q.npy", "--what", what).code == 2


def test_links_of_a_relation(outgrow: Command, shop: Path) -> None:
    few = ("--task", "links", "--hidden", 8, "--epochs", 1, "--link-relations")
    assert outgrow("train", shop, *few, "user__buys__item", "--out", "run").code == 0
    summary = json.loads(Path("run/summary.json").read_text())
    assert summary["train"]["link_relations"] == ["user__buys__item"]
    assert outgrow("train", "--resume", "--out", "run", "--epochs", 2, "--link-relations", "user__buys__item").code == 0
    other = outgrow("train", "--resume", "--out", "run", "--epochs", 2, "--link-relations", "shop__serves__user")
    assert (other.code, "another link_relations" in other.err) == (2, True)
    assert "unknown relation" in outgrow("train", shop, *few, "user__sells__item", "--out", "other").err
    assert outgrow("train", shop, *few, "user__buys__item", "--target", "user", "--out", "other").code == 2
    graph = og.load(shop)
    link = og.nn.SAGE(graph.num_features, 8, 8).with_decoder(og.nn.Dot())
    task = og.LinkPrediction(link_relations=["item__sold_by__shop"], val_links=0.2)
    run = og.train(graph, link, task=task, epochs=1, progress=False)
    assert run.summary["train"]["link_relations"] == ("item__sold_by__shop",)


def test_a_construction_config_says_what_is_a_number(tmp_path: Path) -> None:
    write_shop(tmp_path)
    stars = [f"s{i},{i % 5},{i}" for i in range(SHOPS)]
    (tmp_path / "nodes/shop.csv").write_text("\n".join(["id,stars,size", *stars]) + "\n")
    csv = {"name": "csv"}

    def node(kind: str, label: str, task: str, feature: str) -> dict[str, Any]:
        return {
            "node_type": kind,
            "format": csv,
            "files": f"nodes/{kind}.csv",
            "node_id_col": "id",
            "features": [{"feature_col": feature}],
            "labels": [{"label_col": label, "task_type": task}],
        }

    edge = {
        "relation": ["shop", "serves", "user"],
        "format": csv,
        "files": "edges/shop__serves__user.csv",
        "source_id_col": "shop_id",
        "dest_id_col": "user_id",
    }
    nodes = [node("user", "label", "classification", "age"), node("shop", "stars", "regression", "size")]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps({"version": "gconstruct-v0.1", "nodes": nodes, "edges": [edge]}))
    graph = og.load(path)
    user, shop = graph.type_labels
    assert (user.num_classes, shop.are_numbers, shop.num_classes) == (3, True, 1)
    assert shop.labels.tolist() == [i % 5 for i in range(SHOPS)]
    run = og.train(graph, model_of(graph), epochs=1, progress=False)
    assert "shop/mae" in run.summary["scores"]["val"]
