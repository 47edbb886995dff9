"""Stores of parts: their rows and checksums, which a worker opens, and rows that are not there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError, StoreError
from outgrow.graph.datasets import load_graph
from outgrow.graph.graph import Graph, NodeType, Split
from outgrow.graph.partition.partition import Partition
from outgrow.graph.store import part_stores
from outgrow.graph.store.fingerprint import fingerprint_graph
from outgrow.graph.store.manifest import read_manifest, write_manifest
from outgrow.graph.store.part_stores import choose_part_store, find_part_stores, write_part_stores
from outgrow.graph.store.reader import matches_store, open_store, write_store
from outgrow.nn.layer import Features
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import OwnedRows, held_rows
from support import normal, random_topology, sparse_rows

NODES, PARTS = 40, 3
KINDS = (NodeType(name="a", first=0, last=15, num_columns=2), NodeType(name="b", first=15, last=NODES, num_columns=3))
FORMS: dict[str, Callable[[], Features]] = {
    "dense": lambda: normal(NODES, 5).float(),
    "half": lambda: normal(NODES, 5).half(),
    "bfloat16": lambda: normal(NODES, 5).bfloat16(),
    "sparse": lambda: sparse_rows(normal(NODES, 5), least=0.3),
    "blocks": lambda: BlockRows(
        blocks=(normal(15, 2), normal(25, 3, seed=1)), rows=(slice(0, 15), slice(15, NODES)), num_rows=NODES
    ),
}


def graph_of(form: str = "dense") -> Graph:
    split = Split(train=torch.arange(0, 20), val=torch.arange(20, 30), test=torch.arange(30, NODES))
    return Graph(
        name="cut",
        topology=random_topology(NODES, 0),
        features=FORMS[form](),
        labels=torch.arange(NODES) % 2,
        num_classes=2,
        split=split,
        node_types=KINDS if form == "blocks" else (),
    )


def partition() -> Partition:
    return Partition.from_assignment(torch.from_numpy(np.random.default_rng(0).permutation(NODES) % PARTS), PARTS)


def as_dense(rows: Features) -> torch.Tensor:
    return rows if isinstance(rows, torch.Tensor) else rows.to_dense()


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("stored", [False, True])
def test_parts_have_all_rows_once(form: str, stored: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, cut = graph_of(form), partition()
    if stored:
        write_store(graph, tmp_path / "whole")
        graph = open_store(tmp_path / "whole")
    # In several blocks, as larger features are written.
    monkeypatch.setattr(part_stores, "_BLOCK_BYTES", 100)
    paths = write_part_stores(graph, cut, "by-hand", tmp_path / "parts")
    assert [path.name for path in paths] == ["part-0", "part-1", "part-2"]
    assert graph.features is not None
    assert not isinstance(graph.features, OwnedRows)
    for number, path in enumerate(paths):
        part = open_store(path, verify=True)
        nodes, rows = cut.nodes_of_part(number), part.features
        assert isinstance(rows, OwnedRows)
        assert rows.shape == (NODES, 5)
        assert rows.dtype == graph.features.dtype
        assert torch.equal(as_dense(rows.index_rows(nodes)), as_dense(graph.features)[nodes])
        assert torch.equal(as_dense(rows.index_rows(nodes.flip(0))), as_dense(graph.features)[nodes.flip(0)])
        assert len(held_rows(rows)) == len(nodes)
        assert part.part is not None
        assert (part.part.number, part.part.num_parts, part.part.method) == (number, PARTS, "by-hand")
        assert torch.equal(part.part.node_part, cut.part)
        assert fingerprint_graph(part) == fingerprint_graph(graph)
        # Changed by way of the record, it is the same data still.
        assert fingerprint_graph(replace(part, name="cut")) == fingerprint_graph(graph)
        assert matches_store(part)
        assert part.sparse == graph.sparse
        others = torch.arange(NODES)[~torch.isin(torch.arange(NODES), nodes)]
        for absent in others.tolist():
            with pytest.raises(InputError, match=f"node {absent} are not here"):
                rows.index_rows(torch.tensor([int(nodes[0]), absent]))


def test_ranges_of_nodes_are_slices(tmp_path: Path) -> None:
    graph, cut = graph_of(), Partition.from_assignment(torch.arange(NODES) // 14, PARTS)
    first, *_ = write_part_stores(graph, cut, "range", tmp_path)
    rows = open_store(first).features
    assert isinstance(rows, OwnedRows)
    assert torch.equal(as_dense(rows.slice_rows(3, 14)), as_dense(graph.features)[3:14])  # type: ignore[arg-type]
    assert len(rows.slice_rows(30, 30)) == 0
    for low, high in ((3, 15), (14, 15), (20, 40)):
        with pytest.raises(InputError, match="are not here"):
            rows.slice_rows(low, high)


def test_a_gap_among_nodes_is_no_slice() -> None:
    rows = OwnedRows(rows=normal(3, 2), nodes=torch.tensor([1, 2, 5]), num_rows=8)
    assert torch.equal(as_dense(rows.slice_rows(1, 3)), as_dense(rows.rows)[:2])
    with pytest.raises(InputError, match="node 3 are not here"):
        rows.slice_rows(1, 6)
    none = OwnedRows(rows=normal(0, 2), nodes=torch.empty(0, dtype=torch.int64), num_rows=8)
    with pytest.raises(InputError, match="node 4 are not here"):
        none.index_rows(torch.tensor([4]))


def test_which_part_a_worker_opens(tmp_path: Path) -> None:
    parts = write_part_stores(graph_of(), partition(), "by-hand", tmp_path)
    # All parts are there, for one worker of this host or for all.
    for given in (tmp_path, parts[2]):
        assert choose_part_store(given, 1, [0, 1, 2]) == parts[1]
        assert choose_part_store(given, 1, [1]) == parts[1]
    shutil.rmtree(parts[0])
    # As many as workers of this host, whatever their ranks.
    assert [choose_part_store(tmp_path, rank, [0, 2]) for rank in (0, 2)] == [parts[1], parts[2]]
    with pytest.raises(InputError, match="worker 0 finds no part"):
        choose_part_store(tmp_path, 0, [0])
    assert [*find_part_stores(tmp_path)] == [1, 2]
    opened = load_graph(tmp_path).part
    assert opened is not None
    assert opened.number == 1


def test_what_cannot_be_cut(tmp_path: Path) -> None:
    graph, cut = graph_of(), partition()
    for words, given, into in (
        ("no features", replace(graph, features=None), cut),
        ("one part is the whole", graph, Partition.from_assignment(torch.zeros(NODES, dtype=torch.int16), 1)),
    ):
        with pytest.raises(InputError, match=words):
            write_part_stores(given, into, "by-hand", tmp_path / "parts")
    assert not (tmp_path / "parts").exists()
    first, *_ = write_part_stores(graph, cut, "by-hand", tmp_path / "parts")
    with pytest.raises(InputError, match="has stores of parts already"):
        write_part_stores(graph, cut, "by-hand", tmp_path / "parts")
    fewer = Partition.from_assignment(torch.arange(NODES) % 2, 2)
    with pytest.raises(InputError, match="has stores of parts already"):
        write_part_stores(graph, fewer, "by-hand", tmp_path / "parts", overwrite=True)
    write_part_stores(replace(graph, labels=1 - graph.labels), cut, "by-hand", tmp_path / "parts", overwrite=True)  # type: ignore[operator]
    part = open_store(first)
    with pytest.raises(InputError, match="needs the features of all nodes"):
        write_part_stores(part, cut, "by-hand", tmp_path / "again")
    with pytest.raises(InputError, match="needs the features of all nodes"):
        write_store(part, tmp_path / "again")


def test_a_part_that_is_not_what_it_says(tmp_path: Path) -> None:
    first, second, _ = write_part_stores(graph_of(), partition(), "by-hand", tmp_path)
    manifest = read_manifest(first)
    assert manifest.part is not None
    write_manifest(replace(manifest, part=replace(manifest.part, number=2)), first)
    with pytest.raises(StoreError, match="features are not those of a part"):
        open_store(first, verify=True)
    write_manifest(replace(manifest, part=None), first)
    with pytest.raises(StoreError, match="node_part"):
        open_store(first)
    entries = {name: entry for name, entry in manifest.arrays.items() if name != "own_nodes"}
    write_manifest(replace(manifest, arrays=entries), first)
    with pytest.raises(StoreError, match="own_nodes"):
        open_store(first)
    for broken in ({"number": 3}, {"number": True}, {"method": 5}, {"whole": []}):
        write_manifest(replace(manifest, part=replace(manifest.part, **broken)), second)  # type: ignore[arg-type]
        with pytest.raises(StoreError, match="manifest"):
            open_store(second)
