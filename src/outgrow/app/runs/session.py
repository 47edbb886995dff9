"""One training session: from a graph and a model to a run, with its files."""

from __future__ import annotations

import math
import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from outgrow.app.compatibility import require_problem
from outgrow.app.console import say
from outgrow.app.link_task import link_evaluation, link_problem, split_of, without_held_out
from outgrow.app.runs.directory import HintKeeper, RunDirectory
from outgrow.app.runs.memory_monitor import Tiers, worker_record
from outgrow.app.runs.result import Run
from outgrow.app.runs.tensorboard import Board
from outgrow.app.runs.trace import trace_of
from outgrow.core.errors import TrainingError
from outgrow.core.ledger import merged
from outgrow.engine.batches import EVERYTHING, Batches
from outgrow.engine.shard import Share, Whole
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import array_file, is_as_stored
from outgrow.nn.model import Model
from outgrow.nn.tasks import MultiLabel, SingleLabel
from outgrow.ops.linear import products_in_bfloat16
from outgrow.runtime.distributed.comm import Alone, Comm
from outgrow.runtime.system.device import CPU, device_of
from outgrow.runtime.system.process_memory import LARGE_BYTES, return_freed_memory, trim_memory
from outgrow.strategies.base import Problem, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.evaluation import Evaluation, Marks, NodeEvaluation
from outgrow.training.progress_events import Moments, Watcher
from outgrow.training.trainer import Listener, Outcome, Trainer


def problem_of(
    graph: Graph, model: Model, seed: int, share: Share | None = None, batches: Batches = EVERYTHING
) -> Problem:
    """What is to be trained.

    Args:
        graph: What to train on.
        model: What to train.
        seed: Seed of every random draw.
        share: What the worker holds of the graph; None for all of it.
        batches: What mini-batches are made of.

    Raises:
        InputError: See `require_problem`.
    """
    require_problem(graph, model)
    assert graph.features is not None
    assert graph.labels is not None
    problem = Problem.of(
        share or Whole(graph.topology),
        features=graph.features,
        labels=graph.labels,
        train=graph.split.train,
        task=MultiLabel() if graph.multi_label else SingleLabel(),
        model=model,
        seed=seed,
        batches=batches,
    )
    return replace(problem, find_feature_file=partial(_feature_file, graph))


