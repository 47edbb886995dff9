"""What is trained while it is disturbed: one small graph, by every strategy, with mini-batches and without."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

GRAPH = "products@0.002"
EPOCHS = 8
_WHOLE = ("full", "offload", "tensor")
WORKERS = {
    "full": (2, 3),
    "offload": (1, 2),
    "tensor": (2,),
    "sampled": (2,),
    "split": (2,),
    "migrate": (2,),
    "orchestrate": (1, 2),
}
STRATEGIES = tuple(WORKERS)
_OPTIONS = {
    "full": (),  # METIS partitions, and may be disturbed
    "offload": ("chunks=3", "partition=range"),
    "tensor": (),
    "sampled": ("partition=range",),
    "split": ("partition=range",),
    "migrate": ("partition=range", "move_model=true", "merge=false"),  # else times choose where sums are taken
    "orchestrate": ("partition=range",),
}


@dataclass(frozen=True, kw_only=True)
class Workload:
    """One way to train.

    Attributes:
        strategy: Name of the strategy.
        workers: Number of workers.
    """

    strategy: str
    workers: int

    @property
    def words(self) -> list[str]:
        """Arguments of `outgrow train` beside the graph, the number of workers and the directory."""
        words = f"--model sage --layers 2 --hidden 16 --dropout 0.3 --epochs {EPOCHS} --seed 3".split()
        words += ["--strategy", self.strategy]
        options = ["checkpoint_every=2", *_OPTIONS[self.strategy]]
        if self.strategy not in _WHOLE:
            words += ["--batch-size", "48", "--fanout", "4,4"]
            options.append("checkpoint_steps=3")
        return words + [word for option in options for word in ("--set", option)]


def workload(strategy: str, turn: int, least: int) -> Workload:
    """How a strategy is run this time: its numbers of workers take turns, from ``least`` on."""
    numbers = [number for number in WORKERS[strategy] if number >= least]
    return Workload(strategy=strategy, workers=numbers[turn % len(numbers)])


def make_store(path: Path) -> None:
    """Write the graph as a store."""
    subprocess.run([sys.executable, "-m", "outgrow", "convert", GRAPH, str(path)], check=True, capture_output=True)
