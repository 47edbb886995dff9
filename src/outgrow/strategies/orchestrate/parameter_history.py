"""Parameters of the bottom layer in recent batches: all that the hot embeddings of a super-batch depend on.

They are kept over the end of an epoch and in checkpoints. So the first super-batch of an epoch, and of a resumed run,
reuses what it would have reused in a run without an end: only the first super-batch of a run has no hot nodes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import InputError


class ParameterVersion(NamedTuple):
    """A snapshot of the parameters of the bottom layer.

    Attributes:
        updates: Number of updates of the epoch before the snapshot; negative in the epoch before.
        values: Copies of `bottom_parameters`, in host memory.
    """

    updates: int
    values: list[Tensor]


class EpochStart(NamedTuple):
    """Where and with what an epoch starts, or is resumed.

    Attributes:
        supers: Steps of each super-batch from the one that contains the first step.
        first: The first step.
        earlier: Versions at the start of each batch of the super-batch before; None if there is none, so that no node
            is hot in the first super-batch.
        begun: Versions of the steps of the first super-batch before ``first``.
    """

    supers: list[range]
    first: int
    earlier: list[ParameterVersion] | None
    begun: list[ParameterVersion]


@dataclass(kw_only=True)
class _SuperBatchRecord:
    """Snapshots at the start of the batches of a super-batch, so far."""

    epoch: int
    steps: range
    epoch_steps: int
    values: list[list[Tensor]] = field(default_factory=list)

    @property
    def is_complete(self) -> bool:
        return len(self.values) == len(self.steps)

    def versions(self, epoch: int) -> list[ParameterVersion]:
        """Return the versions, by updates of an epoch: this one's or the next."""
        shift = 0 if epoch == self.epoch else self.epoch_steps
        return [ParameterVersion(step - shift, each) for step, each in zip(self.steps, self.values, strict=False)]

    def precedes(self, epoch: int, step: int) -> bool:
        """Whether the step is the next one after all of these."""
        if not self.is_complete:
            return False
        if epoch == self.epoch:
            return step == self.steps.stop
        return epoch == self.epoch + 1 and step == 0 and self.steps.stop == self.epoch_steps

    def state(self) -> dict[str, Any]:
        """Return a plain form for checkpoints."""
        return {
            "epoch": self.epoch,
            "steps": [self.steps.start, self.steps.stop],
            "epoch_steps": self.epoch_steps,
            "values": self.values,
        }


class ParameterHistory:
    """Snapshots of the super-batch under way and of the one before. Final.

    Args:
        super_batch: ``n``, the largest number of batches of a super-batch.
    """

    def __init__(self, super_batch: int) -> None:
        self.super_batch = super_batch
        self._previous: _SuperBatchRecord | None = None
        self._current: _SuperBatchRecord | None = None

    def start_epoch(self, epoch: int, first: int, supers: Sequence[range]) -> EpochStart:
        """Return where an epoch starts; warm if the steps right before are known.

        Args:
            epoch: Number of the epoch.
            first: The first step, less than the number of steps of the epoch.
            supers: All super-batches of the epoch.
        """
        place = next(number for number, steps in enumerate(supers) if first < steps.stop)
        steps, later = supers[place], [*supers[place + 1 :]]
        current = self._current
        if first == steps.start:
            # A longer super-batch, of a run with other options, would exceed the bound of the staleness.
            known = current is not None and len(current.steps) <= self.super_batch and current.precedes(epoch, first)
            return EpochStart([steps, *later], first, current.versions(epoch) if current and known else None, [])
        if current is None or (current.epoch, current.steps, len(current.values)) != (
            epoch,
            steps,
            first - steps.start,
        ):
            # Another super-batch starts here, as nothing is known of the one that was interrupted.
            return EpochStart([range(first, steps.stop), *later], first, None, [])
        earlier = (
            self._previous.versions(epoch) if self._previous and self._previous.precedes(epoch, steps.start) else None
        )
        return EpochStart([steps, *later], first, earlier, current.versions(epoch))

    def record(self, epoch: int, steps: range, epoch_steps: int, version: ParameterVersion) -> None:
        """Note the parameters at the start of the next batch of a super-batch."""
        current = self._current
        if current is None or (current.epoch, current.steps) != (epoch, steps) or version.updates == steps.start:
            is_next = current is not None and current.precedes(epoch, steps.start)
            self._previous = current if is_next else None
            self._current = current = _SuperBatchRecord(epoch=epoch, steps=steps, epoch_steps=epoch_steps)
        assert version.updates == steps.start + len(current.values), "a version of each batch in order"
        current.values.append(version.values)

    def state(self) -> dict[str, Any]:
        """Return what a checkpoint keeps: plain values and tensors."""
        return {
            name: None if each is None else each.state()
            for name, each in (("previous", self._previous), ("current", self._current))
        }

    def load_state(self, saved: object, like: Sequence[Tensor]) -> None:
        """Go on from what a checkpoint keeps.

        Args:
            saved: From `state`, but read from a file that anyone may have written.
            like: Parameters of the bottom layer.

        Raises:
            InputError: It is no such state.
        """
        try:
            if not isinstance(saved, Mapping):
                raise TypeError(f"no dictionary but {type(saved).__name__}")
            self._previous, self._current = (_read_record(saved[name], like) for name in ("previous", "current"))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                "cannot go on with the hot nodes of the checkpoint",
                needed="parameters of the bottom layer in the last batches, as this version writes them",
                got=f"something else ({type(error).__name__}: {str(error)[:100]})",
                repair="go on from another checkpoint, or with strategy sampled",
            ) from error


def _read_record(saved: Any, like: Sequence[Tensor]) -> _SuperBatchRecord | None:
    """Return a record from its plain form, of which nothing is trusted."""
    if saved is None:
        return None
    (start, stop), values = saved["steps"], saved["values"]
    epoch, epoch_steps = saved["epoch"], saved["epoch_steps"]
    if not all(type(each) is int for each in (epoch, start, stop, epoch_steps)) or not 0 <= start < stop <= epoch_steps:
        raise ValueError("no range of steps")
    if not isinstance(values, list) or len(values) > stop - start:
        raise ValueError("no parameters of these steps")
    for each in values:
        if len(each) != len(like) or not all(map(_fits, each, like)):
            raise ValueError("parameters of another layer")
    return _SuperBatchRecord(epoch=epoch, steps=range(start, stop), epoch_steps=epoch_steps, values=[*values])


def _fits(value: object, parameter: Tensor) -> bool:
    return (
        isinstance(value, Tensor)
        and value.layout == torch.strided
        and (value.shape, value.dtype) == (parameter.shape, parameter.dtype)
    )
