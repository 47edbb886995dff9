"""States of metrics of torchmetrics: which can be combined exactly, and their combination over workers.

This module imports torchmetrics, which takes a second: it is itself imported only where a metric is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torchmetrics import Metric
from torchmetrics.utilities.data import dim_zero_cat, dim_zero_max, dim_zero_min, dim_zero_sum

from outgrow.core.ledger import Kind
from outgrow.runtime.distributed.async_exchange import SplitSizes
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.distributed.serialization import deserialize, to_byte_tensor

_REDUCTIONS = (dim_zero_sum, dim_zero_max, dim_zero_min, dim_zero_cat)
"""Reductions whose result does not depend on how rows are split: a mean of means does."""


class MetricState(NamedTuple):
    """State of a metric on one worker.

    Attributes:
        num_updates: Number of updates so far; a worker without any has no state to combine.
        values: Value of each state by name: a tensor, or a list of tensors.
    """

    num_updates: int
    values: Mapping[str, Any]


def prepare_metric(metric: Metric) -> Metric:
    """Return a copy on the CPU, without updates, that sums in float64 and never communicates by itself."""
    copied = metric.clone().to("cpu")
    for each in copied.modules():
        if isinstance(each, Metric):
            # Otherwise `compute` would gather over torch's process group, in which not all workers call it.
            each.distributed_available_fn = _is_never_available
            each.dist_sync_on_step = False
            _widen_states(each)
    copied.reset()
    return copied


def _is_never_available() -> bool:
    return False


def _widen_states(metric: Metric) -> None:
    """Hold floating states in float64, so that sums hardly depend on how rows are split."""
    for name, default in metric._defaults.items():
        if isinstance(default, Tensor) and default.is_floating_point():
            metric._defaults[name] = default.double()
            setattr(metric, name, getattr(metric, name).double())


def has_combinable_states(metric: Metric) -> bool:
    """Whether every state of a metric is reduced in a way that does not depend on how rows are split."""
    # A wrapper has its states in other metrics.
    wraps = any(isinstance(each, Metric) for each in metric.modules() if each is not metric)
    return bool(metric._reductions) and not wraps and all(each in _REDUCTIONS for each in metric._reductions.values())


def read_state(metric: Metric) -> MetricState:
    """Return the state of a metric, with the pieces of a list joined."""
    values: dict[str, Any] = {}
    for name in metric._defaults:
        value = getattr(metric, name)
        is_joined = isinstance(value, list) and len(value) > 1 and metric._reductions[name] is dim_zero_cat
        values[name] = [dim_zero_cat(value)] if is_joined else value
    return MetricState(metric._update_count, values)


def combine_states(metric: Metric, states: Sequence[MetricState]) -> Metric:
    """Return a copy of a metric that has the rows of several states, of which some may have none.

    Args:
        metric: A metric without updates, for which `has_combinable_states`.
        states: States of the workers, by rank.
    """
    combined = metric.clone()
    # A state before the first update may be no neutral element of its reduction.
    given = [each for each in states if each.num_updates]
    for name, reduction in metric._reductions.items() if given else ():
        values = [state.values[name] for state in given]
        if isinstance(values[0], list):
            setattr(combined, name, [piece for pieces in values for piece in pieces])
        elif reduction is dim_zero_cat:
            setattr(combined, name, torch.cat(values))
        else:
            assert callable(reduction)
            setattr(combined, name, reduction(torch.stack(values)))
    combined._update_count = sum(each.num_updates for each in given)
    return combined


def gather_to_rank_zero(comm: Comm, value: Any) -> list[Any]:
    """Return the objects of all workers, by rank, on rank 0; nothing on the others. Collective."""
    if comm.size == 1:
        return [value]
    data = to_byte_tensor(value)
    lengths = comm.all_gather_object(len(data))
    route = SplitSizes(
        tuple(len(data) if peer == 0 else 0 for peer in range(comm.size)),
        tuple(lengths) if comm.is_rank_zero else (0,) * comm.size,
    )
    found = comm.all_to_all(data, route, Kind.METRICS).wait()
    if not comm.is_rank_zero:
        return []
    return [deserialize(part.numpy().data) for part in torch.split(found, lengths)]
