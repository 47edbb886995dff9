"""One training session: from a graph and a model to a run, with its files."""

from __future__ import annotations

import math
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from types import FrameType
from typing import Any

from outgrow.app.board import Board
from outgrow.app.run import Run
from outgrow.app.rundir import RunDirectory
from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.graph.graph import Graph
from outgrow.graph.validate import require_trainable
from outgrow.nn.heads import MultiLabel, SingleLabel
from outgrow.nn.model import Model
from outgrow.runtime.memory import PeakMemory
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import Evaluation, Listener, Outcome, Trainer

STRATEGIES: dict[str, Callable[[], Strategy]] = {"full": Full}


def strategy_of(choice: str | Strategy) -> tuple[Strategy, str]:
    """The strategy that is meant, and one sentence on why.

    Raises:
        InputError: No such strategy.
    """
    if isinstance(choice, Strategy):
        return choice, f"strategy {choice.name}, as given"
    if choice == "auto":
        return Full(), "strategy full: one worker, and the graph is trained in memory"
    return pick("strategy", choice, {"auto": Full, **STRATEGIES})(), f"strategy {choice}, as given"


def problem_of(graph: Graph, model: Model, seed: int) -> Problem:
    """What is to be trained.

    Raises:
        InputError: The graph cannot be trained on, or the model does not fit it.
    """
    require_trainable(graph)
    assert graph.features is not None
    assert graph.labels is not None
    _require_fit(graph, model)
    return Problem(
        topology=graph.topology,
        features=graph.features.to(next(model.parameters()).dtype),
        labels=graph.labels,
        train=graph.split.train,
        task=MultiLabel() if graph.multi_label else SingleLabel(),
        model=model,
        seed=seed,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A run about to start.

    Attributes:
        graph: What to train on.
        model: What to train; its parameters are changed in place.
        config: How long and how hard.
        strategy: How.
        directory: Where files go; None for none.
        listeners: Told after every epoch.
    """

    graph: Graph
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: RunDirectory | None = None
    listeners: tuple[Listener, ...] = ()

    def run(self, *, resume: bool) -> Run:
        """Train, from the last checkpoint on if ``resume``, and write the run's files."""
        problem = problem_of(self.graph, self.model, self.config.seed)
        with PeakMemory() as memory, _interrupt() as interrupted, ExitStack() as stack:
            trainer = Trainer(
                problem,
                Evaluation(val=self.graph.split.val, test=self.graph.split.test),
                self.config,
                folder=None if self.directory is None else self.directory.checkpoints,
                interrupted=interrupted.is_set,
            )
            if resume:
                assert self.directory is not None
                trainer.resume(self.directory.newest_checkpoint())
                self.directory.forget_after(trainer.progress.epoch)
            if self.directory is not None:
                board = Board(self.directory.path / "tensorboard", trainer.progress.epoch)
                stack.callback(board.close)
                trainer.listen(self.directory, board)
            trainer.listen(*self.listeners)
            outcome = trainer.run(self.strategy)
        summary = self._summary(problem, trainer, outcome, memory.peak_bytes)
        if self.directory is not None:
            self.directory.write("ledger.json", {"ledger": summary["ledger"], "counters": summary["counters"]})
            self.directory.write("summary.json", summary)
        path = None if self.directory is None else self.directory.path
        return Run(model=self.model, logits=outcome.logits, summary=summary, directory=path)

    def _summary(self, problem: Problem, trainer: Trainer, outcome: Outcome, peak_bytes: int) -> dict[str, Any]:
        progress = outcome.progress
        return {
            "strategy": self.strategy.name,
            "strategy_options": {},
            "workers": 1,
            "device": "cpu",
            "seed": self.config.seed,
            "epochs": progress.epoch,
            "loss": progress.loss,
            "val_accuracy": _finite_or_none(outcome.val_score),
            "test_accuracy": _finite_or_none(outcome.test_score),
            "epoch_seconds": progress.epoch_seconds,
            "peak_bytes": {"device": peak_bytes, "host": 0},
            "ledger": trainer.ledger.as_dict(),
            "counters": dict(trainer.ledger.counters),
            "exact": self.strategy.exact,
            "graph": self.graph.name,
            "metric": problem.task.metric,
            "best_epoch": progress.best_epoch,
            "stopped": outcome.stopped,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "train": asdict(self.config),
        }


def _require_fit(graph: Graph, model: Model) -> None:
    first, last = model.stages()[0], model.stages()[-1]
    if graph.sparse and not first.conv.takes_sparse:
        raise InputError(
            f"the first layer of the model cannot take the sparse features of {graph.name!r}",
            needed="a first layer that projects before it aggregates",
            got=type(first.conv).__name__,
            repair="give SAGE sparse_input=True, or SAGEConv project_first=True",
        )
    if first.widths.in_features != graph.num_features:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{graph.num_features} inputs, one for each feature",
            got=f"{first.widths.in_features} inputs",
            repair="build the model with graph.num_features",
        )
    if last.widths.out_features != graph.num_classes:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{graph.num_classes} outputs, one for each class",
            got=f"{last.widths.out_features} outputs",
            repair="build the model with graph.num_classes",
        )


@contextmanager
def _interrupt() -> Iterator[threading.Event]:
    """An event that the first Ctrl-C sets; a second one interrupts at once."""
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = signal.getsignal(signal.SIGINT)

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(signal.SIGINT, before)

    signal.signal(signal.SIGINT, ask)
    try:
        yield asked
    finally:
        signal.signal(signal.SIGINT, before)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
