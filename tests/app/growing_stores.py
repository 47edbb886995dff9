"""Small stores that tables are appended to, and the tables."""

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import outgrow as og
from outgrow.graph.graph import Graph
from outgrow.graph.node_ids import NodeIds, TextArrays
from outgrow.graph.store.arrays import graph_arrays

Rows = Sequence[Sequence[object]]


def write_rows(path: Path, rows: Rows) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows(rows)
    return path


def ids_of(names: Sequence[int] | Sequence[str]) -> NodeIds:
    if isinstance(names[0], int):
        return NodeIds.from_integers(np.array(names, np.int64))
    return NodeIds.from_texts(TextArrays.from_arrow(pa.array([str(name) for name in names], pa.large_string())))


def arrays_of(graph: Graph) -> dict[str, torch.Tensor]:
    return {name: values.clone() for name, values in graph_arrays(graph).items()}


def assert_same(one: Graph, other: Graph) -> None:
    first, second = arrays_of(one), arrays_of(other)
    assert first.keys() == second.keys()
    for name, values in first.items():
        assert values.dtype == second[name].dtype, name
        assert torch.equal(values, second[name]), name
    for name in ("class_names", "relation_names", "num_classes", "num_nodes"):
        assert getattr(one, name) == getattr(other, name)


def small(**changes: Any) -> Graph:
    graph = og.from_arrays(
        np.array([[0, 1, 2], [1, 2, 0]]),
        features=np.eye(3, dtype=np.float32),
        labels=np.array([0, 1, 1]),
        split={"train": [0], "val": [1], "test": [2]},
    )
    return replace(graph, ids=ids_of(["ann", "bob", "cyd"]), class_names=("yes", "no"), **changes)


NEW = [["id", "label", "a", "b", "c"], ["dan", "yes", 1, 2, 3]]
