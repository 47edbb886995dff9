"""Numbers that are no longer finite: noticed before a step is taken, and where they come from."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import TrainingError
from outgrow.engine.problem import Problem
from outgrow.nn.model import Model
from outgrow.ops.sparse import SparseRows, rows_at
from outgrow.strategies.base import Execution

_ROWS = 1 << 16


class Bad(NamedTuple):
    """Rows that are not finite.

    Attributes:
        node: The smallest id of them.
        number: How many.
    """

    node: int
    number: int


def all_finite(values: Iterable[Tensor | None]) -> bool:
    """Whether all numbers are finite. Where only their sum is not, they are taken for numbers that are not."""
    given = (each.detach() for each in values if each is not None)
    return all(math.isfinite(each.sum(dtype=torch.promote_types(each.dtype, torch.float32)).item()) for each in given)


def has_finite_gradient(model: Model) -> bool:
    """Whether the gradient of a model is finite."""
    return all_finite(parameter.grad for parameter in model.parameters())


def diverged(problem: Problem, execution: Execution, when: str, loss: float) -> TrainingError:
    """The error to raise when a loss, a gradient or a parameter is not finite. All workers call it between epochs.

    What is to blame is looked for in this order: a parameter; features; the output of a layer, for all nodes and
    without draws; the gradient, in which of the layers that have one the backward pass met it first.

    Args:
        problem: What is trained, with the gradient of the step.
        execution: The strategy at work, of which no step is under way.
        when: The epoch, and the step.
        loss: Loss of the step, over all workers.
    """
    where = _parameter(problem.model) or _features(problem) or _output(problem, execution) or _gradient(problem)
    return TrainingError(
        f"training diverged in {when}: {where}",
        needed="a loss, a gradient and parameters that are finite",
        got=f"a loss of {loss}; checkpoints are those written before",
        repair="correct the features if these are named; else lower the learning rate: start a new run or, where "
        "there is a checkpoint, go on from it with --resume and a lower --lr",
    )


def _parameter(model: Model) -> str | None:
    names = [name for name, value in model.named_parameters() if not value.isfinite().all()]
    return f"{_named(model, names[0])} is not finite on any worker" if names else None


def _features(problem: Problem) -> str | None:
    """Features of own nodes."""
    found = None
    for nodes in torch.split(problem.share.own, _ROWS):
        found = _added(found, _bad(rows_at(problem.features, nodes), nodes))
    return _spelled(problem, found, "the input of layer 1, which are features,")


def _output(problem: Problem, execution: Execution) -> str | None:
    """The first layer whose output is not finite."""
    with _watched(problem.model) as found:
        for _ in execution.inference():
            pass
    first = min(map(min, filter(None, problem.share.comm.gather(found))), default=None)
    if first is None:
        return None
    return _spelled(problem, found.get(first), f"the output of layer {first + 1} of {len(problem.model.stages())}")


def _gradient(problem: Problem) -> str:
    comm, model = problem.share.comm, problem.model
    names = [
        name for name, value in model.named_parameters() if value.grad is not None and not value.grad.isfinite().all()
    ]
    what = (
        f"the gradient of {_named(model, names[-1])}" if names else "the loss, or the sum of the numbers of a gradient,"
    )
    guilty = [rank for rank, finite in enumerate(comm.gather(comm.gave_finite_gradient)) if not finite]
    where = _workers(guilty or list(range(comm.size)), comm.size)
    return f"{what} is not finite, though the output of every layer is; it comes from {where}"


@contextmanager
def _watched(model: Model) -> Iterator[dict[int, Bad]]:
    """The rows of each layer, from 0, that turn out not to be finite."""
    found: dict[int, Bad] = {}

    def watch(index: int, nodes: Tensor, out: Tensor) -> None:
        if (more := _added(found.get(index), _bad(out, nodes))) is not None:
            found[index] = more

    stages = model.stages()
    for index, layer in enumerate(stages):
        layer.watch = lambda nodes, out, index=index: watch(index, nodes, out)
    try:
        yield found
    finally:
        for layer in stages:
            layer.watch = None


def _bad(rows: Tensor | SparseRows, nodes: Tensor) -> Bad | None:
    """Of the rows of some nodes, those that are not finite; None if all are."""
    if isinstance(rows, SparseRows):
        places = (~rows.values.isfinite()).nonzero()[:, 0]
        at = torch.unique_consecutive(torch.searchsorted(rows.indptr, places, right=True) - 1)
    else:
        at = (~rows.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0]
    return Bad(int(nodes.to(at.device)[at].min()), len(at)) if len(at) else None


def _added(before: Bad | None, more: Bad | None) -> Bad | None:
    if before is None or more is None:
        return more or before
    return Bad(min(before.node, more.node), before.number + more.number)


def _spelled(problem: Problem, found: Bad | None, what: str) -> str | None:
    """What is not finite, for how many nodes, and on which workers; None if no worker has found anything."""
    comm = problem.share.comm
    bad = {rank: each for rank, each in enumerate(comm.gather(found)) if each is not None}
    if not bad:
        return None
    count, node = sum(each.number for each in bad.values()), min(each.node for each in bad.values())
    return f"{what} is not finite for {count:,} nodes (node {node} is the first), on {_workers(list(bad), comm.size)}"


def _named(model: Model, name: str) -> str:
    """A parameter, by its layer."""
    owners = {f"layers.{place}": stage for place, stage in enumerate(model.layers)}
    stages = model.stages()
    for prefix, owner in owners.items():
        if name.startswith(f"{prefix}.") and owner in stages:
            return f"layer {stages.index(owner) + 1} of {len(stages)} ({name})"
    return f"the {name.partition('.')[0]} ({name})"


def _workers(ranks: list[int], size: int) -> str:
    names = ", ".join(map(str, ranks))
    return f"worker {names} of {size}" if len(ranks) == 1 else f"workers {names} of {size}"
