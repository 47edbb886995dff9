"""Training loops of the user's own: `prepare` gives the steps, `launch` starts the workers."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor

from outgrow.app.own_loop_options import refuse_loop_options
from outgrow.app.runs.session import Session
from outgrow.app.runs.torchrun import open_same_graph
from outgrow.app.runs.workers import Workers, resolve_workers
from outgrow.app.training_request import make_training_request
from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.alignment import describe_schema
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.runtime.system.environment import torchrun_world_size
from outgrow.strategies.base import Step, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.prepared_training import PreparedTraining
from outgrow.training.progress_events import ProgressReporter
from outgrow.training.trained_embeddings import TrainedEmbeddings

if TYPE_CHECKING:
    from outgrow.runtime.distributed.worker import WorkerContext

Result = TypeVar("Result")
_launched: WorkerContext | None = None
"""What `launch` gave to this worker process."""


class Training:
    """A model that is ready to be trained by a loop of the user's own, as a context. Made by `prepare`. Final.

    In a group of workers all of them enter it, take the same steps and ask for the same evaluations.
    """

    def __init__(self, session: Session, heartbeat_seconds: float) -> None:
        self._session = session
        self._heartbeat_seconds = heartbeat_seconds
        self._stack = ExitStack()
        self._prepared: PreparedTraining | None = None
        self._in_epoch = self._owes_update = False
        self._embeddings: TrainedEmbeddings | None = None

    @property
    def model(self) -> Model:
        """The model; in the context its parameters are on the device that the strategy computes on."""
        return self._session.model

    @property
    def strategy(self) -> Strategy:
        """The strategy."""
        return self._session.strategy

    @property
    def config(self) -> TrainConfig:
        """Options of batches, evaluation, precision and the task."""
        return self._session.config

    @property
    def num_workers(self) -> int:
        """Number of workers; 1 before the context is entered."""
        return self._session.comm.size

    @property
    def rank(self) -> int:
        """Number of this worker, from 0; worker 0 is the one to print and to write files."""
        return self._session.comm.rank

    @property
    def device(self) -> torch.device:
        """The device that this worker computes on."""
        return self._session.comm.device

    def __enter__(self) -> Training:
        if self._prepared is not None:
            raise _closed_error("is open already", "leave the context first, or call og.prepare again")
        with ExitStack() as stack:
            comm = stack.enter_context(_open_comm(self._heartbeat_seconds))
            if comm.size > 1:
                self._session = replace(self._session, graph=open_same_graph(self._session.graph, comm))
            # Worker 0 chose for all: the measurements of other hosts could lead to another strategy.
            session = self._session = replace(self._session, comm=comm, strategy=comm.broadcast(self._session.strategy))
            session.prepare_worker()
            problem, evaluation = stack.enter_context(session.open_problem(ProgressReporter(())))
            prepared = PreparedTraining(
                problem, evaluation, session.strategy, session.config.evaluation, ProgressReporter(())
            )
            stack.enter_context(closing(prepared))
            # Refuses vectors in files: a loop of the user's own has no checkpoints that would keep them.
            self._embeddings = TrainedEmbeddings(problem, prepared.embeddings, None)
            self._prepared = prepared
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        self._prepared = None
        if self._embeddings is not None and error is None:
            self._embeddings.give_to_model()
        return self._stack.__exit__(kind, error, trace)

    def steps(self, epoch: int) -> Generator[Step]:
        """Yield the steps of an epoch: ``step.loss``, and ``step.num_seeds``, both over all workers.

        At each step the parameters' ``grad`` holds, on every worker, the gradient of the loss over all workers. Steps
        whose gradients are not zeroed add up, as in torch. Steps are those of `og.train`, so SGD, say, gives the same
        model in either. Whole-graph strategies have one step for each epoch.

        Args:
            epoch: Number of the epoch, from 0; all random draws depend on it.

        Raises:
            InputError: The number is negative, or the context is not open.
        """
        prepared = self._require_open()
        if epoch < 0:
            raise InputError(
                "there is no such epoch", needed="a number from 0", got=repr(epoch), repair="count epochs from 0"
            )
        self._in_epoch = True
        try:
            with closing(prepared.steps(epoch + 1)) as steps:
                while True:
                    self._require_updated()
                    earlier = self._take_gradients()
                    step = next(steps, None)
                    if step is None:
                        self._add_gradients(earlier)
                        return
                    self._add_gradients(earlier)
                    self._owes_update = bool(prepared.embeddings)
                    yield step
        finally:
            self._in_epoch = False

    def update_embeddings(self, *, lr: float | None = None) -> None:
        """Update the vectors of a `NodeEmbedding`, which no optimizer of parameters has; in each step, by all workers.

        Args:
            lr: Learning rate; None for ``embedding_lr`` of the options, or ``lr``.

        Raises:
            InputError: The context is not open.
        """
        embeddings = self._require_open().embeddings
        embeddings.update(lr=embeddings.optimizer.lr if lr is None else lr)
        self._owes_update = False

    def evaluate(self, part: str = "val") -> dict[str, float]:
        """Return the metrics of the current model by name, over all workers; with the ``loss`` on ``"val"``.

        How nodes are evaluated is an option of training: see ``eval`` of `TrainConfig`.

        Args:
            part: ``"val"`` or ``"test"``.

        Raises:
            InputError: There is no such part or nothing in it, the context is not open, or an epoch is not over.
        """
        validate_choice("part", part, dict.fromkeys(("val", "test")))
        prepared = self._require_open()
        if self._in_epoch:
            raise InputError(
                "a model cannot be evaluated in the middle of an epoch",
                needed="all steps of the epoch, or a loop that has been left",
                got="an epoch with steps to come",
                repair="evaluate after the loop over training.steps(epoch)",
            )
        if part == "val" and not prepared.evaluator.validates:
            raise InputError(
                "there is nothing to validate on",
                needed="a validation split, and an evaluation other than none",
                got=f"eval {self.config.evaluation.val}, {len(self._session.graph.split.val)} validation nodes",
                repair="give the graph a validation split",
            )
        metrics = prepared.evaluate(part)
        return {**metrics.figures, **({} if math.isnan(metrics.loss) else {"loss": metrics.loss})}

    def _require_open(self) -> PreparedTraining:
        if self._prepared is None:
            raise _closed_error("is not open", "write `with og.prepare(...) as training:` around the loop")
        return self._prepared

    def _require_updated(self) -> None:
        if self._owes_update:
            raise InputError(
                "the vectors of a NodeEmbedding were not updated in the last step",
                needed="training.update_embeddings() in each step: no optimizer of parameters has them",
                got="a step without it",
                repair="call it beside optimizer.step()",
            )

    def _take_gradients(self) -> list[Tensor | None]:
        """Set gradients of earlier steps aside: a step sums what it finds over all workers."""
        parameters = list(self.model.parameters())
        earlier = [each.grad for each in parameters]
        for each in parameters:
            each.grad = None
        return earlier

    def _add_gradients(self, earlier: list[Tensor | None]) -> None:
        for each, before in zip(self.model.parameters(), earlier, strict=True):
            if before is not None:
                each.grad = before if each.grad is None else before.add_(each.grad)


@check_arguments(unchecked=("graph", "model"))
def prepare(
    graph: Graph,
    model: Model,
    *,
    strategy: str | Strategy = "auto",
    config: TrainConfig | None = None,
    **options: object,
) -> Training:
    """Prepare a model for a training loop of your own.

    The workers are this process alone, the processes of torchrun, or those of `og.launch`::

        with og.prepare(graph, model, batch_size=1024, fanout=(10, 10)) as training:
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            for epoch in range(10):
                for step in training.steps(epoch):
                    optimizer.step()
                    optimizer.zero_grad()
                print(training.evaluate("val"))

    Args:
        graph: Graph with features, labels and a training split; for a link model, with features and edges.
        model: Model that labels nodes or, with a decoder, predicts links.
        strategy: ``"auto"``, a name, or a strategy with its options such as ``og.Full()``.
        config: Options of training; None for the defaults of `TrainConfig`. Those of epochs, optimizer, schedule and
            checkpoints are not used.
        **options: ``device``, ``task`` and ``metrics``, as `og.train` takes them, and fields of `TrainConfig`, which
            override ``config``.

    Raises:
        InputError: The graph, the model or an option cannot be used.
    """
    refuse_loop_options(config or TrainConfig(), options)
    device = options.pop("device", "auto")
    workers = resolve_workers(None, device)
    if _launched is not None:
        workers = replace(workers, number=_launched.comm.size)
    leads = None if _launched is None else _launched.comm.is_rank_zero
    request = make_training_request(graph, model, strategy, workers, config, options, leads=leads)
    model.schema, model.temporal_strategy = describe_schema(request.targeted), request.config.temporal_strategy
    session = Session(
        graph=request.graph,
        model=model,
        config=request.config,
        strategy=request.choice.strategy,
        device=workers.device,
        task=request.task,
        metrics=request.metrics,
    )
    return Training(session, workers.heartbeat_seconds)


def launch(function: Callable[..., Result], *arguments: Any, workers: int | Workers, **named: Any) -> Result:
    """Run a function in several worker processes of this host, and return its result on worker 0.

    `prepare` in it joins the workers. The function may be one of a script or a notebook, without a main guard. What
    worker 0 prints goes to standard error; what the others print is shown if they fail. Under torchrun its processes
    are the workers, and each calls the function itself.

    Args:
        function: The function.
        *arguments: What it is called with; pickled, as the function is.
        workers: Number of workers, or ``og.Workers(...)``; 1 for this process.
        **named: What it is called with by name.

    Raises:
        InputError: The function or an argument cannot be pickled, or torchrun has started another number of workers.
        WorkerError: A worker has died.
        OutgrowError: Raised by a worker.
    """
    require_not_launched("og.launch")
    chosen = resolve_workers(workers)
    if chosen.number == 1 or torchrun_world_size():
        return function(*arguments, **named)
    from outgrow.runtime.distributed.launch import run_workers

    task = _LaunchedFunction(function, arguments, named)
    result: Result = run_workers(
        task, chosen.number, heartbeat_seconds=chosen.heartbeat_seconds, restarts=chosen.max_restarts
    )[0]
    return result


def require_not_launched(name: str) -> None:
    """Check that this is no worker of `launch`.

    Raises:
        InputError: It is.
    """
    if _launched is not None:
        raise InputError(
            f"{name} starts workers of its own",
            needed="a process that og.launch has not started",
            got=f"worker {_launched.comm.rank} of og.launch",
            repair="call og.prepare in the function that og.launch runs",
        )


@dataclass(frozen=True)
class _LaunchedFunction:
    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self, context: WorkerContext) -> Any:
        # The function was pickled by value, this module by name: what is set here is what `prepare` reads.
        global _launched
        _launched = context
        result = self.function(*self.arguments, **self.named)
        return result if context.comm.is_rank_zero else None


@contextmanager
def _open_comm(heartbeat_seconds: float) -> Iterator[Comm]:
    if _launched is not None:
        yield _launched.comm
    elif torchrun_world_size():
        from outgrow.runtime.distributed.worker import join_torchrun_group

        with join_torchrun_group(heartbeat_seconds=heartbeat_seconds) as context:
            yield context.comm
    else:
        from outgrow.runtime.system.sigbus import explain_bus_errors

        with explain_bus_errors():
            yield SingleProcessComm()


def _closed_error(got: str, repair: str) -> InputError:
    return InputError("this training cannot be used now", needed="an open context", got=f"it {got}", repair=repair)
