"""One training session: from a graph and a model to a run, with its files."""

from __future__ import annotations

import inspect
import math
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from types import FrameType
from typing import Any, get_type_hints

import torch

from outgrow.app.board import Board
from outgrow.app.run import Run
from outgrow.app.rundir import RunDirectory
from outgrow.core.errors import InputError
from outgrow.core.ledger import merged
from outgrow.core.nearest import pick
from outgrow.core.option_types import require_types
from outgrow.engine.share import Share, Whole
from outgrow.graph.graph import Graph
from outgrow.graph.validate import require_trainable
from outgrow.nn.heads import MultiLabel, SingleLabel
from outgrow.nn.model import Model
from outgrow.runtime.comm import Alone, Comm
from outgrow.runtime.memory import PeakMemory
from outgrow.strategies.base import Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import Evaluation, Listener, Outcome, Trainer

STRATEGIES: dict[str, type[Strategy]] = {"full": Full}


def strategy_of(choice: str | Strategy, options: Mapping[str, object] | None = None) -> tuple[Strategy, str]:
    """The strategy that is meant, and one sentence on why.

    Args:
        choice: ``"auto"``, a name, or a strategy.
        options: Options of a strategy that is named.

    Raises:
        InputError: No such strategy, or an option that it does not take.
    """
    if isinstance(choice, Strategy):
        return choice, f"strategy {choice.name}, as given"
    if not isinstance(choice, str):
        raise InputError(
            "this is no strategy",
            needed="a name, or a strategy with its options such as og.Full()",
            got=repr(choice),
            repair='give strategy="auto"',
        )
    kind = strategy_kind(choice)
    reason = "as given" if choice != "auto" else "every worker holds its share of the graph in memory"
    return made(kind, options or {}), f"strategy {kind.name}: {reason}"


def strategy_kind(name: str) -> type[Strategy]:
    """The strategy of a name, ``"auto"`` included.

    Raises:
        InputError: No such strategy.
    """
    known: dict[str, type[Strategy]] = {"auto": Full, **STRATEGIES}
    return pick("strategy", name, known)


def strategy_options(kind: type[Strategy]) -> Mapping[str, object]:
    """The options that a strategy takes, by name."""
    return {name: each for name, each in inspect.signature(kind).parameters.items() if each.kind == each.KEYWORD_ONLY}


def made(kind: type[Strategy], options: Mapping[str, object]) -> Strategy:
    """A strategy with these options.

    Raises:
        InputError: An option that it does not have, or of another type.
    """
    for name in options:
        pick(f"option of {kind.name}", name, strategy_options(kind))
    require_types(options, get_type_hints(kind.__init__))
    return kind(**options)


def require_problem(graph: Graph, model: Model) -> None:
    """Check that a model can be trained on a graph.

    Raises:
        InputError: The graph cannot be trained on, or the model does not fit it.
    """
    require_kinds(graph, model)
    require_trainable(graph)
    require_fit(graph, model)
    _require_classes(graph, model)


