"""Targets of any type, from folders of tables and objects of PyG to runs, metrics and predictions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from tests.app.conftest import Command

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.store.fingerprint import fingerprint_graph
from outgrow.graph.store.reader import find_feature_file, open_store
from outgrow.planning.sizes import dataset_sizes

USERS, ITEMS, SHOPS, MAKERS = 30, 20, 12, 6
KINDS = ("gold", "silver", "bronze")


def write_shop(folder: Path) -> Path:
    """Users of three kinds, items of two, shops with numbers, and makers without labels."""
    draw = np.random.default_rng(0)

    def write(name: str, header: str, rows: list[tuple[Any, ...]]) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n")

    write("nodes/user.csv", "id,label,age", [(f"u{i}", KINDS[i % 3], draw.normal() + i % 3) for i in range(USERS)])
    write("nodes/item.csv", "id,label,price", [(f"i{i}", ("toy", "book")[i % 2], draw.normal()) for i in range(ITEMS)])
    write("nodes/shop.csv", "id,label,size", [(f"s{i}", round(draw.normal(), 3), draw.normal()) for i in range(SHOPS)])
    write("nodes/maker.csv", "id,age", [(f"m{i}", draw.normal()) for i in range(MAKERS)])
    for source, name, target, first, second in (
        ("user", "buys", "item", USERS, ITEMS),
        ("item", "sold_by", "shop", ITEMS, SHOPS),
        ("shop", "serves", "user", SHOPS, USERS),
        ("maker", "makes", "item", MAKERS, ITEMS),
    ):
        ends = [(f"{source[0]}{draw.integers(first)}", f"{target[0]}{draw.integers(second)}") for _ in range(90)]
        write(f"edges/{source}__{name}__{target}.csv", f"{source}_id,{target}_id", ends)
    return folder


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of it."""
    folder = tmp_path_factory.mktemp("shop")
    og.convert(write_shop(folder / "tables"), folder / "shop.store", split="0.5,0.25,0.25")
    return folder / "shop.store"


def model_of(graph: og.Graph) -> og.nn.Model:
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, 8, graph.num_classes)


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


def test_tasks_of_types(shop: Path) -> None:
    graph = og.load(shop)
    task = {"shop": og.NodeRegression(loss="huber", sample_weight=[0.5] * SHOPS)}
    run = og.train(graph, model_of(graph), task=task, targets="user=2,shop,item", epochs=2, progress=False)
    described = run.summary["task_options"]["targets"]
    assert {name: (each["task"], each["loss_weight"]) for name, each in described.items()} == {
        "user": ("classification", 2.0),
        "shop": ("regression", 1.0),
        "item": ("classification", 1.0),
    }
    assert described["shop"]["loss"] == "huber"
    assert run.summary["metric"] == "loss"
    assert {"user/accuracy", "item/accuracy", "shop/mae", "loss"} == set(run.summary["scores"]["val"])
    # One type alone is trained as if it were the only one.
    single = graph.select_targets("shop")
    alone = og.train(single, model_of(single), task=og.NodeRegression(loss="huber"), epochs=2, progress=False)
    named = og.train(
        graph,
        model_of(single),
        task={"shop": og.NodeRegression(loss="huber")},
        targets="shop",
        epochs=2,
        progress=False,
    )
    assert alone.summary["loss"] == named.summary["loss"]
    for bad, got in (
        ({"maker": og.NodeRegression()}, "one of maker"),
        ({"shop": og.NodeRegression(sample_weight=[1.0])}, "shape [1]"),
        (og.NodeClassification(), "task=NodeClassification(...)"),
    ):
        with pytest.raises(InputError) as refused:
            og.train(graph, model_of(graph), task=bad, epochs=1, progress=False)
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


@pytest.mark.parametrize("names", [("user", "item"), ("item",)])
def test_a_graph_with_chosen_targets_is_still_that_of_its_store(
    shop: Path, tmp_path: Path, names: tuple[str, ...]
) -> None:
    """Workers map the store, the command line can go on with the run, and plans count a mapped graph."""
    graph = og.load(shop)
    chosen = graph.select_targets(names)
    run = og.train(chosen, model_of(chosen), epochs=2, out=tmp_path / "run", progress=False)
    config = json.loads((tmp_path / "run/config.json").read_text())
    assert (config["graph"], config["graph_in_memory"]) == (str(shop.resolve()), False)
    assert config["train"]["targets"] == dict.fromkeys(names, 1.0)
    named = og.train(graph, model_of(chosen), targets=names, epochs=2, progress=False)
    assert run.summary["loss"] == named.summary["loss"]
    assert find_feature_file(chosen) == find_feature_file(graph) is not None
    assert dataset_sizes(chosen).resident_bytes == 0
    with patch("outgrow.app.runs.local_workers.write_store") as copied:
        twice = og.train(chosen, model_of(chosen), epochs=2, workers=2, progress=False)
    assert not copied.called
    assert twice.summary["loss"] == pytest.approx(run.summary["loss"])


