"""Learning rate schedules: those of torch by name, a linear warm-up before them, and when they advance."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch.optim import lr_scheduler
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value
from outgrow.training.given_objects import call_maker, refuse_recorded, signature_options, validate_options

PLATEAU, ONE_CYCLE = "plateau", "onecycle"
EPOCH, STEP = "epoch", "step"
SCHEDULES: dict[str, type[LRScheduler]] = {
    "constant": lr_scheduler.ConstantLR,
    "cosine": lr_scheduler.CosineAnnealingLR,
    "cosine-restarts": lr_scheduler.CosineAnnealingWarmRestarts,
    "cyclic": lr_scheduler.CyclicLR,
    "exponential": lr_scheduler.ExponentialLR,
    "linear": lr_scheduler.LinearLR,
    "multistep": lr_scheduler.MultiStepLR,
    ONE_CYCLE: lr_scheduler.OneCycleLR,
    PLATEAU: ReduceLROnPlateau,
    "polynomial": lr_scheduler.PolynomialLR,
    "step": lr_scheduler.StepLR,
}
"""The schedules of `torch.optim.lr_scheduler` by name."""
_LENGTH = {"cosine": "T_max", "linear": "total_iters", ONE_CYCLE: "total_steps", "polynomial": "total_iters"}
_HIDDEN = ("optimizer", "last_epoch")
_RATES = ("lr", "initial_lr", "max_lr", "min_lr")


def schedule_class(choice: object) -> type[LRScheduler] | None:
    """Return the class that a choice names or is; None for none, or a function that makes the schedule."""
    if isinstance(choice, str):
        return SCHEDULES[choice]
    return choice if isinstance(choice, type) else None


def schedule_option_names(choice: object) -> set[str]:
    """Return the names of the options of a schedule."""
    kind = schedule_class(choice)
    return set() if kind is None else set(signature_options(kind, _HIDDEN) or ())


def validate_schedule_options(owner: str, choice: object, options: Mapping[str, object]) -> None:
    """Check options of a schedule against its signature.

    Raises:
        InputError: It has no option of a name.
    """
    kind = schedule_class(choice)
    if kind is not None:
        validate_options(f"schedule {owner}", options, kind, _HIDDEN)


def default_options(name: str) -> dict[str, object]:
    """Return the options that torch has defaults of, for a schedule by name."""
    known = signature_options(SCHEDULES[name], _HIDDEN) or {}
    return {option: each.default for option, each in known.items() if each.default is not each.empty}


def depends_on_length(choice: object, options: Mapping[str, object]) -> bool:
    """Whether the length of training decides a schedule."""
    return isinstance(choice, str) and choice in _LENGTH and _LENGTH[choice] not in options


class Schedule:
    """A schedule of the learning rates of an optimizer, which advances once a step or once an epoch. Final.

    Args:
        scheduler: The schedule of torch.
        per: ``"epoch"`` or ``"step"``.
        warmup: Schedule of the units before ``scheduler`` begins to advance, where both cannot be joined.
        warmup_units: Number of these units.
    """

    def __init__(
        self, scheduler: LRScheduler, *, per: str, warmup: LRScheduler | None = None, warmup_units: int = 0
    ) -> None:
        self.scheduler = scheduler
        self.per = per
        self._warmup = warmup
        self._warmup_units = warmup_units
        self._units = 0

    @property
    def needs_score(self) -> bool:
        """Whether it reads the monitored value of the validation set."""
        return isinstance(self.scheduler, ReduceLROnPlateau)

    def advance_step(self) -> None:
        """Advance after an optimizer step."""
        if self.per == STEP:
            self._advance(None)

    def advance_epoch(self, monitored: float | None) -> None:
        """Advance after an epoch.

        Args:
            monitored: Monitored value of the validation set; None if the epoch was not evaluated, in which case a
                schedule that reads it waits.
        """
        if self.per == EPOCH:
            self._advance(monitored)

    def _advance(self, monitored: float | None) -> None:
        if self._warmup is not None and self._units < self._warmup_units:
            self._warmup.step()
            self._units += 1
        elif isinstance(self.scheduler, ReduceLROnPlateau):
            if monitored is not None:
                self.scheduler.step(monitored)
        else:
            self.scheduler.step()

    def state_dict(self) -> dict[str, Any]:
        """Return its state, of plain values."""
        warmup = None if self._warmup is None else self._warmup.state_dict()
        return {"scheduler": self.scheduler.state_dict(), "warmup": warmup, "units": self._units}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state."""
        self.scheduler.load_state_dict(state["scheduler"])
        if self._warmup is not None:
            self._warmup.load_state_dict(state["warmup"])
        self._units = state["units"]
        # A schedule warns if it advances before the optimizer; here that was in the session before.
        self.scheduler.optimizer._opt_called = True  # type: ignore[attr-defined]

    def scale_rates(self, factors: list[float]) -> None:
        """Multiply the rates of each group of parameters, past and to come."""
        parts = [self.scheduler, *([] if self._warmup is None else [self._warmup])]
        for each in [*parts, *(inner for part in parts for inner in vars(part).get("_schedulers", []))]:
            for name in ("base_lrs", "_last_lr"):
                if name in vars(each):
                    rates = zip(getattr(each, name), factors, strict=True)
                    setattr(each, name, [rate * factor for rate, factor in rates])
        for group, factor in zip(self.scheduler.optimizer.param_groups, factors, strict=True):
            for name in _RATES:
                if name in group:
                    group[name] *= factor


