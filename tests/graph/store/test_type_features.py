"""Stores of types with dense features in columns of their own: an array for each type, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError, StoreError
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.store.fingerprint import changed_parts, fingerprint_graph
from outgrow.graph.store.manifest import read_manifest, write_manifest
from outgrow.graph.store.reader import open_store, write_store
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.sparse import SparseRows
from support import normal, random_topology

KINDS = (
    NodeType(name="author", first=0, last=5),
    NodeType(name="paper", first=5, last=15, num_columns=4),
    NodeType(name="venue", first=15, last=20, num_columns=2),
)


def graph_of(dtype: torch.dtype = torch.float32) -> Graph:
    blocks = normal(10, 4).to(dtype), normal(5, 2, seed=1).to(dtype)
    features = BlockRows(blocks=blocks, rows=(slice(5, 15), slice(15, 20)), num_rows=20)
    return Graph(name="types", topology=random_topology(20, 60), features=features, node_types=KINDS)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_store_has_an_array_for_each_type_with_features(dtype: torch.dtype, tmp_path: Path) -> None:
    graph = graph_of(dtype)
    write_store(graph, tmp_path / "store")
    opened = open_store(tmp_path / "store", verify=True)
    assert sorted(each.name for each in (tmp_path / "store").glob("*feature*")) == [
        "type_features_0.npy",
        "type_features_1.npy",
    ]
    rows = opened.features
    assert isinstance(rows, BlockRows)
    assert opened.sparse
    assert rows.dtype == dtype
    assert rows.shape == (20, 6)
    assert torch.equal(rows.to_dense(), graph.features.to_dense())  # type: ignore[union-attr]
    assert fingerprint_graph(opened) == fingerprint_graph(graph)
    assert isinstance(graph.features, BlockRows)
    other = graph.features.with_blocks([graph.features.blocks[0], graph.features.blocks[1] + 1])
    assert changed_parts(fingerprint_graph(graph), fingerprint_graph(replace(graph, features=other))) == ["features"]


def test_stores_of_one_sparse_matrix_open_as_they_did(tmp_path: Path) -> None:
    """As versions before wrote them for such graphs."""
    given = graph_of()
    dense = given.features.to_dense()  # type: ignore[union-attr]
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), (dense != 0).sum(1).cumsum(0)])
    values, columns = dense[dense != 0], dense.nonzero()[:, 1].int()
    rows = SparseRows(indptr=ends, indices=columns, values=values, num_columns=6)
    write_store(replace(given, features=rows), tmp_path / "store")
    opened = open_store(tmp_path / "store", verify=True).features
    assert isinstance(opened, SparseRows)
    assert torch.equal(opened.to_dense(), dense)


def _lose(folder: Path) -> None:
    manifest = read_manifest(folder)
    arrays = {name: entry for name, entry in manifest.arrays.items() if name != "type_features_1"}
    write_manifest(replace(manifest, arrays=arrays), folder)


def _add_dense(folder: Path) -> None:
    manifest = read_manifest(folder)
    entry = replace(manifest.arrays["type_features_0"], shape=(20, 6), size=128 + 480)
    write_manifest(replace(manifest, arrays={**manifest.arrays, "features": entry}), folder)


def _swap(folder: Path) -> None:
    manifest = read_manifest(folder)
    first, second = (manifest.arrays[f"type_features_{number}"] for number in range(2))
    arrays = {**manifest.arrays, "type_features_0": second, "type_features_1": first}
    write_manifest(replace(manifest, arrays=arrays), folder)


def _forget_columns(folder: Path) -> None:
    record = json.loads((folder / "manifest.json").read_text())
    manifest = read_manifest(folder)
    kinds = tuple(replace(kind, num_columns=0) for kind in manifest.node_types)
    write_manifest(replace(manifest, node_types=kinds), folder)
    assert record["format"] == 1


@pytest.mark.parametrize("broken", [_lose, _add_dense, _swap, _forget_columns])
def test_a_store_with_other_arrays_is_refused(broken: Callable[[Path], None], tmp_path: Path) -> None:
    write_store(graph_of(), tmp_path / "store")
    broken(tmp_path / "store")
    with pytest.raises(StoreError, match="do not fit"):
        open_store(tmp_path / "store")


def test_the_node_with_a_number_that_is_not_finite_is_named(tmp_path: Path) -> None:
    graph = graph_of()
    assert isinstance(graph.features, BlockRows)
    graph.features.blocks[1][2, 1] = np.nan
    with pytest.raises(InputError) as error:
        write_store(graph, tmp_path / "store")
    assert "node 17, column 1" in error.value.got


@pytest.mark.parametrize("order", [(1, 0), (0,)])
def test_blocks_of_other_types_are_refused(order: tuple[int, ...], tmp_path: Path) -> None:
    rows = graph_of().features
    assert isinstance(rows, BlockRows)
    blocks, ranges = tuple(rows.blocks[at] for at in order), tuple(rows.rows[at] for at in order)
    other = replace(graph_of(), features=BlockRows(blocks=blocks, rows=ranges, num_rows=20))
    with pytest.raises(InputError, match="do not fit the types"):
        write_store(other, tmp_path / "store")
