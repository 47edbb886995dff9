"""Whether metrics fit a task: each is tried on a few made-up rows.

torchmetrics is imported only once a metric is asked for, since that takes a second.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.nn.tasks import NodeTask
from outgrow.nn.type_tasks import TypeTasks
from outgrow.training.metric_names import MULTICLASS, MULTILABEL, NODE_METRICS, make_named_metric
from outgrow.training.metric_request import MetricRequest
from outgrow.training.metrics import NodeMetric, quiet_metrics

if TYPE_CHECKING:
    from torchmetrics import Metric

_MOST_ROWS = 256
_VALUES = 17
_LARGEST_DIFFERENCE = 1e-9


def make_node_metrics(
    request: MetricRequest, task: NodeTask, labels: Tensor, num_outputs: int, num_rows: int = _MOST_ROWS
) -> list[NodeMetric]:
    """Return the metrics of a request but those that the task itself counts, each tried on made-up rows.

    Args:
        request: The metrics.
        task: The task.
        labels: Labels of some nodes, for their shape and type alone.
        num_outputs: Number of outputs of the model.
        num_rows: Number of made-up rows, of which there are a few hundred at most.

    Raises:
        InputError: There is no metric of a name, or one does not fit the task.
    """
    made = []
    for name in request.names:
        if name == task.metric and name not in request.objects:
            continue
        if name == task.metric:
            raise InputError(
                f"the name {name} is taken",
                needed="a name other than that of the task's own metric",
                got=f"an object named {name}",
                repair="give it another name",
            )
        given = request.objects.get(name)
        with quiet_metrics():  # of the memory that some take
            metric = given if given is not None else make_named_metric(name, task.target_kind, num_outputs)
        better = metric.higher_is_better if given is not None else NODE_METRICS[name].higher_is_better
        fitted = _fit_metric(name, metric, better, task, _made_up_rows(task, labels, num_outputs, num_rows))
        made.append(replace(fitted, is_named=given is None))
    return made


def make_task_metrics(request: MetricRequest, task: NodeTask, labels: Tensor, num_outputs: int) -> list[NodeMetric]:
    """Return `make_node_metrics`; where types have tasks of their own, of each type that a metric fits.

    Those of a type have its name before theirs: ``paper/auroc``.

    Args:
        request: The metrics.
        task: The task.
        labels: Labels of some nodes, as the task reads them, for their shape and type alone.
        num_outputs: Number of outputs of the model.

    Raises:
        InputError: There is no metric of a name, or one does not fit the task or, of several, any.
    """
    if not isinstance(task, TypeTasks):
        return make_node_metrics(request, task, labels, num_outputs)
    made: list[NodeMetric] = []
    for name in request.names:
        one, errors = request._replace(names=(name,)), list[InputError]()
        for number, each in enumerate(task.targets):
            try:
                found = make_node_metrics(one, each.task, task.labels_of_type(number, labels[:0]), each.num_outputs)
            except InputError as error:
                errors.append(error)
                continue
            made += [replace(metric, name=each.qualify(metric.name), target=number) for metric in found]
        if len(errors) == len(task.targets):
            raise errors[0]
    return made


def _made_up_rows(task: NodeTask, labels: Tensor, num_outputs: int, num_rows: int) -> tuple[Tensor, Tensor]:
    """Return ``[n, C]`` logits and labels like those of nodes, the same on every worker."""
    rows = min(num_rows, _MOST_ROWS)
    logits = (torch.arange(rows * num_outputs, dtype=torch.float64) * 1.7).sin().view(rows, num_outputs)
    shape = (rows, *labels.shape[1:])
    count = torch.arange(math.prod(shape)).view(shape)
    if labels.is_floating_point():
        made_up = (count * 2.3).cos()
    else:
        # Not in step with the logits, so that each class is predicted of nodes of several.
        values = num_outputs if task.target_kind == MULTICLASS else 2 if task.target_kind == MULTILABEL else _VALUES
        made_up = count * 7 // 3 % values
    return logits, made_up.to(labels.dtype)


def _fit_metric(
    name: str, metric: Metric, higher_is_better: bool | None, task: NodeTask, rows: tuple[Tensor, Tensor]
) -> NodeMetric:
    """Return a metric with what it takes.

    Raises:
        InputError: It does not take predictions and targets of the task, or draws random numbers.
    """
    from outgrow.training.metric_states import combine_states, has_combinable_states, prepare_metric, read_state

    prepared = prepare_metric(metric)
    preds, target = task.metric_input(*rows)
    two_classes = task.target_kind == MULTICLASS and preds.shape[1] == 2
    error: InputError | None = None
    for takes_positives in (_is_binary(metric), not _is_binary(metric)) if two_classes else (False,):
        fitted = NodeMetric(
            name=name,
            metric=prepared,
            higher_is_better=higher_is_better,
            takes_positives=takes_positives,
            takes_pieces=False,
        )

        def update_copy(first: int, last: int, fitted: NodeMetric = fitted) -> Metric:
            copied = prepared.clone()
            if last > first:
                fitted.update(copied, preds[first:last], target[first:last])
            return copied

        try:
            with quiet_metrics(), _no_random_draws(name):
                whole = fitted.compute(update_copy(0, len(preds)))
                if not has_combinable_states(prepared):
                    return fitted
                # Pieces of unequal size, or a mean of their means would be right.
                cut = len(preds) // 5
                states = [read_state(update_copy(0, cut)), read_state(update_copy(cut, len(preds)))]
                pieces = fitted.compute(combine_states(prepared, states))
        except InputError as found:
            error = error or found
            continue
        return NodeMetric(
            name=name,
            metric=prepared,
            higher_is_better=higher_is_better,
            takes_positives=takes_positives,
            takes_pieces=_is_same(whole, pieces),
        )
    assert error is not None
    raise error


def _is_same(value: float, other: float) -> bool:
    """Whether two values differ in their last digits at most; not a number is itself."""
    return math.isclose(value, other, rel_tol=_LARGEST_DIFFERENCE, abs_tol=_LARGEST_DIFFERENCE) or (
        math.isnan(value) and math.isnan(other)
    )


def _is_binary(metric: Metric) -> bool:
    return any(each.__module__.startswith("torchmetrics.") and "Binary" in each.__name__ for each in type(metric).mro())


@contextlib.contextmanager
def _no_random_draws(name: str) -> Iterator[None]:
    import numpy as np

    torch_before, numpy_before = torch.get_rng_state(), np.random.get_state()
    yield
    if not torch.equal(torch_before, torch.get_rng_state()) or str(numpy_before) != str(np.random.get_state()):
        torch.set_rng_state(torch_before)
        np.random.set_state(numpy_before)
        raise InputError(
            f"the metric {name} draws random numbers",
            needed="a metric whose value depends on predictions and targets alone, so that runs can be repeated",
            got=name,
            repair="leave it out, and compute it from og.predict",
        )