@dataclass(frozen=True, kw_only=True, eq=False)
class Session:
    """A run about to start, on one of its workers.

    Attributes:
        graph: What to train on.
        model: What to train; its parameters are changed in place.
        config: How long and how hard.
        strategy: How.
        directory: Where files go; None for none. The worker that leads writes them.
        listeners: Told after every epoch, on the worker that leads.
        watchers: Told what is under way, on the worker that leads.
        comm: The line to the other workers.
        device: What workers compute on: see `device_of`.
        stop: Asked after every epoch whether to stop; None for whether Ctrl-C was pressed.
        warn: Told, in a sentence, before memory is full; on every worker.
    """

    graph: Graph
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: RunDirectory | None = None
    listeners: tuple[Listener, ...] = ()
    watchers: tuple[Watcher, ...] = ()
    comm: Comm = field(default_factory=Alone)
    device: str = "auto"
    stop: Callable[[], bool] | None = None
    warn: Callable[[str], None] = say

    def run(self, *, resume: bool) -> Run:
        """Train, from the last checkpoint on if ``resume``, and write the run's files."""
        comm, directory = self.comm, self.directory
        comm.device = device_of(self.device, comm)
        return_freed_memory(LARGE_BYTES)
        trim_memory()
        with Tiers(comm, self.strategy, self.warn) as memory, interrupt() as interrupted, ExitStack() as stack:
            stack.enter_context(self.graph.files.kept_whole())
            stack.enter_context(products_in_bfloat16(self.config.in_bfloat16))
            comm.broadcast_parameters(self.model)
            stack.callback(self.model.to, CPU)
            self.model.to(self.strategy.home(comm.device))
            moments = Moments(self.watchers if comm.leads else ())
            moments.begin("dealing out nodes" if comm.size > 1 else "reading")
            problem, evaluation = self._problem()
            trim_memory()
            trainer = Trainer(
                problem,
                evaluation,
                self.config,
                folder=None if directory is None else directory.checkpoints,
                interrupted=self.stop or interrupted.is_set,
                moments=moments,
                require_whole=self.graph.files.require_whole,
            )
            if resume:
                files = directory if comm.leads else None
                trainer.resume(comm.broadcast(files and files.newest_checkpoint(self.warn)))
                problem.hints.update(comm.broadcast({} if directory is None else directory.hints))
            trainer.progress.exact &= self._is_exact()
            if comm.leads:
                self._tell(trainer, stack)
            outcome = self._outcome(trainer)
        summary = self._summary(trainer, outcome, memory.peaks())
        workers = comm.gather(worker_record(comm, memory))
        spans = comm.gather(problem.timeline.spans)
        if directory is not None and comm.leads:
            directory.write("ledger.json", {"ledger": summary["ledger"], "counters": summary["counters"]})
            directory.write("workers.json", {"workers": workers})
            directory.write("trace.json", trace_of(spans))
            directory.write("summary.json", summary)
        path = None if directory is None else directory.path
        return Run(model=self.model, logits=outcome.logits, summary=summary, directory=path)

    def _is_exact(self) -> bool:
        """Whether what this session trains has the gradient of the reference."""
        layers = all(layer.conv.exact for layer in self.model.stages())
        return self.strategy.is_exact(self.config.batches) and layers and not self.config.in_bfloat16

    def _problem(self) -> tuple[Problem, Evaluation]:
        """What is trained, and what models are scored on."""
        graph, model, comm = self.graph, self.model, self.comm
        if model.decoder is None:
            share = self.strategy.share(graph, comm, model, self.config.batches)
            problem = problem_of(graph, model, self.config.seed, share, self.config.batches)
            problem = replace(problem, checkpoint_steps=self.config.checkpoint_steps)
            return problem, NodeEvaluation(problem, graph.split.val, graph.split.test)
        split = split_of(graph, self.config)
        share = self.strategy.share(without_held_out(graph, split), comm, model)
        problem = link_problem(graph, model, self.config, share)
        problem = replace(problem, find_feature_file=partial(_feature_file, graph))
        return problem, link_evaluation(graph, model, split, share)

    def _outcome(self, trainer: Trainer) -> Outcome:
        """Train.

        Raises:
            TrainingError: The GPU has too little memory.
        """
        try:
            return trainer.run(self.strategy)
        except torch.OutOfMemoryError as error:
            raise TrainingError(
                f"the GPU is too small for strategy {self.strategy.name}",
                needed="memory for all that it holds at once",
                got=str(error).partition(". See documentation")[0],
                repair="choose --strategy offload, with --memory for what it may take; or --batch-size and --fanout",
            ) from error

    def _tell(self, trainer: Trainer, stack: ExitStack) -> None:
        """Let files and listeners know of every epoch."""
        if self.directory is not None:
            self.directory.forget_after(trainer.progress.epoch)
            board = stack.enter_context(Board(self.directory.path / "tensorboard", trainer.progress.epoch))
            trainer.listen(self.directory, HintKeeper(self.directory, trainer.problem.hints), board)
        trainer.listen(*self.listeners)

    def _summary(self, trainer: Trainer, outcome: Outcome, peaks: tuple[int, int]) -> dict[str, Any]:
        """What there is to say of the run; ``peaks`` are the most bytes in the DEVICE tier and in memory beside it."""
        progress, strategy, problem = outcome.progress, self.strategy, trainer.problem
        ledger = merged(self.comm.gather(trainer.ledger))
        seconds = sum(self.comm.gather(problem.timeline.seconds), Counter[str]())
        return {
            "strategy": strategy.name,
            "strategy_options": strategy.options(),
            "workers": self.comm.size,
            "device": self.comm.device.type,
            "seed": self.config.seed,
            "epochs": progress.epoch,
            "loss": progress.loss,
            "val_accuracy": _finite_or_none(outcome.val.score),
            "test_accuracy": _finite_or_none(outcome.test.score),
            "epoch_seconds": progress.epoch_seconds,
            "peak_bytes": dict(zip(("device", "host"), map(max, *self.comm.gather(peaks), (0, 0)), strict=True)),
            "ledger": ledger.as_dict(),
            "counters": dict(ledger.counters),
            "exact": progress.exact,
            "found": problem.facts,
            "seconds": dict(seconds),
            "graph": self.graph.name,
            "task": "nodes" if self.model.decoder is None else "links",
            "metric": trainer.evaluation.metric,
            "scores": {name: _finite(marks) for name, marks in (("val", outcome.val), ("test", outcome.test))},
            "best_epoch": progress.best_epoch,
            "stopped": outcome.stopped,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "train": asdict(self.config),
        }


def _feature_file(graph: Graph) -> Path | None:
    """The file of the features, where the graph is what its store holds."""
    if graph.store is None or graph.sparse or not is_as_stored(graph):
        return None
    return array_file(graph.store, "features")


@contextmanager
def interrupt() -> Iterator[threading.Event]:
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


def _finite(marks: Marks) -> dict[str, float | None]:
    return {name: _finite_or_none(value) for name, value in marks.figures.items()}


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
