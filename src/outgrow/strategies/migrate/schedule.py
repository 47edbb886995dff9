"""The schedule of migrating models: which seeds are computed on which worker in which time step.

The number of time steps of a batch is reduced as long as epochs get faster (HopGNN §5.3).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from types import NoneType

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


@dataclass(frozen=True, kw_only=True)
class TimeStepMerger:
    """The state of merging after some epochs. Equal on all workers, since they use the same mean of seconds.

    Attributes:
        size: Number of workers, and of time steps at the start.
        dropped: Number of time steps that the next epoch omits.
        settled: Whether that number is final.
        fastest: Seconds of the fastest epoch so far; None before the first.
        log: Time steps and seconds of each epoch until the number was final.
    """

    size: int
    dropped: int = 0
    settled: bool = False
    fastest: float | None = None
    log: tuple[tuple[int, float], ...] = field(default=())

    @property
    def time_steps(self) -> int:
        """Number of time steps in which the next epoch trains a batch."""
        return self.size - self.dropped

    @property
    def may_drop(self) -> bool:
        """Whether this or a later epoch may omit a time step."""
        return self.dropped > 0 or not self.settled

    def after_epoch(self, seconds: float) -> TimeStepMerger:
        """Return the state after one more epoch, which took ``seconds``.

        As long as epochs get faster, the next one has one time step less, down to one. After an epoch that
        was not faster than the one before, the number returns to the previous one and stays there.
        """
        if self.settled:
            return self
        logged = replace(self, log=(*self.log, (self.time_steps, seconds)))
        # One merge too many: it makes models compute more seeds away from their features than it saves.
        if self.fastest is not None and seconds >= self.fastest:
            return replace(logged, dropped=self.dropped - 1, settled=True)
        last = self.time_steps == 1
        return replace(logged, fastest=seconds, dropped=self.dropped + (not last), settled=last)

    def as_hint(self) -> dict[str, object]:
        """Return the state as plain values."""
        return asdict(self)

    @staticmethod
    def from_hint(hint: object, size: int) -> TimeStepMerger:
        """Return the state of an interrupted run; a fresh one if its hint is invalid or of another size."""
        fresh = TimeStepMerger(size=size)
        if not isinstance(hint, Mapping):
            return fresh
        try:
            known = TimeStepMerger(**{**hint, "log": tuple((int(steps), float(took)) for steps, took in hint["log"])})
        except (TypeError, ValueError, KeyError, OverflowError):
            return fresh
        # A hint comes from a file that users may edit, and must never stop a run.
        return known if known._is_possible(size) else fresh

    def _is_possible(self, size: int) -> bool:
        """Whether a run on ``size`` workers can have this state."""
        # Exact types, since True is an int as well.
        plain = type(self.size) is int and type(self.dropped) is int and type(self.settled) is bool
        if not plain or self.size != size or type(self.fastest) not in (int, float, NoneType):
            return False
        unjudged = self.fastest is None
        return 0 <= self.dropped < size and (self.settled or unjudged == (self.dropped == 0))
