"""What each reader makes of an input, looked at closely. Each function returns if it is valid, or raises."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import checkpoint_files
import numpy as np
import torch

from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.readers import planetoid as planetoid_reader
from outgrow.graph.readers.detect import detect_reader
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.store.reader import open_store
from outgrow.graph.store.verify import verify_graph
from outgrow.ops.sparse import SparseRows
from outgrow.training import checkpoint

Opener = Callable[[Path, dict[str, Any], Path | None], None]
_MOST_COLUMNS, _SORT_BYTES = 1 << 20, 1 << 24


def source(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A graph in any form but a store: read into memory, or converted to a store in ``out``."""
    read = detect_reader(path, TableOptions(**options))
    use(assemble_graph(read) if out is None else convert_to_store(read, out / "made.store", memory_bytes=_SORT_BYTES))


def planetoid(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """The same for graphs too small for 500 nodes to validate on."""
    planetoid_reader._NUM_VAL = 2
    source(path, options, out)


def store(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A store, read whole; and opened only."""
    open_store(path)
    use(open_store(path, verify=True))


def saved(path: Path, options: dict[str, Any], out: Path | None) -> None:
    """A checkpoint, put into a model and an optimizer, which then make a step."""
    model, optimizer = checkpoint_files.fresh(options["optimizer"])
    progress = checkpoint.restore_checkpoint(checkpoint.load_checkpoint(path), path, model, optimizer)
    assert progress.finished_epochs == len(progress.loss) == len(progress.val_score) == len(progress.epoch_seconds)
    assert all(isinstance(loss, float) for loss in progress.loss)
    progress.add_step(1.0, 2)
    progress.end_epoch()
    if progress.best_model is not None:
        checkpoint.load_parameters(model, progress.best_model, path)
    checkpoint_files.stepped(model, optimizer)


def use(graph: Graph) -> None:
    """Check a graph, and aggregate once over it by loops that look at every index."""
    verify_graph(graph)
    indptr, indices = graph.topology.indptr, graph.topology.indices.long()
    dst = torch.repeat_interleave(torch.arange(graph.num_nodes), indptr.diff())
    rows = torch.ones(graph.num_nodes, 1)
    if isinstance(graph.features, SparseRows):
        rows = _sums(graph.features)
    elif graph.features is not None:
        rows = graph.features.to_dense().float()
    total = torch.zeros_like(rows).index_add(0, dst, rows[indices])
    assert total.shape == rows.shape
    if graph.topology.relation is not None:
        assert len(np.bincount(graph.topology.relation.numpy())) <= graph.num_relations
    for part in (graph.split.train, graph.split.val, graph.split.test):
        assert rows[part].shape[0] == len(part)
    assert isinstance(graph.name, str)
    str(graph)


def _sums(features: SparseRows) -> torch.Tensor:
    """``[V, 1]``: a product with a vector, or the sum of each row where that would be too long."""
    columns = features.num_columns
    weight = np.ones(columns, np.float32)[features.indices.numpy()] if columns <= _MOST_COLUMNS else np.float32(1)
    each = torch.from_numpy(features.values.numpy().astype(np.float32) * weight)
    row = torch.repeat_interleave(torch.arange(len(features)), features.indptr.diff())
    return torch.zeros(len(features), 1).index_add(0, row, each[:, None])


OPENERS: dict[str, Opener] = {
    "edge_list": source,
    "npz": source,
    "parquet": source,
    "planetoid": planetoid,
    "store": store,
    "checkpoint": saved,
}
