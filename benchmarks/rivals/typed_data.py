"""Typed graphs as arrays, written once for all rivals, and read by each.

    python -m rivals.typed_data FOLDER GRAPH HIDDEN EDGE_FEATURES DATA_DIR     (in benchmarks/, with outgrow installed)

``acm``: HeCo's papers, authors and subjects; bags of words, sparse. ``wordnet``: one node type, 26 relations, features
projected at random to 64 columns. ``mag``: generated, ``ogbn-mag@0.1``, where types without features get fixed random
vectors of 128 columns, as those that PyG's example takes from metapath2vec. Edges have random features.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from rivals.common import Job

GRAPHS = {"acm": "heco-acm", "wordnet": "wordnet", "mag": "ogbn-mag@0.1", "mag-small": "ogbn-mag@0.02"}
MODELS = ("sage", "hgt", "gatv2")
HEADS = 4
_SEED, _PROJECTED = 0, 64


class Facts(NamedTuple):
    """What a model is to be made for.

    Attributes:
        names: Node types.
        borders: The first node of each type, and the number of nodes.
        columns: The first feature column of each type, and the number of columns; zeros first if types share them.
        edge_types: Source type, name (its number) and destination type of each relation.
        hidden: Hidden width, all heads together.
        classes: Output width.
        edge_features: Columns of the features of edges.
    """

    names: list[str]
    borders: list[int]
    columns: list[int]
    edge_types: list[list[str]]
    hidden: int
    classes: int
    edge_features: int

    @property
    def shares_columns(self) -> bool:
        """Whether all types have the same columns."""
        return not any(self.columns[:-1])

    def type_nodes(self, name: str) -> slice:
        """Nodes of a type."""
        at = self.names.index(name)
        return slice(self.borders[at], self.borders[at + 1])

    def type_columns(self, name: str) -> slice:
        """Feature columns of a type."""
        at = self.names.index(name)
        return slice(0, None) if self.shares_columns else slice(self.columns[at], self.columns[at + 1])


class TypedArrays(NamedTuple):
    """The graph; ids are those of all types together. The features are dense rows, or those of a sparse matrix.

    Attributes:
        indptr: ``[V + 1]`` int64, in-edges of each node.
        indices: ``[E]`` int32, source of each edge.
        relation: ``[E]`` relation of each edge.
        edge_features: ``[E, De]`` float32.
        labels: ``[V]`` int64, -1 where there is none.
        train: ``[n]`` int64, nodes of the loss.
        feature_indptr: ``[V + 1]`` int64; empty if features are dense.
        feature_indices: ``[N]`` int32.
        feature_values: ``[N]`` float32, or ``[V, D]``.
    """

    indptr: NDArray[np.int64]
    indices: NDArray[np.int32]
    relation: NDArray[np.int16]
    edge_features: NDArray[np.float32]
    labels: NDArray[np.int64]
    train: NDArray[np.int64]
    feature_indptr: NDArray[np.int64]
    feature_indices: NDArray[np.int32]
    feature_values: NDArray[np.float32]

    @property
    def targets(self) -> NDArray[np.int64]:
        """``[E]``: destination of each edge."""
        return np.repeat(np.arange(len(self.indptr) - 1), np.diff(self.indptr))

    def dense_features(self, columns: int) -> NDArray[np.float32]:
        """``[V, D]``."""
        if not len(self.feature_indptr):
            return self.feature_values
        out = np.zeros((len(self.feature_indptr) - 1, columns), dtype=np.float32)
        out[np.repeat(np.arange(len(out)), np.diff(self.feature_indptr)), self.feature_indices] = self.feature_values
        return out


def graph_folder(job: Job) -> Path:
    """Where the arrays of the graph of a job are, whose model is named ``GRAPH:MODEL``."""
    return job.folder / job.model.partition(":")[0]


def start_file(job: Job) -> Path:
    """The parameters that all rivals start from, under PyG's names."""
    return graph_folder(job) / f"start-{job.model.partition(':')[2]}.npz"


