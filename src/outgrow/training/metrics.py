"""Metrics of nodes beside the task's own, and their values over the rows of all workers.

torchmetrics is imported only once a metric is asked for, since that takes a second.
"""

from __future__ import annotations

import contextlib
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn.tasks import NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.runtime.distributed.comm import Comm

if TYPE_CHECKING:
    from torchmetrics import Metric

    from outgrow.training.metric_states import MetricState

PIECE_NUMBERS = 1 << 20
"""Number of logits from which rows are given to metrics, which is done once in the end where there are fewer."""


@dataclass(frozen=True, kw_only=True, eq=False)
class NodeMetric:
    """A metric that fits a task.

    Attributes:
        name: Its name.
        metric: The metric, without updates.
        higher_is_better: Whether a higher value is better; None if it does not say.
        takes_positives: Whether it takes the probability of the second of two classes alone.
        takes_pieces: Whether the states of pieces of the rows can be combined; else it gets all rows at once.
        is_named: Whether it is one of ours by name: what it may warn of is known before a run.
        target: Number of the target whose nodes it is computed of, where types have tasks of their own.
    """

    name: str
    metric: Metric
    higher_is_better: bool | None
    takes_positives: bool
    takes_pieces: bool
    is_named: bool = False
    target: int = 0

    def update(self, metric: Metric, preds: Tensor, target: Tensor) -> None:
        """Update a copy of the metric.

        Raises:
            InputError: The metric raised an exception.
        """
        with _failures_as_input_errors(self.name, preds, target):
            # Contiguous, so that a metric that keeps the column does not keep the matrix.
            metric.update(preds[:, 1].contiguous() if self.takes_positives else preds, target)

    def compute(self, metric: Metric) -> float:
        """Return the value of a copy of the metric; NaN if it was not updated.

        Raises:
            InputError: The metric raised an exception, or its value is not one number.
        """
        if not metric.update_called:
            return math.nan
        with _failures_as_input_errors(self.name):
            value: object = metric.compute()
        if isinstance(value, int | float):
            return float(value)
        if not isinstance(value, Tensor) or value.numel() != 1:
            shape = f"a tensor {[*value.shape]}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise InputError(
                f"the metric {self.name} is not one number",
                needed="one number, such as the average over classes",
                got=shape,
                repair="choose an average such as 'macro', or give a metric for each number",
            )
        return float(value)


@contextlib.contextmanager
def _failures_as_input_errors(name: str, *tensors: Tensor) -> Iterator[None]:
    try:
        yield
    # Whatever a metric raises, which may be the user's own class.
    except Exception as error:
        taken = ", ".join(f"{[*each.shape]} {str(each.dtype).removeprefix('torch.')}" for each in tensors)
        raise InputError(
            f"the metric {name} failed",
            needed=f"a metric that takes predictions and targets {taken}" if tensors else "a metric with a value",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            repair="choose a metric for this task, and make it for as many classes or numbers as the model has outputs",
        ) from error


@contextlib.contextmanager
def quiet_metrics() -> Iterator[list[str]]:
    """Context that collects the texts of warnings instead of showing them."""
    texts: list[str] = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        yield texts
    texts += dict.fromkeys(str(each.message) for each in caught)


class _LabelledRows(NamedTuple):
    """Logits of some nodes, with their labels: ``nodes [n]`` int64, ``logits [n, C]``, ``labels [n, ...]``."""

    nodes: Tensor
    logits: Tensor
    labels: Tensor


class _WorkerPart(NamedTuple):
    """What a worker contributes to metrics.

    Attributes:
        states: State of each metric that takes pieces, None for the others.
        rows: Its rows, or those alone that no state has.
        num_used: Number of the first entries of ``rows`` that states have.
    """

    states: list[MetricState | None]
    rows: list[_LabelledRows]
    num_used: int


