"""Detection of non-finite numbers before an optimizer step, and the search for their origin."""

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
from outgrow.ops.block_rows import BlockRows, row_numbers
from outgrow.ops.sparse import PartialRows, SparseRows, index_rows
from outgrow.strategies.base import Execution

# Features may be larger than memory, so they are searched in slices of this many rows.
_ROWS = 1 << 16


class NonFiniteRows(NamedTuple):
    """Nodes whose rows are not finite.

    Attributes:
        first_node: Smallest id of these nodes.
        num_nodes: Number of these nodes.
    """

    first_node: int
    num_nodes: int


def all_finite(values: Iterable[Tensor | None]) -> bool:
    """Whether all numbers are finite, judged by their sum: if only the sum overflows, the result is False."""
    # One reduction per tensor instead of a temporary mask; NaN and infinity both survive a sum.
    given = (each.detach() for each in values if each is not None)
    return all(math.isfinite(each.sum(dtype=torch.promote_types(each.dtype, torch.float32)).item()) for each in given)


def has_finite_gradient(model: Model) -> bool:
    """Whether all gradients of a model are finite."""
    return all_finite(parameter.grad for parameter in model.parameters())


def divergence_error(problem: Problem, execution: Execution, step_label: str, loss: float) -> TrainingError:
    """Find the origin of a non-finite loss, gradient or parameter; return the error to raise. Collective.

    Searches in this order: parameters; features; layer outputs, for all nodes and without random draws;
    gradients, where the layer that the backward pass reached first is named.

    Args:
        problem: Model and data, with the gradient of the step.
        execution: Strategy in use, with no step in progress.
        step_label: Name of the epoch and step.
        loss: Loss of the step, over all workers.
    """
    # Each stage is computed from the former ones, so the first with a bad number is the origin.
    where = (
        _find_in_parameters(problem.model)
        or _find_in_features(problem)
        or _find_in_outputs(problem, execution)
        or _find_in_gradients(problem)
    )
    return TrainingError(
        f"training diverged in {step_label}: {where}",
        needed="a loss, a gradient and parameters that are finite",
        got=f"a loss of {loss}; checkpoints are those written before",
        repair="correct the features if these are named; else lower the learning rate: start a new run or, where "
        "there is a checkpoint, go on from it with --resume and a lower --lr",
    )


def _find_in_parameters(model: Model) -> str | None:
    # No communication: parameters are the same on every worker.
    names = [name for name, value in model.named_parameters() if not value.isfinite().all()]
    return f"{_describe_parameter(model, names[0])} is not finite on any worker" if names else None


def _find_in_features(problem: Problem) -> str | None:
    """Search the features of this worker's own nodes."""
    found = None
    for nodes in torch.split(problem.shard.owned_nodes, _ROWS):
        found = _combine_rows(found, _find_non_finite(index_rows(problem.features, nodes), nodes))
    return _describe_rows(problem, found, "the input of layer 1, which are features,")


def _find_in_outputs(problem: Problem, execution: Execution) -> str | None:
    """Find the first layer whose output is not finite."""
    with _hooked_outputs(problem.model) as found:
        for _ in execution.inference():
            pass
    # The lowest layer on any worker is the origin: later ones only pass its bad rows on.
    first = min(map(min, filter(None, problem.shard.comm.all_gather_object(found))), default=None)
    if first is None:
        return None
    return _describe_rows(
        problem, found.get(first), f"the output of layer {first + 1} of {len(problem.model.layers_list())}"
    )


def _find_in_gradients(problem: Problem) -> str:
    comm, model = problem.shard.comm, problem.model
    names = [
        name for name, value in model.named_parameters() if value.grad is not None and not value.grad.isfinite().all()
    ]
    # Parameters are in forward order, and backward starts at the end: the last bad one was first.
    what = (
        f"the gradient of {_describe_parameter(model, names[-1])}"
        if names
        else "the loss, or the sum of the numbers of a gradient,"
    )
    # After the all-reduce the gradient is bad everywhere; only the local sums from before tell whose it was.
    local_finite = comm.all_gather_object(comm.has_finite_local_gradient)
    sources = [rank for rank, finite in enumerate(local_finite) if not finite]
    where = _format_workers(sources or list(range(comm.size)), comm.size)
    return f"{what} is not finite, though the output of every layer is; it comes from {where}"


@contextmanager
def _hooked_outputs(model: Model) -> Iterator[dict[int, NonFiniteRows]]:
    """Collect the non-finite output rows of each layer, by its index from 0, while the context is open."""
    found: dict[int, NonFiniteRows] = {}

    def record_output(index: int, nodes: Tensor, out: Tensor) -> None:
        if (more := _combine_rows(found.get(index), _find_non_finite(out, nodes))) is not None:
            found[index] = more

    layers = model.layers_list()
    for index, layer in enumerate(layers):
        # The default argument binds the current index; a plain closure would see the last one.
        layer.output_hook = lambda nodes, out, index=index: record_output(index, nodes, out)
    try:
        yield found
    finally:
        for layer in layers:
            layer.output_hook = None


def _find_non_finite(rows: Tensor | PartialRows, nodes: Tensor) -> NonFiniteRows | None:
    """Find the rows of some nodes that are not finite; None if all are."""
    if isinstance(rows, SparseRows):
        # Positions of stored values to rows; one row may hold several bad values.
        positions = (~rows.values.isfinite()).nonzero()[:, 0]
        at = torch.unique_consecutive(torch.searchsorted(rows.indptr, positions, right=True) - 1)
    elif isinstance(rows, BlockRows):
        finite = [block.isfinite().all(dim=1).to(nodes.device) for block in rows.blocks]
        at = torch.cat([row_numbers(own).to(nodes.device)[~good] for own, good in zip(rows.rows, finite, strict=True)])
    else:
        at = (~rows.isfinite().flatten(1).all(dim=1)).nonzero()[:, 0]
    return NonFiniteRows(int(nodes.to(at.device)[at].min()), len(at)) if len(at) else None


def _combine_rows(before: NonFiniteRows | None, more: NonFiniteRows | None) -> NonFiniteRows | None:
    if before is None or more is None:
        return more or before
    return NonFiniteRows(min(before.first_node, more.first_node), before.num_nodes + more.num_nodes)


def _describe_rows(problem: Problem, found: NonFiniteRows | None, what: str) -> str | None:
    """Say what is not finite, for how many nodes and on which workers, or return None. Collective."""
    comm = problem.shard.comm
    bad = {rank: each for rank, each in enumerate(comm.all_gather_object(found)) if each is not None}
    if not bad:
        return None
    count = sum(each.num_nodes for each in bad.values())
    node = min(each.first_node for each in bad.values())
    workers = _format_workers(list(bad), comm.size)
    return f"{what} is not finite for {count:,} nodes (node {node} is the first), on {workers}"


def _describe_parameter(model: Model, name: str) -> str:
    """Name a parameter by its layer."""
    owners = {f"layers.{index}": module for index, module in enumerate(model.layers)}
    layers = model.layers_list()
    for prefix, owner in owners.items():
        if name.startswith(f"{prefix}.") and owner in layers:
            return f"layer {layers.index(owner) + 1} of {len(layers)} ({name})"
    return f"the {name.partition('.')[0]} ({name})"


def _format_workers(ranks: list[int], size: int) -> str:
    names = ", ".join(map(str, ranks))
    return f"worker {names} of {size}" if len(ranks) == 1 else f"workers {names} of {size}"