def read_facts(folder: Path) -> Facts:
    """Read what a model is to be made for."""
    found = json.loads((folder / "data.json").read_text())
    return Facts(*(found[name] for name in Facts._fields))


def read_typed(folder: Path, *, edge_features: bool) -> TypedArrays:
    """Read the arrays; features of edges only if asked for."""
    skipped = () if edge_features else ("edge_features",)
    return TypedArrays(
        *(np.empty(0) if name in skipped else np.load(folder / f"{name}.npy") for name in TypedArrays._fields)
    )


def write(folder: Path, name: str, hidden: int, edge_features: int, data_dir: Path) -> None:
    """Write the arrays of a graph."""
    from rivals.random_columns import with_random_columns

    import outgrow as og
    from outgrow.ops.sparse import SparseRows

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(_SEED)
    graph = og.load(GRAPHS[name], data_dir=data_dir, **({"undirected": False} if name == "wordnet" else {}))
    if name == "acm":
        # PyG's models of this comparison have no vectors of nodes: both sides get the same numbers.
        graph = with_random_columns(graph, _PROJECTED)
    topology, features, types = graph.topology, graph.features, graph.types
    columns: list[int] = list(types.columns)
    assert features is not None
    assert topology.relation is not None
    assert graph.labels is not None
    if name == "acm":
        assert isinstance(features, SparseRows)
        rows: tuple[Any, Any, Any] = features.indptr.numpy(), features.indices.numpy(), features.values.float().numpy()
    else:
        dense = _project(rng, features) if name == "wordnet" else _fill_rows(rng, features, types.borders[1])
        columns = [0] * types.num_types + [dense.shape[1]]
        rows = (np.empty(0, np.int64), np.empty(0, np.int32), dense)
    arrays = TypedArrays(
        topology.indptr.numpy(),
        topology.indices.numpy().astype(np.int32),
        topology.relation.numpy().astype(np.int16),
        rng.standard_normal((graph.num_edges, edge_features), dtype=np.float32),
        graph.labels.numpy().astype(np.int64),
        graph.split.train.numpy(),
        *rows,
    )
    for part, array in arrays._asdict().items():
        np.save(folder / f"{part}.npy", array)
    facts = Facts(
        list(types.names),
        list(types.borders),
        columns,
        # Numbers, since not every name of WordNet's can be that of a module.
        [[source, f"r{number}", target] for number, (source, _, target) in enumerate(types.edge_types)],
        hidden,
        graph.num_classes,
        edge_features,
    )
    sizes = {"graph": name, "source": graph.name, "nodes": graph.num_nodes, "edges": graph.num_edges}
    (folder / "data.json").write_text(json.dumps({**sizes, **facts._asdict()}))


def _project(rng: np.random.Generator, raw: Any) -> NDArray[np.float32]:
    """``[V, 64]``: a Gaussian projection, which about keeps the distances between rows."""
    from scipy.sparse import csr_array

    parts = (raw.values.numpy(), raw.indices.numpy(), raw.indptr.numpy())
    matrix = csr_array(parts, shape=(len(raw.indptr) - 1, raw.num_columns))
    drawn = rng.normal(0, _PROJECTED**-0.5, (raw.num_columns, _PROJECTED)).astype(np.float32)
    out: NDArray[np.float32] = matrix @ drawn
    return out


def _fill_rows(rng: np.random.Generator, raw: Any, papers: int) -> NDArray[np.float32]:
    """``[V, D]``: dense rows; those of other types than papers, the first one, get random vectors."""
    out: NDArray[np.float32] = raw.to_dense().numpy()
    out[papers:] = rng.standard_normal(out[papers:].shape, dtype=np.float32)
    return out


if __name__ == "__main__":
    write(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), Path(sys.argv[5]))
