"""Ids of nodes in requests and answers: predictions have them, and nodes are asked for by them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.node_ids import NodeIds, TextArrays
from outgrow.graph.store.reader import open_store, write_store


def make_ids(ids: Sequence[Any], borders: Sequence[int] = ()) -> NodeIds:
    """Ids of nodes."""
    if isinstance(ids[0], str):
        return NodeIds.from_texts(TextArrays.from_arrow(pa.array(ids)), borders)
    return NodeIds.from_integers(np.array(ids), borders)


def planted_graph() -> Graph:
    """A small graph without ids."""
    given = planted()
    split = {name: given[f"{name}_idx"] for name in ("train", "val", "test")}
    return og.from_arrays(given["edge_index"], features=given["features"], labels=given["label"], split=split)


def names_of(count: int) -> list[str]:
    """Names that are in no order, one of them with a blank and one empty."""
    names = [f"tx_{node * 7919 % 10_007}" for node in range(count)]
    names[3], names[4] = "with a blank", "é日"
    return names


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store of a graph with names."""
    graph = planted_graph()
    write_store(replace(graph, ids=make_ids(names_of(graph.num_nodes))), tmp_path / "store")
    return tmp_path / "store"


@pytest.fixture
def run(outgrow: Command, store: Path, tmp_path: Path) -> Path:
    """A run on that store."""
    trained = outgrow("train", store, "--model", "sage", "--hidden", 8, "--epochs", 2, "--out", "run")
    assert trained.code == 0, trained.err
    return tmp_path / "run"


def predict(outgrow: Command, run: Path, *words: object) -> dict[str, list[Any]]:
    """The columns that are written."""
    done = outgrow("predict", run, "--out", "p.parquet", *words)
    assert done.code == 0, done.err
    return parquet.read_table("p.parquet").to_pydict()


def test_predictions_have_ids(outgrow: Command, run: Path, store: Path) -> None:
    graph = open_store(store)
    found = predict(outgrow, run)
    assert [*found][:3] == ["node", "id", "label"]
    assert found["id"] == names_of(graph.num_nodes)
    embedded = predict(outgrow, run, "--what", "embeddings")
    assert embedded["id"] == found["id"]


def test_nodes_are_asked_for_by_id(outgrow: Command, run: Path, store: Path) -> None:
    whole = predict(outgrow, run)
    names = names_of(len(whole["node"]))
    wanted = [9, 3, 4, 0, 9]
    chosen = [names[node] for node in wanted]
    Path("ids.txt").write_text("\ufeff" + "\r\n".join(chosen) + "\r\n", "utf-8")
    np.save("ids.npy", np.array(chosen))
    np.save("numbers.npy", np.array(wanted))
    parquet.write_table(pa.table({"id": chosen}), "ids.parquet")
    parquet.write_table(pa.table({"id": chosen, "node": wanted}), "numbers.parquet")
    for file in ("ids.txt", "ids.npy", "numbers.npy", "ids.parquet", "numbers.parquet"):
        found = predict(outgrow, run, "--nodes", file)
        assert found["node"] == wanted, file
        assert found["id"] == chosen, file
        assert found["label"] == [whole["label"][node] for node in wanted], file


@pytest.mark.parametrize(
    ("name", "write", "words"),
    [
        (
            "ids.txt",
            lambda path: path.write_text("tx_0\nnobody\nnor me\n"),
            ("no node has such an id", "2 others", "nobody"),
        ),
        ("ids.npy", lambda path: np.save(path, np.array(["nobody"])), ("no node has such an id", "nobody")),
        ("ids.parquet", lambda path: parquet.write_table(pa.table({"id": ["a", None]}), path), ("1 rows without",)),
        ("ids.parquet", lambda path: parquet.write_table(pa.table({"name": ["a"]}), path), ("'node' or 'id'",)),
        ("ids.txt", lambda path: path.write_bytes(b"tx_0\n\xff\n"), ("UnicodeDecodeError",)),
    ],
)
def test_ids_of_no_node_are_refused(outgrow: Command, run: Path, name: str, write: Any, words: tuple[str, ...]) -> None:
    write(Path(name))
    done = outgrow("predict", run, "--out", "p.parquet", "--nodes", name)
    assert done.code == 2
    for word in ("needed:", "got:", "repair:", name, *words):
        assert word in done.err
    assert not Path("p.parquet").exists()


def test_python_takes_names(store: Path) -> None:
    graph = open_store(store)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    names = [*names_of(graph.num_nodes)]
    wanted = [7, 3, 7]
    chosen = [names[node] for node in wanted]
    assert graph.index_of(chosen).tolist() == wanted
    for ask in (og.predict, og.embed):
        rows = ask(graph, model, nodes=wanted)
        for given in (chosen, np.array(chosen), np.array(chosen, dtype=object), tuple(chosen)):
            assert ask(graph, model, nodes=given).equal(rows)
    with pytest.raises(InputError, match="no node has such an id"):
        og.predict(graph, model, nodes=["nobody"])
    with pytest.raises(InputError, match="have no ids but their numbers"):
        og.predict(planted_graph(), model, nodes=["tx_0"])


