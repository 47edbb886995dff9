"""Stores that tables cannot be appended to, and what a crash leaves of one."""

import os
import subprocess
import sys
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.growing_stores import NEW, Rows, arrays_of, ids_of, small, write_rows

import outgrow as og
from outgrow.app.append_tables import sort_tables
from outgrow.app.runs.lock import RunLock
from outgrow.core.files import exchange_paths
from outgrow.graph.graph import NodeType
from outgrow.graph.readers.tables.options import TableOptions


def test_bad_tables_are_refused_and_the_store_stays(tmp_path: Path) -> None:
    og.save_graph(small(), tmp_path / "g")
    og.save_graph(replace(small(), ids=None), tmp_path / "numbered")
    og.save_graph(replace(small(), ids=ids_of([5, 6, 7])), tmp_path / "integers")
    og.save_graph(og.from_arrays(np.array([[0], [1]])), tmp_path / "bare")
    og.save_graph(replace(small(), node_types=(NodeType(name="a", first=0, last=3),)), tmp_path / "typed")
    bf16 = replace(small(), features=torch.eye(3, dtype=torch.bfloat16))
    og.save_graph(bf16, tmp_path / "bf16")
    head = NEW[0]
    edge = [["src", "dst"], ["ann", "bob"]]
    cases: list[tuple[str, Rows | None, Rows | None, dict[str, Any], str]] = [
        ("g", [*NEW, ["ann", "no", 0, 0, 0], ["bob", "no", 0, 0, 0]], None, {}, "rows for nodes that are there"),
        ("g", [head[:4], ["dan", "yes", 1, 2]], None, {}, "3 columns of features"),
        ("g", [["id", "label"], ["dan", "yes"]], None, {}, "3 columns of features"),
        ("g", [head, ["dan", "maybe", 1, 2, 3]], None, {}, "classes that the graph does not have"),
        ("g", [head, ["dan", 1, 1, 2, 3]], None, {}, "classes that the graph does not have"),
        ("g", [head[1:], ["yes", 1, 2, 3]], None, {}, "no column of ids"),
        ("g", NEW, None, {"categorical": "onehot"}, "one-hot"),
        ("g", NEW, None, {"num_nodes": 9}, "does not take these options"),
        ("g", [["id", "label", "a", "b", "c", "type"], ["dan", "yes", 1, 2, 3, "t"]], None, {}, "types of nodes"),
        ("g", None, [["src", "dst", "relation"], ["ann", "bob", "r"]], {}, "relations"),
        ("g", None, [["src", "dst", "weight"], ["ann", "bob", 1]], {}, "weights"),
        ("integers", NEW, None, {}, "ids that are texts"),
        ("numbered", NEW, None, {}, "has ids"),
        ("numbered", None, edge, {}, "texts"),
        ("numbered", None, [["src", "dst"], [0, 9]], {}, "does not exist"),
        ("numbered", None, [["src", "dst"], [0, 1]], {"unknown_nodes": "add"}, "have no ids"),
        ("bare", [["label"], ["yes"]], None, {}, "the graph has none"),
        ("bare", [["a"], ["1"]], None, {}, "0 columns of features"),
        ("typed", NEW, None, {}, "several types of nodes"),
        ("bf16", NEW, None, {}, "bfloat16"),
        ("nothing", NEW, None, {}, "is no store"),
        ("g", None, None, {}, "nothing to append"),
        ("g", NEW, None, {"undirected": True, "inverse_relations": True}, "asked for twice"),
    ]
    for number, (store, nodes, edges, options, words) in enumerate(cases):
        before = None if store == "nothing" else (tmp_path / store / "manifest.json").read_bytes()
        given = [
            () if rows is None else write_rows(tmp_path / f"{stem}{number}.csv", rows)
            for stem, rows in (("nodes", nodes), ("edges", edges))
        ]
        with pytest.raises(og.InputError) as error:
            og.append(tmp_path / store, nodes=given[0], edges=given[1], **options)
        message = f"{error.value.what} {error.value.needed} {error.value.got}"
        assert words in message, (number, message)
        assert before is None or (tmp_path / store / "manifest.json").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        *("bare", "bf16", "g", "integers", "numbered", "typed"),
    ]


def test_unknown_nodes_are_refused_added_or_dropped(tmp_path: Path) -> None:
    edges = write_rows(tmp_path / "e.csv", [["src", "dst"], ["ann", "bob"], ["zoe", "ann"], ["ann", "yan"]])
    for number, choice in enumerate(("refuse", "drop", "add")):
        store = tmp_path / f"{number}"
        og.save_graph(small(), store)
        if choice == "refuse":
            with pytest.raises(og.InputError, match=r"2 edges to other nodes, such as 'zoe'"):
                og.append(store, edges=edges)
            continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", og.DataWarning)
            grown = og.append(store, edges=edges, unknown_nodes=choice)
        assert grown.num_edges == (4 if choice == "drop" else 6)
        assert grown.num_nodes == (3 if choice == "drop" else 5)
        if choice == "add":
            assert grown.index_of(["zoe", "yan"]).tolist() == [3, 4]
            assert isinstance(grown.features, torch.Tensor)
            assert grown.features[3:].abs().sum() == 0
            assert grown.labels is not None
            assert grown.labels[3:].tolist() == [-1, -1]


