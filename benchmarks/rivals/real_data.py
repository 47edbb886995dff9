"""Writes the arrays of `real_graphs.py`: a graph with its own features, once for all rivals.

python -m rivals.real_data FOLDER GRAPH HIDDEN INPUTS DATA_DIR     (in benchmarks/, with outgrow installed)

Features go into the folder as the graph has them: sparse ones in compressed rows, beside the same ones dense, which
rivals get as their examples do. A graph without features gets INPUTS random columns, and without labels random ones.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from rivals.common import SPARSE
from rivals.data import LAYERS, make_relational_layer, make_start, name_layers

import outgrow as og

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEED, _CLASSES, _TRAIN_SHARE, _BASES = 0, 47, 0.5, 4


def write(folder: Path, name: str, hidden: int, inputs: int, data_dir: str) -> None:
    """Edges of all types with their relations, features and labels, training nodes, parameters to start from."""
    graph = og.load(name, data_dir=data_dir or None)
    rng = np.random.default_rng(_SEED)
    np.save(folder / "indptr.npy", graph.topology.indptr.numpy())
    np.save(folder / "indices.npy", graph.topology.indices.numpy().astype(np.int32))
    density, width = write_features(folder, graph, inputs)
    classes = _write_labels(folder, graph, rng)
    widths = width, hidden, classes
    for model in LAYERS:
        np.savez(folder / f"start-{model}.npz", **make_start(rng, model, widths))
    relations = _write_relations(folder, graph, rng, widths)
    facts = {
        "graph": name,
        "hidden": hidden,
        "inputs": inputs,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "widths": widths,
        "density": density,
        "relations": relations,
        "bases": _BASES,
    }
    (folder / "data.json").write_text(json.dumps(facts))


def write_features(folder: Path, graph: og.Graph, inputs: int = 0) -> tuple[float, int]:
    """Writes features of nodes, ``inputs`` random columns if there are none.

    Returns:
        The share of numbers that are not zero, and the number of columns.
    """
    from outgrow.ops.sparse import SparseRows

    features = graph.features
    if isinstance(features, SparseRows):
        rows = features.indptr, features.indices, features.values.float()
        indptr, indices, values = (part.numpy() for part in rows)
        np.savez(folder / SPARSE, indptr=indptr, indices=indices, values=values, num_columns=features.num_columns)
        dense = features.to_dense().float().numpy()
    elif features is None:
        dense = np.random.default_rng(_SEED).standard_normal((graph.num_nodes, inputs), dtype=np.float32)
    else:
        assert isinstance(features, torch.Tensor)
        dense = features.float().numpy()
    np.save(folder / "features.npy", dense)
    return float(np.count_nonzero(dense)) / dense.size, dense.shape[1]


def _write_relations(folder: Path, graph: og.Graph, rng: np.random.Generator, widths: tuple[int, int, int]) -> int:
    """Returns the number of relations: edges of a graph without them are of one."""
    relation = graph.topology.relation
    relations = max(1, graph.num_relations)
    np.save(folder / "relation.npy", np.zeros(graph.num_edges, np.int8) if relation is None else relation.numpy())
    start = name_layers(widths, lambda given, wanted: make_relational_layer(rng, given, wanted, relations, _BASES))
    np.savez(folder / "start-rgcn.npz", **start)
    return relations


def _write_labels(folder: Path, graph: og.Graph, rng: np.random.Generator) -> int:
    """Returns the number of classes."""
    nodes = graph.num_nodes
    labels: NDArray[np.int64]
    if graph.labels is None:
        labels, classes = rng.integers(0, _CLASSES, nodes), _CLASSES
        train = np.sort(rng.permutation(nodes)[: int(nodes * _TRAIN_SHARE)])
    else:
        labels, classes = graph.labels.numpy().astype(np.int64), graph.num_classes
        train = graph.split.train.numpy()
        train = train[labels[train] >= 0]
    np.save(folder / "labels.npy", labels)
    np.save(folder / "train.npy", train)
    return classes


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
