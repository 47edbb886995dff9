"""Mutants of the readers of typed graphs: each is noticed by a graph whose edges are all told apart."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

import outgrow as og
from graph.readers.dgl_files import write_dgl_file
from graph.readers.typed_folders import make_folder, named_edges
from outgrow.graph.readers import dgl_file, node_parts, pyg, typed_parts
from outgrow.graph.readers.tables import typed_tables

pytest.importorskip("pyarrow")
pytest.importorskip("torch_geometric")
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def read_all(folder: Path) -> list[Any]:
    """What is read of a folder of types, a file of DGL and an object of PyG, as lists."""
    from torch_geometric.data import HeteroData

    data = HeteroData()
    data["a"].x, data["b"].x = torch.ones(2, 2), torch.zeros(3, 1)
    data["b"].y = torch.tensor([2, 0, 1])
    data["b"].train_mask = torch.tensor([True, False, True])
    data["a", "r", "b"].edge_index = torch.tensor([[0, 1, 1], [2, 0, 1]])
    data["a", "r", "b"].edge_weight = torch.tensor([1.0, 2.0, 3.0])
    data["b", "s", "a"].adj_t = torch.sparse_coo_tensor([[0, 1], [2, 1]], torch.ones(2), (2, 3))
    folder.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tables = og.load(make_folder(folder / "tables"), unknown_nodes="add")
        saved = og.load(write_dgl_file(folder, "csc"))
        graph = og.load(data)
    parts = [
        graph.edge_index.tolist(),
        graph.labels.tolist(),
        graph.split.train.tolist(),
        graph.topology.weight.tolist(),
    ]
    return [named_edges(tables), saved.topology.weight.tolist(), saved.edge_index.tolist(), *parts]


def no_offsets() -> AbstractContextManager[Any]:
    """All types begin at node 0."""
    made = mock.Mock(side_effect=lambda parts: [0 for _ in range(len(parts) + 1)])
    return mock.patch.multiple(typed_tables, count_borders=made)


def no_offsets_of_objects() -> AbstractContextManager[Any]:
    """Edges of objects are numbered within their types."""
    count_borders = node_parts.count_borders

    def count(parts: Any) -> list[int]:
        return [0, 0, *count_borders(parts)[2:]]

    return mock.patch.object(typed_parts, "count_borders", count)


def labels_at_the_front() -> AbstractContextManager[Any]:
    """Labels of a type are those of the first nodes."""
    join = node_parts._join_labels
    return mock.patch.object(
        node_parts, "_join_labels", lambda parts, borders: join(parts, [0] * len(borders[:-1]) + borders[-1:])
    )


def rows_are_sources() -> AbstractContextManager[Any]:
    """Rows of ``adj_t`` are taken for sources."""
    read = pyg.sparse_edges
    return mock.patch.object(
        pyg,
        "sparse_edges",
        lambda values, name: (made := read(values, name))._replace(rows=made.columns, columns=made.rows),
    )


def order_of_rows() -> AbstractContextManager[Any]:
    """Edges of a file of DGL are in the order of its matrix, not of their numbers."""
    order = dgl_file._order_edges
    return mock.patch.object(
        dgl_file, "_order_edges", lambda rows, columns, numbers, *sizes: order(rows, columns, numbers[:0], *sizes)
    )


def first_format_of_the_other_direction() -> AbstractContextManager[Any]:
    """Sources and destinations of a file of DGL are exchanged."""
    read = dgl_file._read_adjacency

    def exchanged(cursor: Any) -> Any:
        made = read(cursor)
        return made._replace(src=made.dst, dst=made.src)

    return mock.patch.object(dgl_file, "_read_adjacency", exchanged)


def weight_of_others() -> AbstractContextManager[Any]:
    """Types without weights get weight 0."""
    return mock.patch.object(typed_parts.np, "ones", np.zeros)


MUTANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "no_offsets": no_offsets,
    "no_offsets_of_objects": no_offsets_of_objects,
    "labels_at_the_front": labels_at_the_front,
    "rows_are_sources": rows_are_sources,
    "order_of_rows": order_of_rows,
    "directions_exchanged": first_format_of_the_other_direction,
    "weight_of_others": weight_of_others,
}


def test_what_is_read_is_always_the_same(tmp_path: Path) -> None:
    assert read_all(tmp_path / "a") == read_all(tmp_path / "b")


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str, tmp_path: Path) -> None:
    expected = read_all(tmp_path / "right")
    with MUTANTS[name]():
        try:
            found = read_all(tmp_path / "broken")
        except og.InputError:
            return
    assert found != expected
