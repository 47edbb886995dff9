"""Metrics that are asked for: their names, and those given as objects of torchmetrics."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value
from outgrow.nn.node_task import LOSS as LOSS
from outgrow.training.metric_names import NODE_METRICS

if TYPE_CHECKING:
    from torchmetrics import Metric


class MetricRequest(NamedTuple):
    """Metrics that are asked for.

    Attributes:
        names: Their names, in order.
        objects: Metrics given as objects, by name; the others are those of `NODE_METRICS`.
    """

    names: tuple[str, ...] = ()
    objects: Mapping[str, Metric] = {}


def parse_metrics(given: object) -> MetricRequest:
    """Return the metrics of ``"auroc,f1-macro"``, of a sequence of such names, or of objects by name.

    Raises:
        InputError: It is none of these, or a name is empty or given twice.
    """
    if given is None:
        return MetricRequest()
    if _is_collection(given):
        given = dict(given.items())  # type: ignore[attr-defined]
    objects: dict[str, Metric] = {}
    if isinstance(given, Mapping):
        objects = {name: _require_metric(name, metric) for name, metric in given.items()}
        names: Sequence[object] = list(given)
    elif isinstance(given, str):
        names = [name.strip() for name in given.split(",")] if given.strip() else []
    elif isinstance(given, Sequence):
        names = list(given)
    else:
        raise _unreadable_error(given)
    for name in names:
        if not isinstance(name, str) or not name or name == LOSS or names.count(name) > 1:
            raise _unreadable_error(name)
    return MetricRequest(tuple(map(str, names)), objects)


def _is_collection(given: object) -> bool:
    torchmetrics = sys.modules.get("torchmetrics")
    return torchmetrics is not None and isinstance(given, torchmetrics.MetricCollection)


def _require_metric(name: object, metric: object) -> Metric:
    torchmetrics = sys.modules.get("torchmetrics")
    if torchmetrics is None or not isinstance(metric, torchmetrics.Metric):
        raise InputError(
            f"the metric {name} is no metric of torchmetrics",
            needed="an object such as torchmetrics.F1Score(task='multiclass', num_classes=7, average='macro')",
            got=describe_value(metric),
            repair="make an object of the class, or give names: metrics='auroc,f1-macro'",
        )
    return metric  # type: ignore[no-any-return]


def _unreadable_error(given: object) -> InputError:
    return InputError(
        "the metrics cannot be read",
        needed=f"different names, none of them {LOSS!r}, as 'auroc,f1-macro' or a list; or a dictionary of objects "
        "of torchmetrics by name",
        got=describe_value(given),
        repair=f"correct the metrics; names are {', '.join(NODE_METRICS)}",
    )
