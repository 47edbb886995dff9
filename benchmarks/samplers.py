"""What batches of each sampler hold: edges and distinct nodes, by count; and the accuracy that they lead to.

    python benchmarks/samplers.py                            # products@0.02, batches of 1024
    python benchmarks/samplers.py --graphs reddit@0.05 --epochs 0

Nothing is timed. See benchmarks/README.md and docs/minibatches.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
import torch  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402

import outgrow as og  # noqa: E402
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, WITH_REPLACEMENT  # noqa: E402
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler  # noqa: E402

FANOUT = (15, 10, 5)
HIDDEN = 64
EPOCH = 1


class Way(NamedTuple):
    """A sampler and its fan-outs."""

    sampler: str
    fanout: tuple[int, ...] = FANOUT


WAYS = (
    Way(NEIGHBOR),
    Way(WITH_REPLACEMENT),
    Way(LABOR),
    *(Way(FASTGCN, (nodes,) * len(FANOUT)) for nodes in (2000, 8000)),
)


def count_batches(graph: og.Graph, way: Way, batches: Sequence[torch.Tensor], seed: int) -> dict[str, float]:
    """Edges of all layers, destinations without an edge and distinct nodes of a batch, in the mean."""
    views = [graph.topology] * len(way.fanout)
    sampler = NeighborSampler(views, way.fanout, seed, sampler=way.sampler)
    edges, nodes, empty = [], [], []
    for step, seeds in enumerate(batches):
        blocks = sampler.sample_blocks(seeds, EPOCH, step)
        edges.append(sum(block.edges.num_edges for block in blocks))
        nodes.append(len(blocks[0].src_nodes))
        without = [int((block.edges.indptr.diff() == 0).sum()) for block in blocks]
        empty.append(sum(without) / sum(block.edges.num_dst for block in blocks))
    found = {"edges": edges, "nodes": nodes, "without_an_edge": empty}
    return {name: statistics.fmean(each) for name, each in found.items()}


def train_accuracy(graph: og.Graph, way: Way, options: argparse.Namespace, seed: int) -> float:
    """Validation accuracy of the best epoch, with all neighbours."""
    torch.manual_seed(seed)
    model = og.nn.SAGE(graph.num_features, HIDDEN, graph.num_classes, layers=len(way.fanout), dropout=0.5)
    given = {"batch_size": options.batch_size, "fanout": way.fanout, "sampler": way.sampler, "epochs": options.epochs}
    run = og.train(graph, model, strategy="sampled", seed=seed, lr=0.003, progress=False, **given)
    return float(run.summary["val_accuracy"])


def rows_of(graph: og.Graph, options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each way."""
    batches = og.TrainConfig(batch_size=options.batch_size).batch_config.seeds_of_epoch(graph.split.train, 0, EPOCH)
    whole = [seeds for seeds in batches if len(seeds) == len(batches[0])][: options.batches]
    rows = []
    for way in WAYS:
        row: dict[str, Any] = {"graph": graph.name, "sampler": way.sampler, "fanout": ",".join(map(str, way.fanout))}
        row |= {"batches": len(whole), **count_batches(graph, way, whole, 0)}
        if options.epochs:
            row["val_accuracy"] = [train_accuracy(graph, way, options, seed) for seed in range(options.seeds)]
            row["mean_accuracy"] = statistics.fmean(row["val_accuracy"])
        rows.append(row)
    return rows


def main() -> None:
    """Count, train, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["products@0.02"])
    add("--batch-size", type=int, default=1024)
    add("--batches", type=int, default=20, help="most batches that are counted")
    add("--epochs", type=int, default=10, help="0 to count only")
    add("--seeds", type=int, default=3)
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    rows = [row for name in options.graphs for row in rows_of(og.load(name, data_dir=options.data_dir), options)]
    show("batches by sampler", rows, shares=("without_an_edge", "mean_accuracy"), hidden=("val_accuracy",))
    parameters = {name: getattr(options, name) for name in ("batch_size", "epochs", "seeds")}
    figures = {"parameters": {**parameters, "hidden": HIDDEN}, "versions": versions(), "rows": rows}
    print(record.write("samplers", figures, options.out))


if __name__ == "__main__":
    main()
