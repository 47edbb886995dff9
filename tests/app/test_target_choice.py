"""Which types are predicted, each by which task: chosen of graphs and of stores, in Python and on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from tests.app.conftest import Command
from tests.app.typed_shop import SHOPS, USERS, model_of, write_shop

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.store.reader import find_feature_file
from outgrow.planning.dataset_sizes import dataset_sizes


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
