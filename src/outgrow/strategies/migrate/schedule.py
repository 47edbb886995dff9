"""Which seeds meet the model where."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from outgrow.engine.model_migration import Tour


def models_of(num_seeds: int, size: int) -> Tensor:
    """``[n]`` int64: the model that each seed of a batch belongs to; equal shares, in the batch's order.

    Since that order is a random permutation, so are the shares.
    """
    return torch.arange(num_seeds) * size // max(1, num_seeds)


def tour(seeds: Tensor, homes: Tensor, rank: int, size: int, dropped: int = 0) -> Tour:
    """The groups of a worker when models travel.

    Dropped are, one by one, the time steps with the fewest seeds (of several, the first); the seeds that a model met
    then are spread evenly over its other time steps (§5.3).

    Args:
        seeds: ``[n]`` int64, of the batch, over all workers, in its order.
        homes: ``[n]`` integer, the worker where each lives.
        rank: The worker.
        size: ``P``, workers and models.
        dropped: How many time steps to do without; less than ``P``.
    """
    model = models_of(len(seeds), size)
    time_step = (homes.long() - model) % size
    left = list(range(size))
    for _ in range(dropped):
        counts = time_step.bincount(minlength=size)
        fewest = min(left, key=lambda step: int(counts[step]))
        left.remove(fewest)
        _spread(time_step, model, fewest, torch.tensor(left))
    here = (model + time_step) % size == rank
    groups = [seeds[here & (time_step == step)] for step in left]
    return Tour(groups, [after - before for before, after in pairwise(left)])


def _spread(time_step: Tensor, model: Tensor, dropped: int, left: Tensor) -> None:
    """Give the seeds of a dropped time step others, in place.

    Those of model ``d`` are dealt out in turn, from its ``d``-th time step on: so what is left over does not always
    fall to the first.
    """
    moved = (time_step == dropped).nonzero()[:, 0]
    of = model[moved]
    first = torch.searchsorted(of, of)  # models ascend in the batch's order
    time_step[moved] = left[(torch.arange(len(moved)) - first + of) % len(left)]
