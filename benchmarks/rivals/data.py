"""Writes the arrays of the comparison, once for all rivals: graph, features, labels, parameters to start from.

python -m rivals.data FOLDER SCALE IN HIDDEN OUT     (in benchmarks/, with outgrow installed)
"""

from __future__ import annotations

import itertools
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rivals.common import HEADS

import outgrow as og

_SEED, _TRAIN_SHARE = 0, 0.5


def write(folder: Path, scale: int, widths: tuple[int, int, int]) -> None:
    """Symmetric R-MAT graph without duplicate edges; random features, labels and training nodes."""
    topology = og.load(f"rmat-{scale}").topology
    nodes = topology.num_nodes
    rng = np.random.default_rng(_SEED)
    np.save(folder / "indptr.npy", topology.indptr.numpy())
    np.save(folder / "indices.npy", topology.indices.numpy().astype(np.int32))
    np.save(folder / "features.npy", rng.standard_normal((nodes, widths[0]), dtype=np.float32))
    np.save(folder / "labels.npy", rng.integers(0, widths[2], nodes))
    np.save(folder / "train.npy", np.sort(rng.permutation(nodes)[: int(nodes * _TRAIN_SHARE)]))
    for model in LAYERS:
        np.savez(folder / f"start-{model}.npz", **make_start(rng, model, widths))
    facts = {"scale": scale, "nodes": nodes, "edges": topology.num_edges, "widths": widths, "train_share": _TRAIN_SHARE}
    (folder / "data.json").write_text(json.dumps(facts))


def make_start(rng: np.random.Generator, model: str, widths: tuple[int, int, int]) -> dict[str, Any]:
    """The parameters of two layers that all rivals start from, as `rivals.common.set_start` names them."""
    heads = iter((HEADS, 1))
    return name_layers(widths, lambda given, wanted: LAYERS[model](rng, given, wanted, next(heads)))


def name_layers(widths: tuple[int, int, int], make: Callable[[int, int], Mapping[str, Any]]) -> dict[str, Any]:
    """The parameters of two layers, each made for its widths, with the number of the layer in their names."""
    layers = [make(*each) for each in itertools.pairwise(widths)]
    return {f"{index}.{name}": value for index, layer in enumerate(layers) for name, value in layer.items()}


def _glorot(rng: np.random.Generator, *shape: int) -> NDArray[np.float32]:
    return _uniform(rng, shape, sum(shape))


def _uniform(rng: np.random.Generator, shape: tuple[int, ...], fans: int) -> NDArray[np.float32]:
    limit = np.sqrt(6 / fans)
    return rng.uniform(-limit, limit, shape).astype(np.float32)


def _bias(rng: np.random.Generator, width: int) -> NDArray[np.float32]:
    return rng.uniform(-0.1, 0.1, width).astype(np.float32)


def _gcn(rng: np.random.Generator, given: int, wanted: int, heads: int) -> dict[str, Any]:
    return {"weight": _glorot(rng, given, wanted), "bias": _bias(rng, wanted)}


def _sage(rng: np.random.Generator, given: int, wanted: int, heads: int) -> dict[str, Any]:
    return {"itself": _glorot(rng, given, wanted), **_renamed(_gcn(rng, given, wanted, heads))}


def _renamed(layer: dict[str, Any]) -> dict[str, Any]:
    return {"neighbour": layer["weight"], "bias": layer["bias"]}


def _gin(rng: np.random.Generator, given: int, wanted: int, heads: int) -> dict[str, Any]:
    return {
        "eps": np.zeros((), dtype=np.float32),
        "first": _glorot(rng, given, wanted) / 8,  # sums over heavy neighbourhoods are large
        "first_bias": _bias(rng, wanted),
        "second": _glorot(rng, wanted, wanted) / 8,
        "second_bias": _bias(rng, wanted),
    }


def _gat(rng: np.random.Generator, given: int, wanted: int, heads: int) -> dict[str, Any]:
    each = wanted // heads
    scores = {"source": _glorot(rng, heads, each), "target": _glorot(rng, heads, each)}
    return {"weight": _glorot(rng, given, wanted), **scores, "bias": _bias(rng, wanted)}


def make_relational_layer(
    rng: np.random.Generator, given: int, wanted: int, relations: int, bases: int
) -> dict[str, Any]:
    """The parameters of a layer of R-GCN, as `rivals.common.set_start` names them."""
    return {
        "basis": _uniform(rng, (bases, given, wanted), given + wanted),
        "share": _uniform(rng, (relations, bases), relations + bases),
        "itself": _uniform(rng, (given, wanted), given + wanted),
        "bias": _bias(rng, wanted),
    }


LAYERS = {"gcn": _gcn, "sage": _sage, "gin": _gin, "gat": _gat}


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), (int(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])))
