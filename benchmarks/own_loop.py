"""What a loop of the user's own costs: epochs of `og.prepare` and of `og.train`, in turn.

    python benchmarks/own_loop.py
    python benchmarks/own_loop.py --graphs products@0.02 --epochs 100

Both train a model of their own with Adam, by the same batches. After each epoch of `og.train` the other loop trains
one. An epoch is timed with all that happens in it, and no evaluation.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import callbacks
import record
import torch
from workers import versions

import outgrow as og

_WARM = 4


class Turns(og.Callback):
    """Times epochs of the training that it is given to, and after each trains one of the other loop."""

    def __init__(self, training: og.Training) -> None:
        self.training = training
        self.optimizer = torch.optim.Adam(training.model.parameters(), lr=0.01)
        self.seconds: dict[str, list[float]] = {"train": [], "prepare": []}
        self.began = 0.0

    def on_epoch(self, report: Any) -> None:
        """Note the seconds of the epoch; train one of the other loop."""
        ended = time.perf_counter()
        epoch = report.epoch - 1
        for _ in self.training.steps(epoch):
            self.optimizer.step()
            self.optimizer.zero_grad()
        other = time.perf_counter() - ended
        if epoch >= _WARM:
            self.seconds["train"].append(ended - self.began)
            self.seconds["prepare"].append(other)
        self.began = time.perf_counter()


def measure(graph: og.Graph, way: str, epochs: int) -> dict[str, Any]:
    """Medians of epochs of both loops."""
    strategy, batches = callbacks.WAYS[way]
    torch.manual_seed(0)
    models = [og.nn.SAGE(graph.num_features, 64, graph.num_classes) for _ in range(2)]
    with og.prepare(graph, models[0], strategy=strategy, eval="none", **batches) as training:
        turns = Turns(training)
        og.train(
            graph,
            models[1],
            strategy=strategy,
            epochs=epochs + _WARM,
            eval="none",
            callbacks=[turns],
            progress=False,
            **batches,
        )
    medians = {name: statistics.median(found) for name, found in turns.seconds.items()}
    pairs = zip(turns.seconds["prepare"], turns.seconds["train"], strict=True)
    return {
        "epochs": epochs,
        "seconds": medians,
        "ratio_of_medians": medians["prepare"] / medians["train"],
        "median_ratio": statistics.median(own / theirs for own, theirs in pairs),
    }


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=[callbacks.CORA, "products@0.02"])
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    rows = []
    for name in options.graphs:
        graph = callbacks.load(name)
        for way in callbacks.WAYS:
            rows.append({"graph": name, "way": way, **measure(graph, way, options.epochs)})
            print(rows[-1], flush=True)
    given = {"graphs": options.graphs, "epochs": options.epochs}
    print(record.write("own_loop", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


if __name__ == "__main__":
    main()
