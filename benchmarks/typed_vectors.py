"""Vectors for node types without features against fixed random columns: test accuracy, and bytes of stores.

    python benchmarks/typed_vectors.py --data-dir DATA

Graphs: HeCo ACM, whose subjects have no features, and ``ogbn-mag@SCALE``, where only papers have some. Of types
without features, nodes have a learned vector each (`HeteroEncoder`), or as many fixed numbers, drawn from a normal
distribution and projected by a learned matrix. All else is equal: R-GCN with matrices (`TypedRGCN`) and HGT, two
layers, Adam, whole graph. The test accuracy is that of the epoch with the best validation accuracy.

Bytes: files of features in a store, against dense float32 numbers of the types that have features, and against one CSR
matrix with 64 random columns for each other type, as earlier versions wrote it. Last, what R-GCN with bases sends on
HeCo ACM under ``full`` and ``tensor`` with 2 workers.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
import torch  # noqa: E402
from rivals.random_columns import with_random_columns  # noqa: E402

import outgrow as og  # noqa: E402
from outgrow.graph.graph import Graph  # noqa: E402

MODELS = {"rgcn": og.nn.TypedRGCN, "hgt": og.nn.HGT}
BASES_HIDDEN = 256
"""Width of R-GCN with bases, whose bytes are counted."""
RANDOM_COLUMNS = 64
"""Of each type without features, in stores of earlier versions."""


def count_bytes(graph: Graph) -> dict[str, float]:
    """Return the bytes of features: in a store, dense, and as one CSR matrix with random columns."""
    with tempfile.TemporaryDirectory() as folder:
        og.save_graph(graph, Path(folder) / "store")
        stored = sum(each.stat().st_size for each in (Path(folder) / "store").glob("*feature*.npy"))
    features = graph.features
    assert features is not None
    assert not isinstance(features, torch.Tensor)
    dense = 4 * sum((kind.last - kind.first) * kind.num_columns for kind in graph.node_types)
    without = sum(kind.last - kind.first for kind in graph.node_types if not kind.num_columns)
    of_value = 4 + features.dtype.itemsize
    as_csr = 8 * (graph.num_nodes + 1) + of_value * (features.num_values + RANDOM_COLUMNS * without)
    return {"stored": stored, "dense": dense, "csr_before": as_csr, "stored_by_dense": round(stored / dense, 4)}


def train_once(graph: Graph, name: str, options: argparse.Namespace, seed: int) -> float:
    """Return the test accuracy of a model, in percent."""
    torch.manual_seed(seed)
    given = {"heads": 4} if name == "hgt" else {}
    model = MODELS[name](graph.num_features, options.hidden, graph.num_classes, types=graph.types, dropout=0.3, **given)
    run = og.train(
        graph, model, epochs=options.epochs, lr=options.lr, seed=seed, strategy="full", patience=None, progress=False
    )
    return 100 * float(run.test_accuracy)


def compare(graph: Graph, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return the accuracies with vectors and with random columns."""
    inputs = {"vectors": graph, "random columns": with_random_columns(graph, options.hidden)}
    row: dict[str, Any] = {"graph": graph.name, "model": name}
    for what, given in inputs.items():
        began = time.perf_counter()
        found = [train_once(given, name, options, seed) for seed in range(options.seeds)]
        row[what] = {
            "test": [round(each, 2) for each in found],
            "mean": round(statistics.mean(found), 2),
            "deviation": round(statistics.stdev(found), 2) if len(found) > 1 else 0.0,
            "seconds": round(time.perf_counter() - began, 1),
        }
    print(row, flush=True)
    return row


def move_bases(graph: Graph, strategy: str, epochs: int) -> dict[str, Any]:
    """Return the bytes that R-GCN with bases sends between 2 workers, in MB, with the loss and the test accuracy."""
    torch.manual_seed(0)
    shape = graph.num_features, BASES_HIDDEN, graph.num_classes
    # As `outgrow train heco-acm --model rgcn` has it.
    options = {"num_relations": graph.num_relations, "sparse_input": True, "dropout": 0.5, "norm": True}
    model = og.nn.RGCN(*shape, **options, input_dropout=0.5)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = og.train(
            graph, model, strategy=strategy, workers=2, epochs=epochs, patience=None, progress=False, out=out
        )
        workers = json.loads((out / "workers.json").read_text())["workers"]
    sent = sum(each["sent"].get("peer", 0) for each in workers)
    row = {
        "graph": graph.name,
        "strategy": strategy,
        "hidden": BASES_HIDDEN,
        "epochs": epochs,
        "MB": round(sent / 1e6, 1),
    }
    row |= {"loss": run.summary["loss"][-1], "test": round(100 * float(run.test_accuracy), 2)}
    print(row, flush=True)
    return row


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--scale", type=float, default=0.01)
    parser.add_argument("--graphs", type=lambda text: text.split(","), default=["heco-acm", "ogbn-mag"])
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=40)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--lr", type=float, default=0.005)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    whole = {"heco-acm": "heco-acm", "ogbn-mag": f"ogbn-mag@{options.scale:g}"}
    graphs = [og.load(whole[name], data_dir=options.data_dir) for name in options.graphs]
    sizes = {graph.name: count_bytes(graph) for graph in graphs}
    print(sizes, flush=True)
    moved = [
        move_bases(graph, strategy, 20)
        for graph in graphs
        if graph.name == "heco-acm"
        for strategy in ("full", "tensor")
    ]
    rows = [compare(graph, name, options) for graph in graphs for name in options.models]
    given = {name: getattr(options, name) for name in ("seeds", "epochs", "hidden", "lr")}
    figures = {"parameters": {"layers": 2, "dropout": 0.3, **given}, "bytes": sizes, "sent": moved, "accuracy": rows}
    print(record.write("typed_vectors", figures, options.out))


if __name__ == "__main__":
    main()
