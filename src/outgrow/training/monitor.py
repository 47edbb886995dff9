"""`Monitor`: the metric whose validation value chooses the best model and decides about patience."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.inference.link_ranks import LINK_METRICS
from outgrow.nn.tasks import NodeTask
from outgrow.training.metric_names import NODE_METRICS
from outgrow.training.metric_request import LOSS
from outgrow.training.metrics import NodeMetric

MIN, MAX = "min", "max"
MODES = {MIN: False, MAX: True}


class Monitor(NamedTuple):
    """A metric to choose models by.

    Attributes:
        name: Name of the metric, or ``"loss"`` for the validation loss.
        higher_is_better: Whether a higher value is better.
    """

    name: str
    higher_is_better: bool = True

    @property
    def mode(self) -> str:
        """The direction: ``"max"`` if a higher value is better, else ``"min"``."""
        return MAX if self.higher_is_better else MIN

    def is_better(self, value: float, than: float) -> bool:
        """Whether a value is better than another; false if one is NaN."""
        return value > than if self.higher_is_better else value < than

    @property
    def worst(self) -> float:
        """A value that any other is better than."""
        return -math.inf if self.higher_is_better else math.inf


def choose_node_monitor(
    name: str | None, mode: str | None, task: NodeTask, metrics: Sequence[NodeMetric] = ()
) -> Monitor:
    """Return what to monitor of a model of nodes.

    Args:
        name: What was asked for; None for the task's own metric.
        mode: The direction that was asked for; None for that of the metric.
        task: The task.
        metrics: Metrics beside its own.

    Raises:
        InputError: There is no such metric, or it does not say which direction is better.
    """
    known = {each.name: each.higher_is_better for each in metrics}
    return _choose_monitor(name or task.metric, mode, {**task.figure_directions, LOSS: False, **known})


def choose_link_monitor(name: str | None, mode: str | None) -> Monitor:
    """Return what to monitor of a model of links: one of `LINK_METRICS`, by default the first.

    Raises:
        InputError: There is no such metric.
    """
    return _choose_monitor(name or next(iter(LINK_METRICS)), mode, LINK_METRICS)


def _choose_monitor(name: str, mode: str | None, directions: Mapping[str, bool | None]) -> Monitor:
    if name in NODE_METRICS and name not in directions:
        raise InputError(
            f"the metric to monitor, {name}, is not computed",
            needed=f"one of {', '.join(directions)}",
            got=f"monitor={name}",
            repair=f"ask for it too: --metric {name}, or metrics={name!r}; or monitor another one",
        )
    direction = validate_choice("metric to monitor", name, directions)
    if mode is not None:
        direction = MODES[mode]
    if direction is None:
        raise InputError(
            f"it is not known whether a higher or a lower {name} is better",
            needed="monitor_mode=max or monitor_mode=min",
            got=f"monitor={name} without monitor_mode, and a metric that does not say",
            repair="give monitor_mode",
        )
    return Monitor(name, direction)
