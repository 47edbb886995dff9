"""The optimizers of torch by name, and groups of parameters by pattern.

Torch wraps the methods of optimizers to exclude them from its compiler, and the first call of one imports
`torch._dynamo`: a second or more at the start of every run, although nothing here is ever compiled. The
classes below are torch's own with these wrappers removed. If torch changes how it wraps methods, the wrappers
stay in place: results are the same, and only the second is lost.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Callable, Iterable, Mapping
from fnmatch import translate
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value, out_of_range_error
from outgrow.training.given_objects import call_maker, refuse_recorded, signature_options, validate_options

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

LR, WEIGHT_DECAY = 0.01, 0.0
"""Defaults, which a function that makes the optimizer does not take."""
REGEX = "regex:"
"""Prefix of a pattern that is a regular expression."""
_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")
# These need a closure that computes the loss several times in a step, or sparse gradients.
_UNSUITED = ("LBFGS", "SparseAdam", "Optimizer")
_HIDDEN = ("params", "lr", "weight_decay")
# A deep model has hundreds of parameters: so many names from the first and from the last are shown.
_ENDS = 6


def _unwrap_methods(kind: type[Kind]) -> type[Kind]:
    """Remove the wrappers from an optimizer's methods; of their effects only `torch.no_grad` is needed."""
    for name in _WRAPPED:
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    setattr(kind, "step", torch.no_grad()(kind.step))  # noqa: B010 - mypy refuses the assignment to a method
    return kind