def test_one_option_names_the_columns_of_both_tables(tmp_path: Path) -> None:
    og.save_graph(small(), tmp_path / "g.store")
    nodes = write_rows(tmp_path / "more.csv", [["person", *NEW[0][1:]], *NEW[1:]])
    edges = write_rows(tmp_path / "calls.csv", [["caller", "called"], ["dan", "ann"]])
    columns = {"id": "person", "src": "caller", "dst": "called"}
    assert sort_tables([nodes, edges], TableOptions(columns=columns)) == ([edges], [nodes])
    made = og.append(tmp_path / "g.store", edges=edges, nodes=nodes, columns=columns)
    assert made.index_of(["dan"]).tolist() == [3]
    assert (made.num_nodes, made.num_edges) == (4, 4)


def test_two_at_a_time_are_refused(tmp_path: Path) -> None:
    og.save_graph(small(), tmp_path / "g")
    lock = RunLock(tmp_path, ".g.lock")
    try:
        with pytest.raises(og.InputError, match="is being appended to"):
            og.append(tmp_path / "g", nodes=write_rows(tmp_path / "n.csv", NEW))
    finally:
        lock.release()
    assert og.append(tmp_path / "g", nodes=tmp_path / "n.csv").num_nodes == 4
    assert not (tmp_path / ".g.lock").exists()


def test_the_store_behind_a_link_is_replaced(tmp_path: Path) -> None:
    og.save_graph(small(), tmp_path / "g")
    (tmp_path / "link").symlink_to(tmp_path / "g")
    og.append(tmp_path / "link", nodes=write_rows(tmp_path / "n.csv", NEW))
    assert (tmp_path / "link").is_symlink()
    assert og.load(tmp_path / "g").num_nodes == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "link", "n.csv"]


def test_stores_are_replaced_where_folders_cannot_be_exchanged_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / name).touch()
    exchanged = exchange_paths(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "one" / "other").exists() == exchanged
    assert not exchange_paths(tmp_path / "one", tmp_path / "none")
    monkeypatch.setattr("outgrow.graph.store.writer.exchange_paths", lambda one, other: False)
    og.save_graph(small(), tmp_path / "g")
    assert og.append(tmp_path / "g", nodes=write_rows(tmp_path / "n.csv", NEW)).num_nodes == 4
    assert sorted(path.name for path in tmp_path.iterdir()) == ["g", "n.csv", "one", "other"]


KILLED_AT = {
    "tables": "outgrow.graph.readers.appended.AppendedSource.read_tables",
    "ids": "outgrow.graph.readers.appended.AppendedSource.read_ids",
    "sort": "outgrow.graph.builders.to_store._write_topology",
    "features": "outgrow.graph.builders.to_store._write_features",
    "manifest": "outgrow.graph.store.writer.StoreWriter.finish_store",
    "rename": "outgrow.graph.store.writer._move_into_place",
    "removal": "outgrow.graph.store.writer.exchange_paths",
}
SCRIPT = """
import os, sys, importlib
import outgrow as og
from outgrow.app.append_tables import append_to_store
target, store, nodes, edges = sys.argv[1:]
parts = target.split(".")
for cut in range(len(parts) - 1, 0, -1):
    try:
        owner = importlib.import_module(".".join(parts[:cut]))
        break
    except ImportError:
        pass
for name in parts[cut:-1]:
    owner = getattr(owner, name)
last = getattr(owner, parts[-1])
# Folders are exchanged first: then the new store is in place, and the old one not yet removed.
setattr(owner, parts[-1], lambda *args: (parts[-1] != "exchange_paths" or last(*args)) and os._exit(9))
og.append(store, nodes=nodes, edges=edges)
"""


@pytest.mark.real_processes
@pytest.mark.parametrize(
    "stage", [pytest.param(name, marks=() if name in ("rename", "removal") else pytest.mark.slow) for name in KILLED_AT]
)
def test_a_kill_leaves_the_old_store_or_the_new_one(tmp_path: Path, stage: str) -> None:
    og.save_graph(small(), tmp_path / "g")
    old = arrays_of(og.load(tmp_path / "g"))
    nodes = write_rows(tmp_path / "nodes.csv", NEW)
    edges = write_rows(tmp_path / "edges.csv", [["src", "dst"], ["dan", "ann"]])
    command = [sys.executable, "-c", SCRIPT, KILLED_AT[stage], *map(str, (tmp_path / "g", nodes, edges))]
    done = subprocess.run(command, env=dict(os.environ), check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 9, done.stderr
    found = og.load(tmp_path / "g")
    assert found.num_nodes == (4 if stage == "removal" else 3)
    if stage != "removal":
        assert all(torch.equal(values, old[name]) for name, values in arrays_of(found).items())
        assert og.append(tmp_path / "g", nodes=nodes, edges=edges).num_nodes == 4
    assert og.load(tmp_path / "g").num_edges == 4
