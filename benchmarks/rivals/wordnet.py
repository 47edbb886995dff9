"""WordNet with its 26 relations, as arrays: written once for all rivals, and read by each.

python -m rivals.wordnet FOLDER INPUTS HIDDEN BASES     (in benchmarks/, with outgrow installed)
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rivals.common import Csr, Job, read_sparse_features

PROJECTED, RAW = "rgcn", "rgcn-raw"
_SEED = 0


class Facts(NamedTuple):
    """What a model is to be made for.

    Attributes:
        widths: Input, hidden and output width.
        relations: Number of relations.
        bases: Weights that the relations of a layer share.
    """

    widths: tuple[int, int, int]
    relations: int
    bases: int


def read_facts(job: Job) -> Facts:
    """What the model of a job is to be made for."""
    found = json.loads((job.folder / "data.json").read_text())
    inputs = found["raw_inputs"] if job.model == RAW else found["inputs"]
    return Facts((inputs, found["hidden"], found["classes"]), found["relations"], found["bases"])


def read_raw(folder: Path) -> Csr:
    """The raw features."""
    found = read_sparse_features(folder / "raw.npz")
    assert found is not None
    return found


def write(folder: Path, inputs: int, hidden: int, bases: int) -> None:
    """Directed edges as they are, features raw and projected at random, and parameters to start from."""
    from rivals.data import make_relational_layer, name_layers

    import outgrow as og
    from outgrow.ops.sparse import SparseRows

    graph, rng = og.load("wordnet", undirected=False), np.random.default_rng(_SEED)
    topology, raw, labels = graph.topology, graph.features, graph.labels
    assert topology.relation is not None
    assert topology.weight is None
    assert isinstance(raw, SparseRows)
    assert labels is not None
    csr = Csr(raw.indptr.numpy(), raw.indices.numpy(), raw.values.numpy(), raw.num_columns)
    np.savez(folder / "raw.npz", **csr._asdict())
    np.save(folder / "indptr.npy", topology.indptr.numpy())
    np.save(folder / "indices.npy", topology.indices.numpy().astype(np.int32))
    np.save(folder / "relation.npy", topology.relation.numpy())
    np.save(folder / "features.npy", _projected(rng, csr, inputs))
    np.save(folder / "labels.npy", labels.numpy().astype(np.int64))
    np.save(folder / "train.npy", graph.split.train.numpy())
    facts = {
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "relations": graph.num_relations,
        "inputs": inputs,
        "raw_inputs": raw.num_columns,
        "hidden": hidden,
        "classes": graph.num_classes,
        "bases": bases,
    }

    def make(given: int, wanted: int) -> dict[str, Any]:
        return make_relational_layer(rng, given, wanted, graph.num_relations, bases)

    for model, wide in ((PROJECTED, inputs), (RAW, raw.num_columns)):
        np.savez(folder / f"start-{model}.npz", **name_layers((wide, hidden, graph.num_classes), make))
    (folder / "data.json").write_text(json.dumps(facts))


def _projected(rng: np.random.Generator, raw: Csr, inputs: int) -> NDArray[np.float32]:
    """``[V, inputs]``: a Gaussian projection, which about keeps the distances between rows."""
    from scipy.sparse import csr_array

    matrix = csr_array((raw.values, raw.indices, raw.indptr), shape=(len(raw.indptr) - 1, raw.num_columns))
    out: NDArray[np.float32] = matrix @ rng.normal(0, inputs**-0.5, (raw.num_columns, inputs)).astype(np.float32)
    return out


if __name__ == "__main__":
    write(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
