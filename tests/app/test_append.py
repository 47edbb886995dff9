"""Stores that grow: equal to what converting everything at once gives, and predicted for by a model of before."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from scipy.sparse import csr_array
from tests.app.conftest import Command, planted
from tests.app.growing_stores import NEW, assert_same, ids_of, small, write_rows

import outgrow as og
from outgrow.graph.graph import Graph
from outgrow.graph.readers.stored_edges import read_stored_edges


@st.composite
def growing_graphs(draw: st.DrawFn) -> dict[str, Any]:
    before, after = draw(st.integers(2, 6)), draw(st.integers(0, 4))
    nodes = before + after

    def draw_edges(most: int, size: int) -> list[tuple[int, int]]:
        return draw(st.lists(st.tuples(st.integers(0, most - 1), st.integers(0, most - 1)), max_size=size))

    old, new = draw_edges(before, 12), draw_edges(nodes, 12)
    typed = draw(st.booleans())
    relation = draw(st.lists(st.integers(0, 2), min_size=len(old) + len(new), max_size=len(old) + len(new)))
    if typed:
        # Relations are known by the names that the first part has.
        old, relation = [*old, (0, 1)], [*relation[: len(old)], 2, *relation[len(old) :]]
    return {
        "before": before,
        "nodes": nodes,
        "edges": [*old, *new],
        "old": len(old),
        "relation": relation if typed else None,
        "weighted": draw(st.booleans()),
        "mode": draw(st.sampled_from(["directed", "undirected"])),
        "ids": draw(st.sampled_from(["none", "integers", "texts"])),
        "sparse": draw(st.booleans()),
        "order": draw(st.permutations(range(nodes))),
    }


def rows_of(drawn: dict[str, Any]) -> np.ndarray:
    """Features of all nodes; sparse ones have a number other than zero in every fifth row."""
    rows = np.random.default_rng(0).normal(size=(drawn["nodes"], 3)).round(2).astype(np.float32)
    if drawn["sparse"]:
        rows[:, 1:] = rows[np.arange(drawn["nodes"]) % 5 > 0] = 0
    return rows


def make(drawn: dict[str, Any], nodes: int, edges: int) -> Graph:
    index = np.array(drawn["edges"][:edges], np.int64).reshape(-1, 2).T
    features = rows_of(drawn)[:nodes]
    labels = np.r_[0, 1, np.arange(2, nodes) % 3 - 1]
    graph = og.from_arrays(
        index,
        features=csr_array(features) if drawn["sparse"] else features,
        labels=labels,
        split={"train": [0], "val": [1], "test": [v for v in range(2, nodes) if labels[v] >= 0 and v % 2]},
        num_nodes=nodes,
        relation=None if drawn["relation"] is None else np.array(drawn["relation"][:edges], np.int64),
        weight=0.5 + np.arange(edges) if drawn["weighted"] else None,
        undirected=drawn["mode"] == "undirected",
    )
    return replace(graph, ids=None if drawn["ids"] == "none" else ids_of(names_of(drawn)[:nodes]))


def names_of(drawn: dict[str, Any]) -> list[int] | list[str]:
    numbers = [10**12 - 7 * place for place in drawn["order"]]
    return [f"node {number}" for number in numbers] if drawn["ids"] == "texts" else numbers


def write_growth(drawn: dict[str, Any], folder: Path) -> tuple[Path, Path]:
    names = list(range(drawn["nodes"])) if drawn["ids"] == "none" else names_of(drawn)
    whole = make(drawn, drawn["nodes"], len(drawn["edges"]))
    assert whole.sparse == drawn["sparse"]
    features = whole.features if isinstance(whole.features, torch.Tensor) else None
    rows = rows_of(drawn)
    assert features is None or torch.equal(features, torch.from_numpy(rows))
    assert whole.labels is not None
    test = {v for v in whole.split.test.tolist() if v >= drawn["before"]}
    with_ids = drawn["ids"] != "none"
    # A column of splits that names nobody is refused.
    table: list[list[object]] = [[*(["id"] if with_ids else []), "label", *(["split"] if test else []), "a", "b", "c"]]
    for v in range(drawn["before"], drawn["nodes"]):
        label = int(whole.labels[v])
        part = ["test" if v in test else ""] if test else []
        about = ["" if label < 0 else label, *part, *(repr(float(x)) for x in rows[v])]
        table.append([*([names[v]] if with_ids else []), *about])
    edges: list[list[object]] = [["src", "dst", "relation", "weight"]]
    for number in range(drawn["old"], len(drawn["edges"])):
        src, dst = drawn["edges"][number]
        relation = "" if drawn["relation"] is None else drawn["relation"][number]
        edges.append([names[src], names[dst], relation, 0.5 + number])
    kept = [0, 1, *([2] if drawn["relation"] is not None else []), *([3] if drawn["weighted"] else [])]
    edges = [[row[at] for at in kept] for row in edges]
    return write_rows(folder / "nodes.csv", table), write_rows(folder / "edges.csv", edges)


@settings(deadline=None, max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(growing_graphs())
def test_appending_the_rest_equals_converting_all_at_once(
    tmp_path_factory: pytest.TempPathFactory, drawn: dict[str, Any]
) -> None:
    # Which of two directions was read is known of stored edges by their relations, and else not: see below.
    if drawn["mode"] == "undirected" and drawn["relation"] is None:
        drawn["weighted"] = False
    folder = tmp_path_factory.mktemp("grow")
    og.save_graph(make(drawn, drawn["before"], drawn["old"]), folder / "g.store")
    nodes, edges = write_growth(drawn, folder)
    has_nodes, has_edges = drawn["nodes"] > drawn["before"], len(drawn["edges"]) > drawn["old"]
    if not (has_nodes or has_edges):
        return
    grown = og.append(
        folder / "g.store",
        nodes=nodes if has_nodes else (),
        edges=edges if has_edges else (),
        undirected=drawn["mode"] == "undirected",
        memory_bytes=4096,
    )
    assert_same(grown, make(drawn, drawn["nodes"], len(drawn["edges"])))
    assert grown.store == (folder / "g.store").resolve()


def test_stored_edges_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.graph.readers.stored_edges._CHUNK", 3)
    graph = og.from_arrays(np.array([[0, 1, 2, 3, 3, 0, 4], [0, 0, 0, 0, 2, 2, 4]]), num_nodes=6)
    chunks = list(read_stored_edges(graph.topology))
    assert [len(chunk.src) for chunk in chunks] == [3, 3, 1]
    assert np.concatenate([chunk.src for chunk in chunks]).tolist() == graph.edge_index[0].tolist()
    assert np.concatenate([chunk.dst for chunk in chunks]).tolist() == graph.edge_index[1].tolist()


def test_classes_and_relations_are_found_by_names(tmp_path: Path) -> None:
    graph = small()
    typed = replace(
        graph,
        topology=replace(graph.topology, relation=torch.tensor([0, 1, 1], dtype=torch.int8)),
        relation_names=("pays", "knows"),
        splits=(graph.split, og.Split(train=torch.tensor([2]), val=torch.tensor([1]), test=torch.tensor([0]))),
    )
    og.save_graph(replace(typed, split=typed.splits[1]), tmp_path / "g")
    nodes = write_rows(tmp_path / "n.csv", [*NEW, ["eve", "", 0, 0, 0], ["fay", "no", 4, 5, 6]])
    rows = [["src", "dst", "relation"], ["dan", "ann", "knows"], ["ann", "fay", "pays"]]
    edges = write_rows(tmp_path / "e.csv", rows)
    grown = og.append(tmp_path / "g", nodes=[nodes], edges=str(edges), out=tmp_path / "h")
    assert grown.labels is not None
    assert grown.labels.tolist() == [0, 1, 1, 0, -1, 1]
    assert grown.index_of(["fay", "ann"]).tolist() == [5, 0]
    assert grown.topology.relation is not None
    assert grown.edge_index.tolist() == [[2, 3, 0, 1, 0], [0, 0, 1, 2, 5]]
    assert grown.topology.relation.tolist() == [0, 1, 1, 1, 0]
    assert grown.relation_names == ("pays", "knows")
    assert (grown.split.train.tolist(), len(grown.splits)) == ([2], 2)
    assert dict(grown.origin.read)["appended labels"].endswith(f"{nodes.name}, column label")
    # The store itself is as it was, with --out.
    assert og.load(tmp_path / "g").num_nodes == 3
    again = og.append(tmp_path / "h", edges=edges)
    assert again.num_edges == 7
    assert [what for what, _ in again.origin.read if what.startswith("appended")] == [
        *("appended src", "appended dst", "appended relation"),
    ]


def test_new_nodes_are_in_the_parts_that_their_table_says(tmp_path: Path) -> None:
    og.save_graph(small(), tmp_path / "g")
    rows = [["id", "label", "a", "b", "c", "split"], ["dan", "no", 1, 2, 3, ""]]
    for name, part in (("eve", "test"), ("fay", "train")):
        rows.append([name, "yes", 1, 2, 3, part])
    grown = og.append(tmp_path / "g", nodes=write_rows(tmp_path / "n.csv", rows))
    assert [part.tolist() for part in (grown.split.train, grown.split.val, grown.split.test)] == [[0, 5], [1], [2, 4]]
    more = write_rows(tmp_path / "m.csv", [NEW[0], ["gil", "no", 0, 0, 0]])
    drawn = og.append(tmp_path / "g", nodes=more, split="1,0,0")
    assert drawn.split.train.tolist() == [0, 5, 6]


def test_an_edge_that_is_there_keeps_its_weight(tmp_path: Path) -> None:
    both = og.from_arrays(np.array([[0], [1]]), weight=np.array([2.0]), undirected=True, num_nodes=3)
    og.save_graph(both, tmp_path / "g")
    edges = write_rows(tmp_path / "e.csv", [["src", "dst", "weight"], [1, 0, 9], [1, 2, 4]])
    grown = og.append(tmp_path / "g", edges=edges, undirected=True)
    assert grown.topology.weight is not None
    assert grown.edge_index.tolist() == [[1, 0, 2, 1], [0, 1, 1, 2]]
    assert grown.topology.weight.tolist() == [2, 2, 4, 4]


def test_inverse_relations_are_added_as_they_were(tmp_path: Path) -> None:
    forward = og.from_arrays(np.array([[0, 1], [1, 1]]), relation=np.array([0, 1]), num_nodes=3)
    relation = torch.tensor([2, 0, 1, 3], dtype=torch.int8)
    both = og.from_arrays(np.array([[1, 0, 1, 1], [0, 1, 1, 1]]), relation=relation, num_nodes=3)
    names = ("r", "s", "r^-1", "s^-1")
    og.save_graph(replace(both, relation_names=names), tmp_path / "g")
    og.save_graph(replace(forward, relation_names=names[:2]), tmp_path / "f")
    edges = write_rows(tmp_path / "e.csv", [["src", "dst", "relation"], [2, 0, "s"]])
    grown = og.append(tmp_path / "g", edges=edges, inverse_relations=True)
    assert grown.relation_names == names
    assert grown.edge_index.tolist() == [[1, 2, 0, 1, 1, 0], [0, 0, 1, 1, 1, 2]]
    assert grown.topology.relation is not None
    assert grown.topology.relation.tolist() == [2, 1, 0, 1, 3, 3]
    with pytest.raises(og.InputError, match="without inverses"):
        og.append(tmp_path / "f", edges=edges, inverse_relations=True)
    with pytest.raises(og.InputError, match="not clear whether"):
        og.append(tmp_path / "g", edges=edges)
    assert og.append(tmp_path / "g", edges=edges, undirected=False).num_edges == 7


def test_a_trained_model_predicts_for_new_nodes(outgrow: Command, tmp_path: Path) -> None:
    given = planted()
    graph = og.from_arrays(
        given["edge_index"],
        features=given["features"],
        labels=given["label"],
        split={part: given[f"{part}_idx"] for part in ("train", "val", "test")},
        undirected=True,
    )
    og.save_graph(replace(graph, ids=ids_of([f"tx_{v}" for v in range(240)])), tmp_path / "g.store")
    options = ("--hidden", 16, "--epochs", 20, "--model", "gcn", "--strategy", "full")
    assert outgrow("train", "g.store", *options, "--out", "run").code == 0
    assert outgrow("partition", "g.store", "--parts", 2).code == 0
    assert (tmp_path / "g.store" / "partitions").is_dir()
    features = ",".join(f"f{column}" for column in range(8))
    rows = [f"new_{label},{','.join(['2' if column == label else '0' for column in range(8)])}" for label in range(4)]
    (tmp_path / "more.csv").write_text("\n".join([f"id,{features}", *rows]) + "\n")
    links = [(f"new_{v % 4}", f"tx_{v}") for v in range(40)]
    (tmp_path / "links.csv").write_text("\n".join(["src,dst", *(",".join(link) for link in links)]) + "\n")
    refused = outgrow("append", "g.store", "more.csv", "links.csv")
    assert refused.code == 2
    assert "--undirected" in refused.err
    done = outgrow("append", "g.store", "more.csv", "links.csv", "--undirected")
    assert done.code == 0, done.err
    assert "4 nodes and 80 edges appended: 244 nodes" in done.err + done.out
    assert not (tmp_path / "g.store" / "partitions").exists()
    resumed = outgrow("train", "g.store", *options, "--epochs", 30, "--out", "run", "--resume")
    assert resumed.code == 2
    assert "have changed" in resumed.err
    (tmp_path / "who.txt").write_text("new_3\nnew_1\ntx_7\n")
    predicted = outgrow("predict", "run", "--graph", "g.store", "--nodes", "who.txt", "--out", "p.parquet")
    assert predicted.code == 0, predicted.err
    table = parquet.read_table(tmp_path / "p.parquet").to_pydict()
    assert table["id"] == ["new_3", "new_1", "tx_7"]
    assert table["node"] == [243, 241, 7]
    assert table["label"][:2] == [3, 1]


def _take_labels_as_they_are(graph: Graph, labels: Any, names: Any) -> Any:
    return labels


def _take_parts_as_they_are(parts: Any, added: Any, first: int, num_nodes: int) -> Any:
    return tuple(each if new is None else np.concatenate([each, new]) for each, new in zip(parts, added, strict=True))


def _keep_all_relations(names: tuple[str, ...]) -> tuple[str, ...]:
    return names


def check_by_hand(folder: Path) -> None:
    for check in (
        test_classes_and_relations_are_found_by_names,
        test_new_nodes_are_in_the_parts_that_their_table_says,
        test_inverse_relations_are_added_as_they_were,
    ):
        (folder / check.__name__).mkdir()
        check(folder / check.__name__)


BROKEN: dict[str, tuple[str, str, Any]] = {
    "append_numbers_relations_anew": (
        "Relations of new edges are numbered as they occur.",
        "outgrow.graph.readers.appended.AppendedSource._number_relations",
        lambda self, relation, names, path: relation,
    ),
    "append_numbers_classes_anew": (
        "Classes of new nodes are numbered as in their table.",
        "outgrow.graph.readers.appended_rows._fit_labels",
        _take_labels_as_they_are,
    ),
    "append_does_not_move_splits": (
        "New nodes of a split are numbered from 0.",
        "outgrow.graph.readers.appended_rows._join_parts",
        _take_parts_as_they_are,
    ),
    "append_inverts_inverses": (
        "Inverse edges of the store are inverted again.",
        "outgrow.graph.readers.appended.list_forward_relations",
        _keep_all_relations,
    ),
}


def _breaking(target: str, value: Any) -> Any:
    @contextmanager
    def apply() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(target, value)
            yield

    return apply


MUTANTS = {name: (breaks, _breaking(target, value)) for name, (breaks, target, value) in BROKEN.items()}


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_is_found(mutant: str, tmp_path: Path) -> None:
    with MUTANTS[mutant][1](), pytest.raises((AssertionError, og.InputError)):
        check_by_hand(tmp_path)
