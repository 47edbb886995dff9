"""Writes the arrays of `sampling.py` and `minibatch.py`, once for all rivals.

python -m rivals.batch_data FOLDER sampling SCALE              (in benchmarks/, with outgrow installed)
python -m rivals.batch_data FOLDER training GRAPH HIDDEN LAYERS [DATA_DIR]

Sparse features are written as they are, beside the same ones dense: see `rivals.real_data`.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
from rivals.real_data import write_features

from outgrow.graph import datasets
from outgrow.graph.graph import Graph

_SEED = 0


def write_sampling(folder: Path, scale: str) -> None:
    """The symmetric R-MAT graph of `full_graph.py`, and all its nodes in random order: the seeds."""
    graph = _load(f"rmat-{scale}")
    _write_graph(folder, graph)
    np.save(folder / "seeds.npy", np.random.default_rng(_SEED).permutation(graph.num_nodes))
    facts = {"scale": int(scale), "nodes": graph.num_nodes, "edges": graph.num_edges}
    (folder / "data.json").write_text(json.dumps(facts))


def write_training(folder: Path, name: str, hidden: str, layers: str, data_dir: str = "") -> None:
    """A graph with features, labels and split; parameters that all start from."""
    graph = _load(name, data_dir)
    labels, split = graph.labels, graph.split
    assert labels is not None
    _write_graph(folder, graph)
    density, width = write_features(folder, graph)
    np.save(folder / "labels.npy", labels.numpy().astype(np.int64))
    for part in ("train", "val", "test"):
        np.save(folder / f"{part}.npy", getattr(split, part).numpy())
    widths = [width, *[int(hidden)] * (int(layers) - 1), graph.num_classes]
    rng, start = np.random.default_rng(_SEED), {}
    for index, (given, wanted) in enumerate(pairwise(widths)):
        for side in ("itself", "neighbour"):
            limit = np.sqrt(6 / (given + wanted))
            start[f"{index}.{side}"] = rng.uniform(-limit, limit, (given, wanted)).astype(np.float32)
        start[f"{index}.bias"] = np.zeros(wanted, dtype=np.float32)
    np.savez(folder / "start-sage.npz", **start)
    facts = {"graph": name, "nodes": graph.num_nodes, "edges": graph.num_edges, "widths": widths, "density": density}
    (folder / "data.json").write_text(json.dumps({**facts, "train_nodes": len(split.train)}))


def _load(name: str, data_dir: str = "") -> Graph:
    return datasets.load_graph(name, data_dir=Path(data_dir) if data_dir else None, undirected=None)


def _write_graph(folder: Path, graph: Graph) -> None:
    np.save(folder / "indptr.npy", graph.topology.indptr.numpy())
    np.save(folder / "indices.npy", graph.topology.indices.numpy().astype(np.int32))


if __name__ == "__main__":
    {"sampling": write_sampling, "training": write_training}[sys.argv[2]](Path(sys.argv[1]), *sys.argv[3:])