def test_labels_that_were_changed_after_targets_were_chosen_count(shop: Path) -> None:
    graph = og.load(shop)
    users, others = graph.select_targets("user"), graph.select_targets("user")
    assert others.labels is not None
    others.labels[others.labels >= 0] = 0
    runs = [og.train(each, model_of(users), epochs=1, progress=False) for each in (users, others)]
    assert runs[0].summary["loss"] != runs[1].summary["loss"]


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


def test_tasks_of_types_on_the_command_line(outgrow: Command, tmp_path: Path) -> None:
    """Stars are whole numbers, which are classes unless it is said that they are not."""
    write_shop(tmp_path / "tables")
    stars = [f"s{i},{i % 5},{i}" for i in range(SHOPS)]
    (tmp_path / "tables/nodes/shop.csv").write_text("\n".join(["id,label,size", *stars]) + "\n")
    assert outgrow("convert", tmp_path / "tables", "stars.store", "--split", "0.5,0.25,0.25").code == 0
    few = ("--hidden", 8, "--epochs", 2)
    as_classes = outgrow("train", "stars.store", *few, "--out", "classes")
    assert "shop (classification, 5 outputs" in as_classes.err
    asked = ("--task", "shop=regression", "--set", "loss=huber", "--target", "shop=0.5,user")
    found = outgrow("train", "stars.store", *few, *asked, "--out", "run")
    assert found.code == 0, found.err
    assert "targets: shop (regression, 1 outputs, loss weight 0.5), user (classification" in found.err
    assert outgrow("train", "--resume", "--out", "run", "--epochs", 3, "--task", "shop=regression").code == 0
    assert outgrow("predict", "run", "--out", "p.parquet").code == 0
    changed = outgrow("train", "--resume", "--out", "run", "--epochs", 4, "--task", "shop=classification")
    assert (changed.code, "cannot go on with another task" in changed.err) == (2, True)
    # One type alone.
    one = ("--target", "shop", "--task", "shop=regression")
    assert outgrow("train", "stars.store", *few, *one, "--out", "one").code == 0
    for wrong, needed in (
        ("shop=rating", "one of classification, multilabel, regression"),
        ("shop=regression,shop=regression", "node types, each once"),
        ("=regression", "node types, each once"),
        ("shop,user=regression", "one of classification, multilabel, regression"),
        ("maker=regression", "tasks of item, shop, user"),
        ("shop=multilabel", "zeros and ones [V, C]"),
        ("user=regression", "labels that are numbers"),
    ):
        refused = outgrow("train", "stars.store", *few, "--task", wrong, "--out", "other")
        assert (refused.code, needed in " ".join(refused.err.split())) == (2, True), refused.err
        assert not Path("other").exists()
    graph = og.load("stars.store")
    model, names = og.nn.SAGE(graph.num_features, 8, 1), {"shop": "regression"}
    run = og.train(graph, model, targets="shop", task=names, epochs=1, progress=False)
    assert run.summary["metric"] == "mae"


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


def test_labels_of_pyg_objects_of_other_kinds() -> None:
    data_module = pytest.importorskip("torch_geometric.data")
    data = data_module.HeteroData()
    data["a"].x, data["b"].x = torch.ones(4, 2), torch.ones(6, 2)
    data["a"].y, data["b"].y = torch.tensor([0, 1, 2, -1]), torch.eye(6, 3).long()
    data["a"].train_mask = torch.tensor([True, True, False, False])
    data["b"].train_mask = torch.tensor([True, False, True, False, False, False])
    data["a", "to", "b"].edge_index = torch.tensor([[0, 1], [2, 3]])
    graph = og.load(data)
    assert [(each.name, each.num_classes, each.labels.dim()) for each in graph.type_labels] == [
        ("a", 3, 1),
        ("b", 3, 2),
    ]
    assert graph.split.train.tolist() == [0, 1, 4, 6]
    data["a"].train_mask = torch.tensor([True, True, False, True])
    with pytest.raises(InputError, match=r"the split train has nodes without a label \(type a\)"):
        og.load(data)
    # As many classes are still others.
    data["a"].train_mask = torch.tensor([True, True, False, False])
    data["b"].y = torch.tensor([0, 2, 1, 0, 0, 1])
    graph = og.load(data)
    assert (graph.labels, graph.target_types, graph.num_classes) == (None, ("a", "b"), 6)
    assert graph.select_targets("b").split.train.tolist() == [4, 6]
    both = graph.select_targets(["b", "a"])
    assert (both.num_classes, [each.name for each in both.type_labels]) == (6, ["b", "a"])


def test_classes_of_the_same_names_are_one_set_of_which_types_can_be_chosen(tmp_path: Path) -> None:
    write_shop(tmp_path)
    (tmp_path / "nodes/shop.csv").write_text(
        "id,label\ns0,toy\ns1,book\n" + "".join(f"s{i},\n" for i in range(2, SHOPS))
    )
    (tmp_path / "nodes/user.csv").write_text("id,age\n" + "".join(f"u{i},{i}\n" for i in range(USERS)))
    with pytest.warns(og.DataWarning, match="one set of labels: the classes book, toy"):
        graph = og.load(tmp_path)
    assert (graph.target_types, graph.num_classes) == (("item", "shop"), 2)
    assert graph.select_targets(["shop", "item"]).num_classes == 4


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
