"""`check_arguments`: wrong arguments of public functions and constructors end in an `InputError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.validation import to_python_number, validate_choice, validate_types

_TASK_MODULES = ("outgrow.nn.tasks", "outgrow.nn.regression", "outgrow.nn.edge_tasks")
"""Modules of `outgrow.nn` whose classes are names of `outgrow`."""
Target = TypeVar("Target", bound=Callable[..., Any])


def check_arguments(*, unchecked: Collection[str] = ()) -> Callable[[Target], Target]:
    """Decorator of a function, a method or a class: arguments are checked against names and annotations.

    See `bind_arguments` for what is refused. Numbers of NumPy reach the function as Python's. The constructor of
    a subclass is not checked, unless it is that of the class.

    Args:
        unchecked: Names of arguments of any type: the function has a better error for them.
    """

    def decorate(target: Target) -> Target:
        return wrap_calls(target, lambda function: _check_calls(function, _public_name(target), unchecked))

    return decorate


def wrap_calls(target: Target, wrap: Callable[[Callable[..., Any]], Callable[..., Any]]) -> Target:
    """Return a function as ``wrap`` returns it, or a class with its constructor wrapped."""
    if not isinstance(target, type):
        wrapped: Any = wrap(target)
        return wrapped  # type: ignore[no-any-return]
    kind: Any = target
    kind.__init__ = wrap(kind.__init__)
    return target


def bind_arguments(
    name: str,
    signature: inspect.Signature,
    hints: Mapping[str, Any],
    args: tuple[Any, ...],
    options: Mapping[str, Any],
    *,
    unchecked: Collection[str] = (),
) -> None:
    """Check the arguments of a call.

    Args:
        name: What is called, for the error.
        signature: Its signature, without ``self``.
        hints: Annotations, see `validate_types`.
        args: Positional arguments.
        options: Arguments by name.
        unchecked: Names of arguments of any type.

    Raises:
        InputError: An option that the function does not have, a missing one, or a value of the wrong type.
    """
    collected = {each.name for each in signature.parameters.values() if each.kind is each.VAR_KEYWORD}
    if not collected:
        for option in options:
            validate_choice(f"option of {name}", option, signature.parameters)
    try:
        bound = signature.bind(*args, **options).arguments
    except TypeError as error:
        raise InputError(
            f"{name} is called with wrong arguments",
            needed=f"{name}({_show_parameters(signature)})",
            got=str(error),
            repair="give what has no default, and options by name",
        ) from error
    skipped = collected.union(unchecked)
    validate_types({name: value for name, value in bound.items() if name not in skipped}, hints)


def _show_parameters(signature: inspect.Signature) -> str:
    """Return names and defaults, as people write them in a call."""
    shown = []
    for each in signature.parameters.values():
        if each.kind is each.KEYWORD_ONLY and "*" not in shown:
            shown.append("*")
        if each.kind is each.VAR_KEYWORD:
            shown.append(f"**{each.name}")
        elif each.default is each.empty:
            shown.append(each.name)
        else:
            shown.append(f"{each.name}={getattr(each.default, '__name__', None) or repr(each.default)}")
    return ", ".join(shown)


def _check_calls(function: Callable[..., Any], name: str, unchecked: Collection[str]) -> Callable[..., Any]:
    signature = inspect.signature(function)
    is_method = next(iter(signature.parameters), None) == "self"
    signature = signature.replace(parameters=list(signature.parameters.values())[is_method:])
    find_hints = functools.cache(functools.partial(get_type_hints, function))
    # Annotations are evaluated as code: now, if possible, and not while a file is read. A method may name its class,
    # which is not there yet.
    with suppress(NameError):
        find_hints()

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        # ``self`` is among the positional arguments: no option of that name can be taken for it.
        bind_arguments(name, signature, find_hints(), args[is_method:], options, unchecked=unchecked)
        numbers = {key: to_python_number(value) for key, value in options.items()}
        return function(*map(to_python_number, args), **numbers)

    return call


def _public_name(target: Callable[..., Any]) -> str:
    module = target.__module__
    in_nn = module.startswith("outgrow.nn") and module not in _TASK_MODULES
    return f"og.nn.{target.__qualname__}" if in_nn else f"og.{target.__qualname__}"