def test_integer_ids_are_no_node_numbers(outgrow: Command, tmp_path: Path) -> None:
    graph = planted_graph()
    ids = [(node * 7919 % 10_007) for node in range(graph.num_nodes)]
    write_store(replace(graph, ids=make_ids(ids)), tmp_path / "store")
    words = ("--model", "gcn", "--hidden", 8, "--epochs", 1, "--out", "run")
    assert outgrow("train", "store", *words).code == 0
    Path("ids.txt").write_text(f"{ids[5]}\n{ids[2]}\n")
    found = predict(outgrow, tmp_path / "run", "--nodes", "ids.txt")
    assert found["node"] == [5, 2]
    assert found["id"] == [ids[5], ids[2]]


def test_types_may_share_ids(outgrow: Command, tmp_path: Path) -> None:
    graph = planted_graph()
    half, count = graph.num_nodes // 2, graph.num_nodes
    ids = make_ids([f"n{node % half}" for node in range(count)], (0, half, count))
    kinds = (NodeType(name="author", first=0, last=half), NodeType(name="paper", first=half, last=count))
    write_store(replace(graph, ids=ids, node_types=kinds), tmp_path / "store")
    assert outgrow("train", "store", "--model", "gcn", "--hidden", 8, "--epochs", 1, "--out", "run").code == 0
    whole = predict(outgrow, tmp_path / "run")
    assert whole["type"] == ["author"] * half + ["paper"] * (count - half)
    parquet.write_table(pa.table({"id": ["n3", "n3", "n1"], "type": ["paper", "author", "paper"]}), "ids.parquet")
    found = predict(outgrow, tmp_path / "run", "--nodes", "ids.parquet")
    assert found["node"] == [half + 3, 3, half + 1]
    Path("ids.txt").write_text("n3\n")
    done = outgrow("predict", "run", "--out", "q.parquet", "--nodes", "ids.txt")
    assert done.code == 2
    assert "nodes of several types have the id 'n3'" in done.err
    parquet.write_table(pa.table({"id": ["n3"], "type": ["venue"]}), "ids.parquet")
    done = outgrow("predict", "run", "--out", "q.parquet", "--nodes", "ids.parquet")
    assert done.code == 2
    assert "venue" in done.err


def test_another_graph_answers_with_its_own_ids(outgrow: Command, run: Path, tmp_path: Path) -> None:
    graph = planted_graph()
    others = [f"other {node}" for node in range(graph.num_nodes)]
    write_store(replace(graph, ids=make_ids(others)), tmp_path / "others")
    Path("ids.txt").write_text("other 8\nother 1\n")
    found = predict(outgrow, run, "--graph", "others", "--nodes", "ids.txt")
    assert found["node"] == [8, 1]
    assert found["id"] == ["other 8", "other 1"]


def test_a_class_may_be_called_id(outgrow: Command, tmp_path: Path) -> None:
    graph = planted_graph()
    assert graph.labels is not None
    several = np.stack([graph.labels.numpy() == kind for kind in range(2)], 1).astype(np.uint8)
    given = planted()
    split = {name: given[f"{name}_idx"] for name in ("train", "val", "test")}
    made = og.from_arrays(given["edge_index"], features=given["features"], labels=several, split=split)
    named = replace(made, class_names=("id", "b"), ids=make_ids(names_of(made.num_nodes)))
    write_store(named, tmp_path / "store")
    assert outgrow("train", "store", "--model", "gcn", "--hidden", 8, "--epochs", 1, "--out", "run").code == 0
    found = predict(outgrow, tmp_path / "run")
    assert [*found] == ["node", "id", "id (class)", "b"]
    assert found["id"] == names_of(made.num_nodes)


def test_a_resumed_run_says_which_nodes_are_new(outgrow: Command, run: Path, store: Path) -> None:
    graph = planted_graph()
    names = names_of(graph.num_nodes)
    names[:2] = ["new 1", "new 2"]
    write_store(replace(graph, ids=make_ids(names)), store, overwrite=True)
    done = outgrow("train", "--resume", "--out", "run", "--epochs", 4)
    assert done.code == 2
    assert "other ids" in done.err
    assert "nodes are new" in done.err
    allowed = outgrow("train", "--resume", "--out", "run", "--epochs", 4, "--allow-changed-data")
    assert allowed.code == 0, allowed.err
    assert predict(outgrow, run)["id"] == names


def test_the_report_says_what_ids_are_like(outgrow: Command, run: Path) -> None:
    assert outgrow("report", "run", "--out", "page.html").code == 0
    assert "texts: &#x27;tx_0&#x27;" in Path("page.html").read_text("utf-8")
