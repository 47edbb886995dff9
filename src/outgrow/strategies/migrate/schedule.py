"""The schedule of migrating models: which seeds are computed on which worker in which time step.

The number of time steps of a batch is reduced as long as epochs get faster (HopGNN §5.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.model_migration import MicroBatchPlan

EPOCHS_TO_DECIDE = 3
"""Epochs of each of two numbers of time steps after which they are compared."""
MOST_EPOCHS_TO_DECIDE = 5
"""Epochs of each after which they count as equally fast, if their medians differ by less than chance explains."""


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


class MergeDecision(NamedTuple):
    """What the epochs with some number of time steps, and those with one step less, have shown.

    Attributes:
        time_steps: The number; the other is one less.
        seconds: Median seconds of the epochs with this number.
        merged_seconds: Median seconds of those with one time step less.
        margin: Seconds by which medians may differ by chance: half the range of the epochs that differ most.
        epochs: How many epochs there were of each.
        merges: Whether one time step less is faster by more than the margin, and was chosen.
    """

    time_steps: int
    seconds: float
    merged_seconds: float
    margin: float
    epochs: int
    merges: bool


@dataclass(frozen=True, kw_only=True)
class TimeStepMerger:
    """The state of merging after some epochs. Equal on all workers, since they use the same mean of seconds.

    The number that was fastest so far is compared with one time step less, by the medians of epochs that take turns: a
    single epoch may be slow for other reasons. Medians that differ by less than their epochs do decide nothing; after
    more epochs that leave it at that, the number stays.

    Attributes:
        size: Number of workers, and of time steps at the start.
        kept: Number of time steps omitted in the fastest epochs so far.
        settled: Whether that number is final.
        trial: Time steps and seconds of the epochs since the last decision.
        log: Time steps and seconds of each epoch until the number was final.
        decisions: What was decided by these epochs.
    """

    size: int
    kept: int = 0
    settled: bool = False
    trial: tuple[tuple[int, float], ...] = ()
    log: tuple[tuple[int, float], ...] = ()
    decisions: tuple[MergeDecision, ...] = ()

    @property
    def num_dropped(self) -> int:
        """Number of time steps that the next epoch omits."""
        # One more, then twice as before, and so on: drift over the epochs of a trial then favours neither.
        is_merged = not self.is_settled and len(self.trial) % 4 in (1, 2)
        return self.kept + is_merged

    @property
    def is_settled(self) -> bool:
        """Whether the number of time steps is final: it was decided, or there is only one left."""
        return self.settled or self.kept == self.size - 1

    @property
    def time_steps(self) -> int:
        """Number of time steps in which the next epoch trains a batch."""
        return self.size - self.num_dropped

    @property
    def may_drop(self) -> bool:
        """Whether this or a later epoch may omit a time step."""
        return self.kept > 0 or not self.is_settled

    def after_epoch(self, seconds: float) -> TimeStepMerger:
        """Return the state after one more epoch, which took ``seconds``."""
        if self.is_settled:
            return self
        epoch = (self.time_steps, seconds)
        state = replace(self, trial=(*self.trial, epoch), log=(*self.log, epoch))
        decision = _decide(state.size - state.kept, state.trial)
        if decision is None:
            return state
        return replace(
            state,
            kept=state.kept + decision.merges,
            settled=not decision.merges,
            trial=(),
            decisions=(*state.decisions, decision),
        )

    def as_hint(self) -> dict[str, object]:
        """Return the state as plain values: the epochs, from which all of it follows."""
        return {"size": self.size, "log": [list(epoch) for epoch in self.log]}

    @staticmethod
    def from_hint(hint: object, size: int) -> TimeStepMerger:
        """Return the state of an interrupted run; a fresh one if its hint is invalid or of another size."""
        fresh = TimeStepMerger(size=size)
        # A hint comes from a file that users may edit, and must never stop a run.
        if not isinstance(hint, Mapping) or type(hint.get("size")) is not int or hint["size"] != size:
            return fresh
        known = fresh
        try:
            for time_steps, seconds in hint["log"]:
                if time_steps != known.time_steps or known.is_settled or not 0 <= float(seconds) < math.inf:
                    return fresh
                known = known.after_epoch(float(seconds))
        except (TypeError, ValueError, KeyError, OverflowError):
            return fresh
        return known


def _decide(time_steps: int, trial: Sequence[tuple[int, float]]) -> MergeDecision | None:
    """Return the decision of a trial; None if it needs more epochs."""
    given = [seconds for steps, seconds in trial if steps == time_steps]
    merged = [seconds for steps, seconds in trial if steps != time_steps]
    if len(given) != len(merged) or len(given) < EPOCHS_TO_DECIDE:
        return None
    margin = max(max(each) - min(each) for each in (given, merged)) / 2
    gain = median(given) - median(merged)
    if abs(gain) <= margin and len(given) < MOST_EPOCHS_TO_DECIDE:
        return None
    return MergeDecision(time_steps, median(given), median(merged), margin, len(given), gain > margin)