@dataclass(kw_only=True, eq=False)
class MetricAccumulator:
    """Values of metrics over the rows of all workers. Final.

    Rows are kept until they are worth an update: metrics fail on single rows, and are slow on few. What is left in
    the end is added on rank 0, to the combined states of all workers.

    Attributes:
        comm: Communicator of the workers.
        task: The task.
        metrics: The metrics, equal on all workers.
        warnings: What metrics have warned of, on rank 0.
    """

    comm: Comm
    task: NodeTask
    metrics: Sequence[NodeMetric]
    warnings: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._copies = [each.metric.clone() if each.takes_pieces else None for each in self.metrics]
        self._rows: list[_LabelledRows] = []
        self._num_used = 0

    def update(self, nodes: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add rows of this worker.

        Args:
            nodes: ``[n]`` int64, their ids.
            logits: ``[n, C]``.
            labels: ``[n]``, or ``[n, ...]``.

        Raises:
            InputError: A metric raised an exception.
        """
        if not len(nodes) or not self.metrics:
            return
        self._rows.append(_LabelledRows(nodes, logits, labels))
        waiting = self._rows[self._num_used :]
        is_worth_it = sum(each.logits.numel() for each in waiting) >= PIECE_NUMBERS
        if is_worth_it and sum(len(each.nodes) for each in waiting) > 1:
            self._update_copies(waiting)
            self._num_used = len(self._rows)
            if None not in self._copies:
                self._rows.clear()
                self._num_used = 0

    def _update_copies(self, rows: Sequence[_LabelledRows]) -> None:
        preds, target = self._join_rows(rows)
        for each, copied in zip(self.metrics, self._copies, strict=True):
            if copied is not None and len(preds):
                with self._note_warnings(each):
                    each.update(copied, preds, target)

    def compute(self) -> dict[str, float]:
        """Return the value of each metric by name; NaN if there were no rows. Collective.

        Raises:
            InputError: A metric raised an exception, or its value is not one number; on all workers.
        """
        if not self.metrics:
            return {}
        from outgrow.training.metric_states import gather_to_rank_zero, read_state

        states = [None if copied is None else read_state(copied) for copied in self._copies]
        parts = gather_to_rank_zero(self.comm, _WorkerPart(states, self._rows, self._num_used))
        found: dict[str, float] | InputError = {}
        if self.comm.is_rank_zero:
            try:
                found = self._combine_parts(parts)
            except InputError as error:
                found = error
        # Computed once: workers that disagree in the last digit could keep different models as the best.
        found = self.comm.broadcast(found)
        if isinstance(found, InputError):
            raise found
        return found

    def _combine_parts(self, parts: Sequence[_WorkerPart]) -> dict[str, float]:
        from outgrow.training.metric_states import combine_states

        whole = [each for part in parts for each in part.rows]
        rest = [each for part in parts for each in part.rows[part.num_used :]]
        found = {}
        for index, each in enumerate(self.metrics):
            states = [state for part in parts if (state := part.states[index]) is not None]
            combined = combine_states(each.metric, states)
            rows = rest if each.takes_pieces else whole
            preds, target = self._join_rows(rows) if rows else (None, None)
            with self._note_warnings(each):
                if preds is not None and target is not None and len(preds):
                    each.update(combined, preds, target)
                found[each.name] = each.compute(combined)
        return found

    @contextlib.contextmanager
    def _note_warnings(self, metric: NodeMetric) -> Iterator[None]:
        with quiet_metrics() as texts:
            yield
        if not metric.is_named:
            self.warnings += [f"{metric.name}: {text}" for text in texts]

    def _join_rows(self, rows: Sequence[_LabelledRows]) -> tuple[Tensor, Tensor]:
        """Return predictions and targets of rows in the order of their nodes, as one worker would have them."""
        nodes, logits, labels = (torch.cat(parts) for parts in zip(*rows, strict=True))
        order = nodes.argsort()
        return self.task.metric_input(logits[order], labels[order])


class TaskMetrics:
    """Metrics of a task, over the rows of all workers: of each type's rows where types have tasks of their own. Final.

    Args:
        comm: Communicator of the workers.
        task: The task.
        metrics: The metrics, equal on all workers.
    """

    def __init__(self, comm: Comm, task: NodeTask, metrics: Sequence[NodeMetric]) -> None:
        self.comm = comm
        self.task = task
        tasks = [each.task for each in task.targets] if isinstance(task, TypeTasks) else [task]
        self._accumulators = [
            MetricAccumulator(comm=comm, task=own, metrics=[each for each in metrics if each.target == number])
            for number, own in enumerate(tasks)
        ]

    @property
    def warnings(self) -> list[str]:
        """What metrics have warned of, on rank 0."""
        return [text for each in self._accumulators for text in each.warnings]

    def update(self, nodes: Tensor, logits: Tensor, labels: Tensor) -> None:
        """Add rows of this worker: see `MetricAccumulator.update`."""
        task = self.task
        if not isinstance(task, TypeTasks):
            self._accumulators[0].update(nodes, logits, labels)
            return
        for number, (each, own) in enumerate(zip(self._accumulators, task.split_logits(logits), strict=True)):
            mine = task.rows_of_type(number, labels)
            each.update(nodes[mine], own[mine], task.labels_of_type(number, labels[mine]))

    def compute(self) -> dict[str, float]:
        """Return the value of each metric by name: see `MetricAccumulator.compute`. Collective."""
        return {name: value for each in self._accumulators for name, value in each.compute().items()}
