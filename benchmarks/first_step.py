"""One start of the library, up to the first training step; `startup.py` runs it in processes of their own.

    python first_step.py GRAPH MODEL HIDDEN EVAL_EVERY BEGAN

BEGAN is the time of the monotonic clock at which the process was started. Nothing may be imported above that `og.train`
would not import itself. The last line of standard output is the report, as JSON: seconds.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outgrow.training.trainer import EpochReport

EPOCHS = 2
RELATIONAL = ("film-relational", "gat-relational", "rgcn", "rgcn-diagonal")


class _Clock:
    """Notes when each epoch ended."""

    def __init__(self) -> None:
        self.ended: list[float] = []
        self.seconds: list[float] = []
        self.losses: list[float] = []

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        self.ended.append(time.monotonic())
        self.seconds.append(report.seconds)
        self.losses.append(report.loss)


def start(name: str, model: str, hidden: int, eval_every: int, began: float) -> dict[str, float]:
    """Import, load, prepare, take two steps; without an evaluation before the first is done, unless it is asked for."""
    from outgrow import Full, TrainConfig, load
    from outgrow.app.model_registry import build_model
    from outgrow.app.runs.session import make_problem
    from outgrow.training.evaluation import NodeEvaluation
    from outgrow.training.trainer import Trainer

    imported = time.monotonic()
    graph = load(name, undirected=False if model in RELATIONAL else None)
    loaded = time.monotonic()
    import torch

    torch.manual_seed(0)
    config = TrainConfig(epochs=EPOCHS, eval_every=eval_every)
    problem = make_problem(graph, build_model(model, graph, {"hidden": hidden}), config.seed)
    trainer = Trainer(problem, NodeEvaluation(problem, graph.split.val, graph.split.test), config)
    clock = _Clock()
    trainer.add_callbacks(clock)
    trainer.run(Full())
    total, step = clock.ended[0] - began, clock.seconds[0]
    return {
        "import": imported - began,
        "load": loaded - imported,
        "prepare": clock.ended[0] - loaded - step,
        "step": step,
        "total": total,
        "next_step": clock.seconds[1],
        "loss": clock.losses[0],
    }


if __name__ == "__main__":
    report = start(*sys.argv[1:3], *map(int, sys.argv[3:5]), float(sys.argv[5]))
    import json

    print("\n" + json.dumps(report))