def problem_of(graph: Graph, model: Model, seed: int, share: Share | None = None) -> Problem:
    """What is to be trained.

    Args:
        graph: What to train on.
        model: What to train.
        seed: Seed of every random draw.
        share: What the worker holds of the graph; None for all of it.

    Raises:
        InputError: See `require_problem`.
    """
    require_problem(graph, model)
    assert graph.features is not None
    assert graph.labels is not None
    return Problem.of(
        share or Whole(graph.topology),
        features=graph.features,
        labels=graph.labels,
        train=graph.split.train,
        task=MultiLabel() if graph.multi_label else SingleLabel(),
        model=model,
        seed=seed,
    )


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
        comm: The line to the other workers.
        stop: Asked after every epoch whether to stop; None for whether Ctrl-C was pressed.
    """

    graph: Graph
    model: Model
    config: TrainConfig
    strategy: Strategy
    directory: RunDirectory | None = None
    listeners: tuple[Listener, ...] = ()
    comm: Comm = field(default_factory=Alone)
    stop: Callable[[], bool] | None = None

    def run(self, *, resume: bool) -> Run:
        """Train, from the last checkpoint on if ``resume``, and write the run's files."""
        graph, comm, directory = self.graph, self.comm, self.directory
        with PeakMemory() as memory, interrupt() as interrupted, ExitStack() as stack:
            comm.broadcast_parameters(self.model)
            looped = self.model.stages()[0].widths.self_loops
            share = self.strategy.share(graph, comm, self_loops=looped)
            problem = problem_of(graph, self.model, self.config.seed, share)
            trainer = Trainer(
                problem,
                Evaluation.of(share, graph.split.val, graph.split.test),
                self.config,
                folder=None if directory is None else directory.checkpoints,
                interrupted=self.stop or interrupted.is_set,
            )
            if resume:
                trainer.resume(comm.broadcast(None if directory is None else directory.newest_checkpoint()))
            if comm.leads:
                self._tell(trainer, stack)
            outcome = trainer.run(self.strategy)
        summary = self._summary(problem, trainer, outcome, memory.peak_bytes)
        if directory is not None and comm.leads:
            directory.write("ledger.json", {"ledger": summary["ledger"], "counters": summary["counters"]})
            directory.write("summary.json", summary)
        path = None if directory is None else directory.path
        return Run(model=self.model, logits=outcome.logits, summary=summary, directory=path)

    def _tell(self, trainer: Trainer, stack: ExitStack) -> None:
        """Let files and listeners know of every epoch."""
        if self.directory is not None:
            self.directory.forget_after(trainer.progress.epoch)
            board = Board(self.directory.path / "tensorboard", trainer.progress.epoch)
            stack.callback(board.close)
            trainer.listen(self.directory, board)
        trainer.listen(*self.listeners)

    def _summary(self, problem: Problem, trainer: Trainer, outcome: Outcome, peak_bytes: int) -> dict[str, Any]:
        progress, strategy = outcome.progress, self.strategy
        ledger = merged(self.comm.gather(trainer.ledger))
        return {
            "strategy": strategy.name,
            "strategy_options": strategy.options(),
            "workers": self.comm.size,
            "device": "cpu",
            "seed": self.config.seed,
            "epochs": progress.epoch,
            "loss": progress.loss,
            "val_accuracy": _finite_or_none(outcome.val_score),
            "test_accuracy": _finite_or_none(outcome.test_score),
            "epoch_seconds": progress.epoch_seconds,
            "peak_bytes": {"device": max(self.comm.gather(peak_bytes)), "host": 0},
            "ledger": ledger.as_dict(),
            "counters": dict(ledger.counters),
            "exact": strategy.exact and all(layer.conv.exact for layer in self.model.stages()),
            "graph": self.graph.name,
            "metric": problem.task.metric,
            "best_epoch": progress.best_epoch,
            "stopped": outcome.stopped,
            "parameters": sum(p.numel() for p in self.model.parameters()),
            "train": asdict(self.config),
        }


def require_kinds(graph: Graph, model: Model) -> None:
    """Check that these are a graph and a model.

    Raises:
        InputError: One of them is something else.
    """
    for name, given, kind, repair in (
        ("graph", graph, Graph, "load it first: graph = og.load(...)"),
        ("model", model, Model, "make one of og.nn, such as og.nn.GCN(graph.num_features, 64, graph.num_classes)"),
    ):
        if not isinstance(given, kind):
            raise InputError(
                f"the {name} is of another kind",
                needed=f"{name}: {kind.__name__} of outgrow",
                got=f"{type(given).__module__}.{type(given).__qualname__}",
                repair=repair,
            )


def require_fit(graph: Graph, model: Model) -> None:
    """Check that a model takes the features of a graph.

    Raises:
        InputError: It does not.
    """
    first = model.stages()[0]
    _require_computable(model)
    if graph.sparse and not first.takes_sparse:
        raise InputError(
            f"the first layer of the model cannot take the sparse features of {graph.name!r}",
            needed="a first layer that projects before it aggregates, and has no residual",
            got=type(first.conv).__name__,
            repair="give the model sparse_input=True, or its first convolution project_first=True",
        )
    if first.widths.in_features != graph.num_features:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{graph.num_features} inputs, one for each feature",
            got=f"{first.widths.in_features} inputs",
            repair="build the model with graph.num_features",
        )
    _require_relations(graph, model)


def _require_computable(model: Model) -> None:
    dtype = next(model.parameters()).dtype
    if dtype not in (torch.float32, torch.float64):
        raise InputError(
            "a model of this type cannot be computed",
            needed="parameters in float32 or float64; features may be in half precision",
            got=str(dtype).removeprefix("torch."),
            repair="give model.float()",
        )


def _require_relations(graph: Graph, model: Model) -> None:
    for conv in (layer.conv for layer in model.stages()):
        if conv.num_relations and (graph.topology.relation is None or graph.num_relations > conv.num_relations):
            raise InputError(
                f"{type(conv).__name__} does not fit the edges of {graph.name!r}",
                needed=f"edges of at most {conv.num_relations} relations, at least 1",
                got=f"{graph.num_relations} relations",
                repair="build the model with graph.num_relations, for a graph whose edges have relations: "
                "`outgrow info` tells, `outgrow convert` keeps a relation column",
            )


def _require_classes(graph: Graph, model: Model) -> None:
    last = model.stages()[-1]
    if last.widths.out_features != graph.num_classes:
        raise InputError(
            f"the model does not fit the graph {graph.name!r}",
            needed=f"{graph.num_classes} outputs, one for each class",
            got=f"{last.widths.out_features} outputs",
            repair="build the model with graph.num_classes",
        )


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


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None
