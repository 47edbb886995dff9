"""Options of optimizers and schedules as users give them: checked, and in the one form that `TrainConfig` holds."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from typing import Any, Protocol

import torch
from torch.optim.lr_scheduler import LRScheduler

from outgrow.core.errors import InputError
from outgrow.core.validation import out_of_range_error, validate_choice
from outgrow.engine.embeddings.row_optimizers import ADAGRAD, ADAM, SPARSE_ADAM, RowOptimizer
from outgrow.inference.modes import NONE
from outgrow.training.given_objects import RecordedObject, describe_choice, read_choice
from outgrow.training.optimizers import (
    LR,
    OPTIMIZERS,
    REGEX,
    WEIGHT_DECAY,
    optimizer_class,
    optimizer_option_names,
    validate_optimizer_options,
)
from outgrow.training.schedules import (
    EPOCH,
    PLATEAU,
    SCHEDULES,
    STEP,
    default_options,
    depends_on_length,
    schedule_option_names,
    validate_schedule_options,
)

# Their defaults here are for the length of the training.
_OTHER_DEFAULTS = ("constant", "linear", "polynomial")


class LoopOptions(Protocol):
    """The options of `TrainConfig` that are about the optimizer, its schedule and what happens to gradients."""

    @property
    def epochs(self) -> int:
        """Maximum number of epochs."""

    @property
    def lr(self) -> float:
        """Learning rate."""

    @property
    def weight_decay(self) -> float:
        """Weight decay."""

    @property
    def optimizer(self) -> object:
        """Name, class or function."""

    @property
    def optimizer_name(self) -> str:
        """Its name."""

    @property
    def embedding_optimizer(self) -> str | None:
        """Optimizer of vectors of nodes; None for the usual one."""

    @property
    def embedding_lr(self) -> float | None:
        """Their learning rate; None for ``lr``."""

    @property
    def optimizer_options(self) -> Mapping[str, object]:
        """Its options."""

    @property
    def param_groups(self) -> Mapping[str, Mapping[str, object]]:
        """Options of groups of parameters by pattern."""

    @property
    def schedule(self) -> object:
        """Name, class or function; or None."""

    @property
    def schedule_name(self) -> str:
        """Its name."""

    @property
    def schedule_options(self) -> Mapping[str, object]:
        """Its options."""

    @property
    def schedule_per(self) -> str:
        """What it counts."""

    @property
    def warmup(self) -> int:
        """Number of these before it begins."""

    @property
    def clip_grad_norm(self) -> float | None:
        """Largest norm of a gradient."""

    @property
    def accumulate(self) -> int:
        """Number of batches of a step."""

    @property
    def ema(self) -> float | None:
        """Decay of averaged weights."""

    @property
    def eval(self) -> str:
        """How nodes are evaluated."""

    @property
    def val(self) -> str | None:
        """The same for validation nodes."""


def read_optimizer(config: LoopOptions) -> dict[str, Any]:
    """Return the fields of a config that are about the optimizer, checked.

    Raises:
        InputError: There is no such optimizer or option, or a value is out of range.
    """
    choice = read_choice("optimizer", config.optimizer, OPTIMIZERS, (torch.optim.Optimizer,))
    # JSON has lists where optimizers have tuples, such as the betas.
    given = {**choice.options, **config.optimizer_options}
    options = {name: tuple(value) if isinstance(value, list) else value for name, value in given.items()}
    found: dict[str, Any] = {"optimizer": choice.value, "optimizer_options": options}
    for name, default in (("lr", LR), ("weight_decay", WEIGHT_DECAY)):
        value = getattr(config, name)
        found[name] = options.pop(name, value)
        if value not in (default, found[name]):
            raise _given_twice(name, value, found[name])
    if isinstance(choice.value, RecordedObject):
        return found
    validate_optimizer_options(describe_choice(choice.value), choice.value, options)
    groups = {_pattern_text(pattern): _as_mapping(str(pattern), each) for pattern, each in config.param_groups.items()}
    found["param_groups"] = groups
    if optimizer_class(choice.value) is None:
        rates = {
            name: found[name]
            for name, default in (("lr", LR), ("weight_decay", WEIGHT_DECAY))
            if found[name] != default
        }
        _refuse_beside_function("optimizer", {**options, **rates}, "params: torch.optim.SGD(params, lr=0.1)")
    return found


def read_schedule(config: LoopOptions) -> dict[str, Any]:
    """Return the fields of a config that are about the schedule, checked.

    Raises:
        InputError: There is no such schedule or option, or there are options without a schedule.
    """
    validate_choice("schedule_per", config.schedule_per, dict.fromkeys((EPOCH, STEP)))
    if config.warmup < 0:
        raise out_of_range_error("warmup", "zero or more", config.warmup)
    if config.schedule is None:
        _require_no_schedule_options(config)
        return {}
    choice = read_choice("schedule", config.schedule, SCHEDULES, (LRScheduler,))
    options = {**choice.options, **config.schedule_options}
    if choice.value in _OTHER_DEFAULTS and not isinstance(config.schedule, str):
        # A class has the defaults of torch.
        options = {**default_options(str(choice.value)), **options}
    if not isinstance(choice.value, RecordedObject):
        validate_schedule_options(describe_choice(choice.value), choice.value, options)
        if not isinstance(choice.value, str | type):
            _refuse_beside_function("schedule", options, "optimizer: StepLR(optimizer, 30)")
    if choice.value == PLATEAU and (config.val or config.eval) == NONE:
        raise no_score_error("val none")
    return {"schedule": choice.value, "schedule_options": options}


def no_score_error(got: str) -> InputError:
    """Return the error of a schedule that reads a validation score where there is none."""
    return InputError(
        "the schedule plateau reads the validation score",
        needed="validation nodes, and val other than none",
        got=got,
        repair="choose another schedule, or evaluate",
    )


def split_loop_options(changed: Mapping[str, object], config: LoopOptions, known: Collection[str]) -> dict[str, Any]:
    """Return changed options with those of the optimizer and of the schedule in their mappings.

    Args:
        changed: Options by name.
        config: What is changed.
        known: The fields of `TrainConfig`, which no optimizer and no schedule overrides.

    Raises:
        InputError: There is no such option, or one is given twice.
    """
    rest = dict(changed)
    parts = ("optimizer", "schedule")
    chosen = {part: rest.get(part, getattr(config, part)) for part in parts}
    names = {"optimizer": open_option_names(chosen["optimizer"], None) - {*known}}
    names["schedule"] = open_option_names(None, chosen["schedule"]) - {*known}
    for part in parts:
        # Those of the optimizer or schedule before are none of another one.
        options = {} if chosen[part] != getattr(config, part) else dict(getattr(config, f"{part}_options"))
        given = dict(_as_mapping(f"{part}_options", rest.pop(f"{part}_options", {})))
        options.update(given)
        for name in [each for each in rest if each in names[part]]:
            value = rest.pop(name)
            if given.get(name, value) != value:
                raise _given_twice(name, given[name], value)
            options[name] = value
        rest[f"{part}_options"] = options
    for name in rest:
        validate_choice("training option", name, dict.fromkeys((*known, *names["optimizer"], *names["schedule"])))
    return rest


def open_option_names(optimizer: object, schedule: object) -> set[str]:
    """Return the names of the options that an optimizer and a schedule have, whatever they are; None for none.

    Raises:
        InputError: There is no such optimizer or schedule.
    """
    found: set[str] = set()
    if optimizer is not None:
        found |= optimizer_option_names(read_choice("optimizer", optimizer, OPTIMIZERS, (torch.optim.Optimizer,)).value)
    if schedule is not None:
        found |= schedule_option_names(read_choice("schedule", schedule, SCHEDULES, (LRScheduler,)).value)
    return found


def describe_loop(config: LoopOptions) -> str:
    """Return all of a config that decides what a checkpoint of the optimizer and its schedule holds, as JSON."""
    own = {"lr", "weight_decay"}
    groups = {pattern: sorted({*given} - own) for pattern, given in config.param_groups.items()}
    parts: dict[str, object] = {"optimizer": config.optimizer_name, **config.optimizer_options}
    if groups:
        parts["param_groups"] = groups
    if config.schedule is not None:
        parts |= {"schedule": config.schedule_name, **config.schedule_options, "per": config.schedule_per}
        parts["warmup"] = config.warmup
        if depends_on_length(config.schedule, config.schedule_options):
            parts["epochs"] = config.epochs
    if config.ema is not None:
        parts["ema"] = True
    # Both kinds of Adam keep the same moments, so either goes on with those of the other.
    if config.embedding_optimizer == ADAGRAD:
        parts["embedding_optimizer"] = ADAGRAD
    if config.accumulate > 1:
        parts["accumulate"] = config.accumulate
    return json.dumps(parts, default=str)


def make_row_optimizer(config: LoopOptions, *, batches: bool) -> RowOptimizer:
    """Return the optimizer of the vectors of nodes.

    Args:
        config: Options of the loop.
        batches: Whether steps are of mini-batches.
    """
    name = config.embedding_optimizer or (SPARSE_ADAM if batches else ADAM)
    return RowOptimizer(name=name, lr=config.lr if config.embedding_lr is None else config.embedding_lr)


def describe_options(config: LoopOptions) -> str:
    """Return the optimizer, its schedule and what happens to gradients, for people."""
    parts = [f"{config.optimizer_name} lr {config.lr:g} weight decay {config.weight_decay:g}"]
    parts += [f"{name} {value}" for name, value in config.optimizer_options.items()]
    parts += [f"{len(config.param_groups)} groups of parameters"] if config.param_groups else []
    if config.schedule is not None:
        named = [f"{name} {value}" for name, value in config.schedule_options.items()]
        warmup = [f"warmup {config.warmup}"] if config.warmup else []
        parts.append(" ".join(["schedule", config.schedule_name, *named, *warmup, "per", config.schedule_per]))
    parts += [f"gradient norm at most {config.clip_grad_norm:g}"] if config.clip_grad_norm is not None else []
    parts += [f"{config.accumulate} batches a step"] if config.accumulate > 1 else []
    parts += [f"vectors of nodes by {config.embedding_optimizer}"] if config.embedding_optimizer else []
    parts += [f"with lr {config.embedding_lr:g} for vectors of nodes"] if config.embedding_lr is not None else []
    parts += [f"weights averaged with decay {config.ema:g}"] if config.ema is not None else []
    return ", ".join(parts)


def _require_no_schedule_options(config: LoopOptions) -> None:
    given = dict(config.schedule_options)
    given |= {"warmup": config.warmup} if config.warmup else {}
    given |= {"schedule_per": config.schedule_per} if config.schedule_per != EPOCH else {}
    if given:
        raise InputError(
            "there are options of a schedule, but no schedule",
            needed=f"schedule, one of {', '.join(SCHEDULES)}",
            got=", ".join(f"{name} {value}" for name, value in given.items()),
            repair="set schedule, to constant if the rate shall only warm up; or leave these options out",
        )


def _refuse_beside_function(what: str, given: Mapping[str, object], example: str) -> None:
    if given:
        raise InputError(
            f"a function that makes the {what} decides its options itself",
            needed="no options beside it",
            got=", ".join(f"{name} {value}" for name, value in given.items()),
            repair=f"give them in the function: lambda {example}",
        )


def _pattern_text(pattern: object) -> str:
    """Return a pattern of parameters as text; a compiled regular expression has a prefix."""
    return f"{REGEX}{pattern.pattern}" if isinstance(pattern, re.Pattern) else str(pattern)


def _as_mapping(name: str, value: object) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise out_of_range_error(name, "options by name", value)
    return dict(value)


def _given_twice(name: str, first: object, second: object) -> InputError:
    return InputError(
        f"option {name} is given twice", needed="one value", got=f"{first} and {second}", repair=f"give {name} once"
    )