def build_schedule(
    choice: object,
    owner: str,
    optimizer: torch.optim.Optimizer,
    *,
    options: Mapping[str, object],
    per: str,
    warmup: int,
    length: int,
    larger_is_better: bool,
) -> Schedule:
    """Make a schedule of an optimizer.

    Args:
        choice: A name, a class, or a function of the optimizer.
        owner: Name of the choice.
        optimizer: The optimizer.
        options: Options of the class.
        per: ``"epoch"`` or ``"step"``.
        warmup: Number of units of linear warm-up: unit ``t`` from 0 has ``(t + 1) / (warmup + 1)`` of the rate.
        length: Number of units of the whole training.
        larger_is_better: Direction of the monitored value.

    Raises:
        InputError: The schedule refuses its options, or it cannot be used like this.
    """
    refuse_recorded("schedule", choice)
    if warmup >= length:
        raise InputError(
            "the warm-up is longer than the training",
            needed=f"warmup below {length}, the number of {per}s",
            got=f"warmup {warmup}",
            repair="shorten it, or train for longer",
        )
    kind = schedule_class(choice)
    if kind is None:
        assert callable(choice)
        made = call_maker(f"the schedule of {owner}", choice, optimizer)
    else:
        defaults = _defaults(choice, optimizer, length - warmup, options)
        if issubclass(kind, ReduceLROnPlateau):
            defaults["mode"] = "max" if larger_is_better else "min"
        made = call_maker(f"schedule {owner}", kind, optimizer, **{**defaults, **options})
    _validate_made(made, owner, optimizer, per)
    if not warmup:
        return Schedule(made, per=per)
    if isinstance(made, lr_scheduler.OneCycleLR):
        raise InputError(
            "the schedule onecycle has a warm-up of its own",
            needed="pct_start, the share of the cycle that warms up",
            got=f"warmup {warmup}",
            repair="leave warmup out",
        )
    # A second schedule starts from the rates that the first has set: they are put back.
    for group in optimizer.param_groups:
        group["lr"] = group["initial_lr"] if "initial_lr" in group else group["lr"]
    ramp = lr_scheduler.LinearLR(optimizer, start_factor=1 / (warmup + 1), end_factor=1.0, total_iters=warmup)
    if isinstance(made, ReduceLROnPlateau):
        return Schedule(made, per=per, warmup=ramp, warmup_units=warmup)
    return Schedule(lr_scheduler.SequentialLR(optimizer, [ramp, made], [warmup]), per=per)


def _defaults(
    choice: object, optimizer: torch.optim.Optimizer, length: int, options: Mapping[str, object]
) -> dict[str, Any]:
    """Return defaults of a named schedule, where torch has none or others."""
    if not isinstance(choice, str):
        return {}
    found: dict[str, Any] = {_LENGTH[choice]: length} if depends_on_length(choice, options) else {}
    if choice == ONE_CYCLE:
        found["max_lr"] = [group["lr"] for group in optimizer.param_groups]
        if "epochs" in options:
            del found["total_steps"]
    if choice == "linear":
        found |= {"start_factor": 1.0, "end_factor": 0.0}
    if choice == "constant":
        found |= {"factor": 1.0, "total_iters": 0}
    return found


def _validate_made(made: object, owner: str, optimizer: torch.optim.Optimizer, per: str) -> None:
    if not isinstance(made, LRScheduler) or made.optimizer is not optimizer:
        raise InputError(
            f"{owner} makes no schedule of the optimizer",
            needed="a schedule of torch.optim.lr_scheduler, of the optimizer that the function is given",
            got=describe_value(made) if not isinstance(made, LRScheduler) else "a schedule of another optimizer",
            repair="use the argument of the function: lambda optimizer: StepLR(optimizer, 30)",
        )
    if isinstance(made, ReduceLROnPlateau) and per == STEP:
        raise InputError(
            "the schedule plateau reads the validation score, which there is after epochs",
            needed="schedule_per epoch",
            got="schedule_per step",
            repair="leave schedule_per out",
        )