def _choose_step(parameters: Iterable[Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of Adam; unless they say how a step is made, one pass over each parameter makes it."""
    held = [each for given in parameters for each in (given["params"] if isinstance(given, dict) else [given])]
    fits = all(isinstance(each, Tensor) and each.is_contiguous() and each.is_floating_point() for each in held)
    chosen = any(options.get(name) for name in ("foreach", "differentiable", "capturable")) or "fused" in options
    return {**options} if chosen or not fits else {**options, "fused": True}


def _make_contiguous_gradients(optimizer: torch.optim.Optimizer) -> None:
    """Copy gradients that lie in memory in another order: a fused step reads them as they lie, and would not notice."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and not parameter.grad.is_contiguous():
                parameter.grad = parameter.grad.contiguous()


def _fuse_steps(kind: type[Kind]) -> type[Kind]:
    """Have a class make its steps in one pass over each parameter, unless its options say otherwise."""
    make: Any = kind.__init__
    step: Any = kind.step

    @functools.wraps(make)
    def make_fused(self: Kind, params: Iterable[Any], **options: Any) -> None:
        held = list(params)
        make(self, held, **_choose_step(held, options))

    @functools.wraps(step)
    def step_contiguous(self: Kind, closure: Any = None) -> Any:
        _make_contiguous_gradients(self)
        return step(self, closure)

    for name, method in (("__init__", make_fused), ("step", step_contiguous)):
        setattr(kind, name, method)
    return kind


@_fuse_steps
@_unwrap_methods
class Adam(torch.optim.Adam):
    """`torch.optim.Adam` with the same state, fused unless told otherwise. Steps are not differentiable."""


@_fuse_steps
@_unwrap_methods
class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW` with the same state, fused unless told otherwise. Steps are not differentiable."""


def _list_optimizers() -> dict[str, type[torch.optim.Optimizer]]:
    found = {name: each for name, each in vars(torch.optim).items() if inspect.isclass(each)}
    return {
        name.lower(): kind
        for name, kind in found.items()
        if issubclass(kind, torch.optim.Optimizer) and name not in _UNSUITED
    }


OPTIMIZERS = _list_optimizers()
"""The classes of `torch.optim` that take plain steps, by name in lower case."""


@functools.cache
def _quick_class(name: str) -> type[torch.optim.Optimizer]:
    """Return a class of torch without the wrappers of its methods."""
    own: dict[str, type[torch.optim.Optimizer]] = {"adam": Adam, "adamw": AdamW}
    kind = OPTIMIZERS[name]
    return own.get(name) or _unwrap_methods(type(kind.__name__, (kind,), {"__doc__": kind.__doc__}))


def optimizer_class(choice: object) -> type[torch.optim.Optimizer] | None:
    """Return the class that a choice names or is; None for a function that makes the optimizer."""
    if isinstance(choice, str):
        return _quick_class(choice)
    return choice if isinstance(choice, type) else None


def optimizer_option_names(choice: object) -> set[str]:
    """Return the names of the options of an optimizer, without ``lr`` and ``weight_decay``."""
    kind = optimizer_class(choice)
    return set() if kind is None else set(signature_options(_signature_of(kind), _HIDDEN) or ())


def validate_optimizer_options(owner: str, choice: object, options: Mapping[str, object]) -> None:
    """Check options of an optimizer against its signature.

    Raises:
        InputError: It has no option of a name.
    """
    kind = optimizer_class(choice)
    if kind is not None:
        validate_options(f"optimizer {owner}", options, _signature_of(kind), _HIDDEN)


def _signature_of(kind: type) -> type:
    return next((each for each in OPTIMIZERS.values() if kind.__base__ is each and kind is not each), kind)


def build_optimizer(
    choice: object,
    owner: str,
    model: nn.Module,
    *,
    lr: float,
    weight_decay: float,
    options: Mapping[str, object],
    groups: Mapping[str, Mapping[str, object]],
) -> torch.optim.Optimizer:
    """Make an optimizer of the parameters of a model.

    Args:
        choice: A name, a class, or a function of the parameters (or, with groups, of the list of groups).
        owner: Name of the choice.
        model: The model.
        lr: Learning rate, for a class.
        weight_decay: Weight decay, for a class.
        options: Other options of the class.
        groups: Options of groups of parameters, by pattern: see `group_parameters`.

    Raises:
        InputError: A pattern matches nothing, or the optimizer refuses its arguments.
    """
    refuse_recorded("optimizer", choice)
    # Where vectors of nodes are all there is to train, the optimizer has a parameter without numbers.
    parameters: Any = group_parameters(model, groups) if groups else [*model.parameters()] or [_no_parameter()]
    kind = optimizer_class(choice)
    if kind is not None:
        known = signature_options(_signature_of(kind), ())
        given = {"lr": lr, "weight_decay": weight_decay}
        for name, default in (("lr", LR), ("weight_decay", WEIGHT_DECAY)):
            if known is not None and name not in known and given[name] != default:
                raise InputError(
                    f"optimizer {owner} has no option {name}",
                    needed=f"{name} {default}, which it does not get",
                    got=f"{name} {given[name]}",
                    repair=f"set {name}={default}, or choose another optimizer",
                )
        passed = {name: value for name, value in given.items() if known is None or name in known}
        made = call_maker(f"optimizer {owner}", kind, parameters, **passed, **options)
        _validate_groups(owner, kind, groups)
    else:
        assert callable(choice)
        factory: Callable[..., Any] = choice
        made = call_maker(f"the optimizer of {owner}", factory, parameters)
    _validate_made(made, owner, model)
    return made  # type: ignore[no-any-return]


def _no_parameter() -> nn.Parameter:
    return nn.Parameter(torch.zeros(0))


def load_optimizer_state(optimizer: torch.optim.Optimizer, saved: Mapping[str, Any]) -> None:
    """Load a state into an optimizer as it was saved.

    Torch casts all of it to the dtype of the parameters: numbers such as NAdam's product of momenta would have more
    digits afterwards, and the next steps other bits.
    """
    optimizer.load_state_dict(dict(saved))
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, state in saved["state"].items():
        own = optimizer.state[parameters[index]]
        for name, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() == 0 and own[name].dtype != value.dtype:
                own[name] = value.detach().clone().to(own[name].device)


def group_parameters(model: nn.Module, groups: Mapping[str, Mapping[str, object]]) -> list[dict[str, Any]]:
    """Return the groups of parameters of a model, first those that no pattern matches.

    Args:
        model: The model; patterns match the names of ``named_parameters()``.
        groups: Options of each group by its pattern: a glob such as ``layers.0.*``, or ``regex:`` and a regular
            expression that matches a whole name.

    Raises:
        InputError: A pattern matches no parameter, or two match the same.
    """
    named = dict(model.named_parameters())
    owner: dict[str, str] = {}
    for pattern in groups:
        matches = _compile_pattern(pattern).fullmatch
        found = [name for name in named if matches(name)]
        if not found:
            raise InputError(
                f"the pattern {pattern!r} of param_groups matches no parameter",
                needed=f"a glob, or {REGEX} and a regular expression, of the whole name, of {_list_ends([*named])}",
                got=repr(pattern),
                repair="correct the pattern, or leave the group out",
            )
        for name in found:
            if name in owner:
                raise InputError(
                    f"two patterns of param_groups match the parameter {name}",
                    needed="each parameter in one group",
                    got=f"{owner[name]!r} and {pattern!r}",
                    repair="make one of them narrower",
                )
            owner[name] = pattern
    rest = [value for name, value in named.items() if name not in owner]
    made: list[dict[str, Any]] = [{"params": rest}] if rest else []
    for pattern, options in groups.items():
        made.append({"params": [named[name] for name in named if owner.get(name) == pattern], **options})
    return made


def _list_ends(names: list[str]) -> str:
    few = names if len(names) <= 2 * _ENDS else [*names[:_ENDS], "...", *names[-_ENDS:]]
    return ", ".join(few)


def _compile_pattern(pattern: str) -> re.Pattern[str]:
    if not pattern.startswith(REGEX):
        return re.compile(translate(pattern))
    try:
        return re.compile(pattern.removeprefix(REGEX))
    except re.error as error:
        raise InputError(
            f"the pattern {pattern!r} of param_groups is no regular expression",
            needed=f"a glob, or {REGEX} and a regular expression",
            got=str(error),
            repair="correct the pattern",
        ) from error


def _validate_groups(owner: str, kind: type, groups: Mapping[str, Mapping[str, object]]) -> None:
    for pattern, options in groups.items():
        validate_options(f"optimizer {owner} in group {pattern!r}", options, _signature_of(kind), ("params",))
        # Torch checks the options of an optimizer, but not those of its groups.
        for name in ("lr", "weight_decay"):
            value = options.get(name, 0.0)
            if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < math.inf:
                raise out_of_range_error(f"{name} of group {pattern!r}", "zero or a positive number", value)


def _validate_made(made: object, owner: str, model: nn.Module) -> None:
    """Check what a class or a function of the user has made."""
    if not isinstance(made, torch.optim.Optimizer) or isinstance(made, torch.optim.LBFGS | torch.optim.SparseAdam):
        raise InputError(
            f"{owner} makes no optimizer that can be used here",
            needed="a torch.optim.Optimizer whose step takes no closure and dense gradients",
            got=describe_value(made),
            repair="choose another optimizer",
        )
    held = {id(each) for group in made.param_groups for each in group["params"] if each.numel()}
    if not any(each.numel() for each in model.parameters()):
        return
    if not held or held - {id(parameter) for parameter in model.parameters()}:
        raise InputError(
            f"the optimizer of {owner} is one of other parameters",
            needed="an optimizer of the parameters that the function is given",
            got="parameters that are none of the model's" if held else "no parameters",
            repair="use the argument of the function: lambda params: torch.optim.SGD(params, lr=0.1)",
        )
