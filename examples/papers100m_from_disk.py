"""Train on ogbn-papers100M from a disk: on the whole graph within a bound of memory, and in mini-batches.

    python examples/papers100m_from_disk.py --data-dir data                   # a graph like it, at 1/500 of its size
    python examples/papers100m_from_disk.py --data-dir data --scale 0.02      # at 1/50
    python examples/papers100m_from_disk.py --data-dir data --memory 16GiB --ogb ogbn_papers100M    # the data set

The real graph has 111 million nodes, 1.6 billion edges and 128 features; its features alone take 57 GB. Without --ogb a
graph with its published statistics is generated: nodes and edges times the scale, the same width of features, classes
and shares of labelled nodes. Look at its losses, seconds and memory: with 1 node in 90 to learn 172 classes from, its
accuracy is near nothing. --ogb names the folder that the Open Graph Benchmark unpacks.

Mini-batches read features where they lie, and are evaluated on the neighbourhood of the validation nodes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import outgrow as og
import torch

LAYERS = 3


def arguments() -> argparse.Namespace:
    """The options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True, help="folder on a disk for the store and scratch files")
    parser.add_argument("--scale", type=float, default=0.002, help="size of the generated graph over the real (0.002)")
    parser.add_argument("--ogb", type=Path, help="folder of the real data set, such as ogbn_papers100M (none)")
    parser.add_argument("--memory", default="600MiB", help="most memory for the whole graph in chunks (600MiB)")
    parser.add_argument("--hidden", type=int, default=128, help="width of hidden layers (128)")
    parser.add_argument("--epochs", type=int, default=5, help="epochs of each way to train (5)")
    return parser.parse_args()


def open_graph(options: argparse.Namespace) -> og.Graph:
    """The graph as a store, which is mapped instead of read; written once, in bounded memory."""
    options.data_dir.mkdir(parents=True, exist_ok=True)
    source = options.ogb or f"papers100M@{options.scale:g}"
    store = options.data_dir / f"{Path(source).name}.store"
    if not store.exists():
        og.convert(source, store)
    print(f"store: {store}")
    return og.load(store)


def build(graph: og.Graph, hidden: int) -> og.nn.Model:
    """The same model for both ways to train."""
    torch.manual_seed(0)
    return og.nn.SAGE(graph.num_features, hidden, graph.num_classes, layers=LAYERS, dropout=0.2, norm=True)


def show(name: str, run: og.Run) -> None:
    """What came of a run, and what it took."""
    seconds, peak = sum(run.epoch_seconds) / len(run.epoch_seconds), run.summary["peak_bytes"]["device"]
    print(f"{name}: loss {run.loss[0]:.3f}, then {run.loss[-1]:.3f}; test accuracy {run.test_accuracy:.3f}")
    print(f"    {seconds:.1f} s an epoch, peak memory {peak / 2**20:.0f} MiB")


def main() -> None:
    """Train both ways."""
    options = arguments()
    graph = open_graph(options)
    print(graph)
    scratch = options.data_dir / "scratch"
    scratch.mkdir(exist_ok=True)
    loop = {"epochs": options.epochs, "lr": 0.01, "eval_every": options.epochs}

    # All nodes and all edges in every step. Rows of nodes lie in scratch files and come to memory chunk by chunk, in
    # as few chunks as fit. The budget holds for the process, interpreter included; mapped pages of files do not count.
    strategy = og.Offload(memory=options.memory, scratch_dir=str(scratch))
    run = og.train(graph, build(graph, options.hidden), strategy=strategy, **loop)
    show(f"the whole graph, chunks: {run.summary['found']['chunks']}", run)
    print(f"    scratch files: {run.summary['found'].get('scratch_bytes', 0) / 2**20:.0f} MiB")

    # Mini-batches: seeds, a sample of their neighbours, hop by hop, and the features of these, read from the store
    # where they lie.
    run = og.train(graph, build(graph, options.hidden), batch_size=512, fanout=(15, 10, 5), **loop)
    show("mini-batches", run)
    print(f"    rows of features read: {run.summary['counters']['rows_loaded']:,}")


if __name__ == "__main__":
    main()
