"""What an empty callback costs: epochs with one that handles every event and does nothing, and without, in turn.

    python benchmarks/callbacks.py
    python benchmarks/callbacks.py --graphs products@0.02 --epochs 100

Epochs of one training alternate, in pairs whose order alternates too, so that both see the same machine. An epoch is
timed from its predecessor's end to its own, with all that happens between, and no evaluation. Epochs differ by more
than a callback costs: so the time of its calls alone is given as a share of the epoch too.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.runs.session import make_problem
from outgrow.strategies.base import Step
from outgrow.training.evaluation import NodeEvaluation
from outgrow.training.trainer import EpochReport, Trainer

CORA = "cora-sized"
WAYS: dict[str, tuple[og.strategies.Strategy, dict[str, Any]]] = {
    "full": (og.Full(), {}),
    "sampled": (og.Sampled(), {"batch_size": 256, "fanout": (10, 10)}),
}
_WARM, _CALLS = 4, 100_000


class Empty(og.Callback):
    """Handles every event, and does nothing."""

    def on_start(self, report: object) -> None:
        pass

    def on_step(self, report: object) -> None:
        pass

    def on_evaluation(self, report: object) -> None:
        pass

    def on_epoch(self, report: object) -> None:
        pass

    def on_checkpoint(self, report: object) -> None:
        pass

    def on_end(self, report: object) -> None:
        pass


class Clock(og.Callback):
    """Times epochs, and takes the empty callback in and out between them."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self.seconds: dict[bool, list[float]] = {False: [], True: []}
        self.epoch, self.has_callback, self.ended = 0, False, 0.0
        self.entries: dict[bool, dict[str, Any]] = {}

    def begin(self) -> None:
        """Note which callbacks there are without the empty one and with it."""
        hooks = self.trainer.callbacks._by_hook
        self.entries[False] = {hook: list(entries) for hook, entries in hooks.items()}
        self.trainer.add_callbacks(Empty(), guarded=True)
        self.entries[True] = self.trainer.callbacks._by_hook
        self.trainer.callbacks._by_hook = self.entries[False]

    def on_epoch(self, report: EpochReport) -> None:
        now = time.perf_counter()
        if self.epoch >= _WARM:
            self.seconds[self.has_callback].append(now - self.ended)
        self.epoch += 1
        # Without and with, with and without.
        self.has_callback = self.epoch % 4 in (1, 2)
        self.trainer.callbacks._by_hook = self.entries[self.has_callback]
        self.ended = time.perf_counter()


def load(name: str) -> og.Graph:
    """A graph by name, or a random one of Cora's sizes."""
    if name != CORA:
        return og.load(name)
    draw = torch.Generator().manual_seed(0)
    return og.from_arrays(
        torch.randint(2708, (2, 10556), generator=draw),
        features=torch.rand(2708, 1433, generator=draw),
        labels=torch.randint(7, (2708,), generator=draw),
        split={"train": torch.arange(1000), "val": torch.arange(1000, 1500), "test": torch.arange(1500, 2708)},
    )


def measure(graph: og.Graph, way: str, epochs: int) -> dict[str, Any]:
    """Seconds of epochs with and without, and what an epoch with it takes more."""
    strategy, batches = WAYS[way]
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, 64, graph.num_classes)
    config = og.TrainConfig(epochs=2 * epochs + _WARM, eval_every=10**6, **batches)
    problem = make_problem(graph, model, 0, None, config.batch_config)
    trainer = Trainer(problem, NodeEvaluation(problem, graph.split.val, graph.split.test), config)
    clock = Clock(trainer)
    trainer.add_callbacks(clock)
    clock.begin()
    trainer.run(strategy)
    without, with_one = (statistics.median(clock.seconds[each]) for each in (False, True))
    steps = -(-len(graph.split.train) // config.batch_size) if config.batch_size else 1
    # Two with one between two without: what drifts evenly cancels out.
    rounds = zip(*(zip(*[iter(clock.seconds[each])] * 2, strict=False) for each in (True, False)), strict=False)
    return {
        "steps": steps,
        "epochs": {str(each): len(found) for each, found in clock.seconds.items()},
        "seconds_without": without,
        "seconds_with": with_one,
        "share_of_calls": call_seconds(trainer) * (steps + 1) / without,
        "share_of_medians": with_one / without - 1,
        "median_share_of_rounds": statistics.median(sum(each) / sum(others) - 1 for each, others in rounds),
    }


def call_seconds(trainer: Trainer) -> float:
    """What telling the empty callback of a batch takes, its report included."""
    step = Step(loss=1.0, num_seeds=1)
    trainer.add_callbacks(Empty(), guarded=True)
    began = time.perf_counter()
    for _ in range(_CALLS):
        trainer.callbacks.tell_step(trainer.progress, step, lr=0.1, updated=True, seconds=0.1)
    return (time.perf_counter() - began) / _CALLS


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graphs", nargs="+", default=[CORA, "products@0.02"])
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=WAYS)
    parser.add_argument("--epochs", type=int, default=60, help="epochs with, and as many without")
    parser.add_argument("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    rows = []
    for name in options.graphs:
        graph = load(name)
        for way in options.ways:
            rows.append({"graph": name, "way": way, **measure(graph, way, options.epochs)})
            print(rows[-1], flush=True)
    figures = {"parameters": vars(options) | {"out": None}, "versions": versions(), "rows": rows}
    print(record.write("callbacks", figures, options.out))


if __name__ == "__main__":
    main()
