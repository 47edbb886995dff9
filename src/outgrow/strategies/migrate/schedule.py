"""Which seeds meet the model where."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from outgrow.engine.model_migration import MicroBatchPlan


def assign_models(num_seeds: int, size: int) -> Tensor:
    """``[n]`` int64: the model that each seed of a batch belongs to; equal shares, in the batch's order.

    Since that order is a random permutation, so are the shares.
    """
    return torch.arange(num_seeds) * size // max(1, num_seeds)


def migration_schedule(seeds: Tensor, owners: Tensor, rank: int, size: int, num_dropped: int = 0) -> MicroBatchPlan:
    """The groups of a worker when models travel.

    Dropped are, one by one, the time steps with the fewest seeds (of several, the first); the seeds that a model met
    then are spread evenly over its other time steps (§5.3).

    Args:
        seeds: ``[n]`` int64, of the batch, over all workers, in its order.
        owners: ``[n]`` integer, the worker where each lives.
        rank: The worker.
        size: ``P``, workers and models.
        num_dropped: How many time steps to do without; less than ``P``.
    """
    model = assign_models(len(seeds), size)
    time_step = (owners.long() - model) % size
    left = list(range(size))
    for _ in range(num_dropped):
        counts = time_step.bincount(minlength=size)
        fewest = min(left, key=lambda step: int(counts[step]))
        left.remove(fewest)
        _redistribute_seeds(time_step, model, fewest, torch.tensor(left))
    here = (model + time_step) % size == rank
    groups = [seeds[here & (time_step == step)] for step in left]
    return MicroBatchPlan(groups, [after - before for before, after in pairwise(left)])


def _redistribute_seeds(time_step: Tensor, model: Tensor, dropped: int, remaining_steps: Tensor) -> None:
    """Give the seeds of a dropped time step others, in place.

    Those of model ``d`` are dealt out in turn, from its ``d``-th time step on: so what is left over does not always
    fall to the first.
    """
    moved = (time_step == dropped).nonzero()[:, 0]
    of = model[moved]
    first = torch.searchsorted(of, of)  # models ascend in the batch's order
    time_step[moved] = remaining_steps[(torch.arange(len(moved)) - first + of) % len(remaining_steps)]
