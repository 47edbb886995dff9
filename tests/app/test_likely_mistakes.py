"""What `outgrow info` takes for a mistake: each on a graph that has it, and none on graphs that have none."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.sparse import csr_array
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.app import graph_facts
from outgrow.app.graph_facts import describe_graph
from outgrow.app.likely_mistakes import CHECKS, find_likely_mistakes
from outgrow.graph.graph import Graph
from outgrow.graph.statistics import features as feature_statistics

Arrays = dict[str, Any]


def build(arrays: Arrays) -> Graph:
    return og.from_arrays(
        arrays["edge_index"],
        features=arrays["features"],
        labels=arrays["label"],
        split={part: arrays[f"{part}_idx"] for part in ("train", "val", "test")},
        weight=arrays.get("weight"),
        num_nodes=arrays.get("num_nodes"),
        undirected=arrays.get("undirected", True),
    )


def clean() -> Arrays:
    return planted()


def no_edges() -> Arrays:
    return clean() | {"edge_index": np.array([[0, 1], [1, 0]])}


def numbered_from_1() -> Arrays:
    given = clean()
    return given | {"edge_index": given["edge_index"][:, given["edge_index"].max(0) < 239] + 1}


def labels_moved() -> Arrays:
    # In an order of nodes in which classes do not follow one another.
    given = clean()
    place = np.random.default_rng(1).permutation(240)
    label, features = np.empty(240, np.int64), np.empty((240, 8), np.float32)
    label[place], features[place] = given["label"], given["features"]
    return given | {"edge_index": place[given["edge_index"]], "features": features, "label": np.roll(label, 1)}


def one_way() -> Arrays:
    given = clean()
    src, dst = given["edge_index"]
    forth = np.unique(np.stack([np.minimum(src, dst), np.maximum(src, dst)]), axis=1)
    return given | {"edge_index": forth, "undirected": False}


def out_only() -> Arrays:
    given = clean()
    leads_out = np.isin(given["edge_index"], given["train_idx"])
    return given | {"edge_index": given["edge_index"][:, leads_out[0] & ~leads_out[1]], "undirected": False}


def constant() -> Arrays:
    return clean() | {"features": np.full((240, 3), 2.5, np.float32)}


def label_column() -> Arrays:
    given = clean()
    return given | {"features": np.c_[given["features"], 7.0 - given["label"]].astype(np.float32)}


def sparse_label_column() -> Arrays:
    given = label_column()
    return given | {"features": csr_array(np.pad(given["features"], ((0, 0), (0, 36))))}


def target_column() -> Arrays:
    given = clean()
    target = given["features"][:, 0] * 2 + given["label"]
    return given | {"features": np.c_[given["features"], target].astype(np.float32), "label": target.astype(np.float32)}


def id_column() -> Arrays:
    given = clean()
    return given | {"features": np.c_[1000 + 3 * np.arange(240), given["features"]].astype(np.float32)}


def repeated_rows() -> Arrays:
    given = clean()
    source = {label: int(given["train_idx"][given["label"][given["train_idx"]] == label][0]) for label in range(4)}
    for node in given["test_idx"][:12]:
        given["features"][node] = given["features"][source[int(given["label"][node])]]
    return given


def targets_unknown() -> Arrays:
    given = clean()
    numbers = given["label"] + 0.5
    numbers[given["train_idx"][:7]] = np.nan
    return given | {"label": numbers}


def class_only_in_test() -> Arrays:
    given = clean()
    label = given["label"].copy()
    label[given["test_idx"][:5]] = 4
    return given | {"label": label}


def one_in_many() -> Arrays:
    given = clean()
    label = np.zeros(240, np.int64)
    label[given["train_idx"][:3]] = label[given["test_idx"][:2]] = 1
    return given | {"label": label, "features": given["features"] + 0}


def negative_weights() -> Arrays:
    given = clean()
    weight = np.linspace(-1, 1, given["edge_index"].shape[1])
    return given | {"weight": weight}


def equal_weights() -> Arrays:
    given = clean()
    return given | {"weight": np.full(given["edge_index"].shape[1], 3.0)}


MISTAKES: dict[Callable[[], Arrays], str] = {
    no_edges: "isolated_nodes",
    numbered_from_1: "ids_off_by_one",
    labels_moved: "ids_off_by_one",
    one_way: "one_direction",
    out_only: "training_nodes_without_in_edges",
    constant: "constant_features",
    label_column: "label_among_features",
    sparse_label_column: "label_among_features",
    target_column: "label_among_features",
    id_column: "id_among_features",
    repeated_rows: "split_leak",
    targets_unknown: "training_nodes_without_label",
    class_only_in_test: "classes_without_training_nodes",
    one_in_many: "imbalanced_classes",
    negative_weights: "negative_weights",
    equal_weights: "equal_weights",
}


def names_of(graph: Graph) -> list[str]:
    return [mistake["name"] for mistake in describe_graph(graph)["likely_mistakes"]]


@pytest.mark.parametrize("make", MISTAKES, ids=lambda make: make.__name__)
def test_a_mistake_is_found_and_nothing_else(make: Callable[[], Arrays]) -> None:
    assert names_of(build(make())) == [MISTAKES[make]]


def test_every_check_has_a_graph_that_it_finds_something_in() -> None:
    assert len({MISTAKES[make] for make in MISTAKES} - {"equal_weights"}) == len(CHECKS)


@pytest.mark.parametrize("seed", range(5))
def test_planted_graphs_have_none(seed: int) -> None:
    assert names_of(build(planted(seed=seed))) == []
    typed = og.from_arrays(planted(seed=seed)["edge_index"], relation=np.arange(1440) % 3)
    assert names_of(typed) == []


@pytest.mark.parametrize("name", ["wordnet", "cora", "citeseer", "amazon-photo"])
def test_published_graphs_have_none(name: str) -> None:
    try:
        graph = og.load(name)
    except og.InputError:
        pytest.skip(f"{name} is not here")
    assert names_of(graph) == []


@pytest.mark.parametrize("name", ["rmat-8", "arxiv@0.01", "products@0.0005"])
def test_generated_graphs_have_none(name: str) -> None:
    # Half the nodes of a graph by R-MAT have no edge, and a graph scaled down has classes of one node: it is so.
    assert not {*names_of(og.load(name))} - {"isolated_nodes", "classes_without_training_nodes"}


def test_a_sample_finds_what_all_edges_show(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = build(one_way())
    whole = describe_graph(graph)
    monkeypatch.setattr(graph_facts, "COUNTED_EDGES", 100)
    part = describe_graph(graph)
    assert part.keys() - {"sampled_edges"} == whole.keys()
    assert part["isolated_nodes"] is part["components"] is part["out_degree_quantiles"] is None
    # The sample holds all edges of so small a graph.
    for name in ("homophily", "self_loops", "duplicate_edges", "reciprocal_edges", "in_degree_quantiles"):
        assert part[name] == whole[name]
    assert names_of(graph) == ["one_direction"]
    assert describe_graph(graph, full=True) == whole


def test_features_are_sampled_where_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    given = id_column()
    given["features"] = np.pad(given["features"], ((0, 0), (0, 36)))
    dense, sparse = build(given), build(given | {"features": csr_array(given["features"])})
    assert (dense.sparse, sparse.sparse) == (False, True)
    monkeypatch.setattr(feature_statistics, "_COUNTED_VALUES", 100)
    monkeypatch.setattr(feature_statistics, "_SAMPLED_ROWS", 50)
    for graph in (dense, sparse):
        facts = describe_graph(graph)
        assert facts["feature_rows_looked_at"] == 50
        assert facts["sampled_features"]
        assert facts["columns_that_number_nodes"] == [0]
        assert describe_graph(graph, full=True)["feature_range"][1] == 1000 + 3 * 239


def test_features_counted_by_hand() -> None:
    rows = np.array([[0, 2, 0], [0, 2, -1.5], [0, 2, 0], [0, 2, 4]], np.float32)
    rows[2] = 0
    for given in (rows, csr_array(rows), rows.astype(np.float16), torch.from_numpy(rows).bfloat16()):
        facts = describe_graph(og.from_arrays(np.array([[0], [1]]), features=given))
        assert facts["feature_range"] == [-1.5, 4.0]
        assert facts["constant_feature_columns"] == [0]
        assert facts["zero_feature_rows"] == 0.25


def test_sparse_features_are_counted_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = np.random.default_rng(0).integers(-2, 3, (60, 4)).astype(np.float32)
    rows[:, 2], rows[7] = 1, 0
    rows = np.pad(rows, ((0, 0), (0, 16)))
    whole = describe_graph(og.from_arrays(np.array([[0], [1]]), features=rows))
    monkeypatch.setattr(feature_statistics, "_BLOCK_STORED", 9)
    part = describe_graph(og.from_arrays(np.array([[0], [1]]), features=csr_array(rows)))
    assert part == whole | {"features_are": "sparse float32"}


def test_one_class_has_no_adjusted_homophily(outgrow: Command, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", edge_index=[[0, 1], [1, 0]], label=[0, 0])
    facts = outgrow("info", "g.npz", "--json").summary
    assert facts["homophily"] == {"edge": 1.0, "class_insensitive": 0.0, "adjusted": None, "if_moved_by_one": 0.0}
    assert "adjusted" not in outgrow("info", "g.npz").out


def test_facts_are_printed_in_sections_of_80_columns(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "g.npz", **numbered_from_1(), more=np.zeros(3))
    shown = outgrow("info", "g.npz")
    assert shown.code == 0
    assert max(map(len, shown.out.splitlines())) <= 80
    for text in ("Read", "key edge_index", "more", "in degree quantiles", "homophily", "Classes", "Likely mistakes"):
        assert text in shown.out
    assert "Repair: subtract 1" in shown.out
    facts = outgrow("info", "g.npz", "--json").summary
    assert facts["read"]["labels"] == "g.npz, key label"
    assert facts["not_read"] == ["more"]
    assert facts["first_ids"] == [0, 1, 2]
    assert outgrow("convert", "g.npz", "g.store").code == 0
    of_store = outgrow("info", "g.store", "--full", "--json").summary
    assert of_store == facts | {"name": of_store["name"]}
    assert json.dumps(facts)
    assert find_likely_mistakes(facts)[0].name == "ids_off_by_one"
