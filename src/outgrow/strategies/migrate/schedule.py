"""The schedule of migrating models: which seeds are computed on which worker in which time step."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from outgrow.engine.model_migration import MicroBatchPlan


def assign_models(num_seeds: int, size: int) -> Tensor:
    """Return the model of each seed of a batch, ``[n]`` int64: equal shares, in the batch's order.

    Since that order is a random permutation, so are the shares.
    """
    return torch.arange(num_seeds) * size // max(1, num_seeds)


def migration_schedule(seeds: Tensor, owners: Tensor, rank: int, size: int, num_dropped: int = 0) -> MicroBatchPlan:
    """Return the groups of seeds that a worker computes when models migrate.

    Time steps are dropped one by one, always the one with the fewest seeds (the first of several). The seeds
    of a model in a dropped step are spread evenly over its other time steps (§5.3).

    Args:
        seeds: ``[n]`` int64, seeds of the batch over all workers, in its order.
        owners: ``[n]`` integer, the worker that owns each seed.
        rank: Rank of the worker.
        size: ``P``, workers and models.
        num_dropped: Number of time steps to omit; less than ``P``.
    """
    model = assign_models(len(seeds), size)
    # Model d visits worker (d + t) mod P in step t; solved for t, this is when it reaches a seed's owner.
    time_step = (owners.long() - model) % size
    left = list(range(size))
    # Counts change with each redistribution, so steps cannot be chosen all at once.
    for _ in range(num_dropped):
        counts = time_step.bincount(minlength=size)
        fewest = min(left, key=lambda step: int(counts[step]))
        left.remove(fewest)
        _redistribute_seeds(time_step, model, fewest, torch.tensor(left))
    here = (model + time_step) % size == rank
    groups = [seeds[here & (time_step == step)] for step in left]
    return MicroBatchPlan(groups, [after - before for before, after in pairwise(left)])


def _redistribute_seeds(time_step: Tensor, model: Tensor, dropped: int, remaining_steps: Tensor) -> None:
    """Move the seeds of a dropped time step to other time steps, in place.

    Those of model ``d`` are assigned round-robin, starting with its ``d``-th time step, so that remainders do
    not always fall to the first one.
    """
    moved = (time_step == dropped).nonzero()[:, 0]
    of = model[moved]
    # Models ascend in the batch's order, so this finds the first moved seed of each model.
    first = torch.searchsorted(of, of)
    time_step[moved] = remaining_steps[(torch.arange(len(moved)) - first + of) % len(remaining_steps)]
