"""`check_arguments`: wrong arguments of public functions and constructors end in an `InputError`."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from typing import Any, TypeVar, get_type_hints

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types

Target = TypeVar("Target", bound=Callable[..., Any])


def check_arguments(*, unchecked: Collection[str] = ()) -> Callable[[Target], Target]:
    """Decorator of a function, a method or a class: arguments are checked against names and annotations.

    See `bind_arguments` for what is refused. A subclass with a constructor of its own is not checked twice.

    Args:
        unchecked: Names of arguments of any type: the function has a better error for them.
    """

    def decorate(target: Target) -> Target:
        if not isinstance(target, type):
            checked: Any = _check_calls(target, _public_name(target), unchecked)
            return checked  # type: ignore[no-any-return]
        made: Any = target
        made.__init__ = _check_calls(made.__init__, _public_name(target), unchecked)
        return target

    return decorate


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
    kinds = {each.kind for each in signature.parameters.values()}
    if inspect.Parameter.VAR_KEYWORD not in kinds:
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
    validate_types({name: value for name, value in bound.items() if name not in unchecked}, hints)


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
    named = list(signature.parameters.values())[1 if is_method else 0 :]
    signature = signature.replace(parameters=named)
    variadic = {each.name for each in named if each.kind is inspect.Parameter.VAR_KEYWORD}

    @functools.cache
    def find_hints() -> dict[str, Any]:
        return {key: hint for key, hint in get_type_hints(function).items() if key not in variadic}

    # Annotations are evaluated as code: now, if possible, and not while a file is read. A method may name its class,
    # which is not there yet.
    with suppress(NameError):
        find_hints()

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        # ``self`` is among the positional arguments: no option of that name can be taken for it.
        given = args[1:] if is_method else args
        bind_arguments(name, signature, find_hints(), given, options, unchecked=unchecked)
        return function(*args, **options)

    return call


def _public_name(target: Callable[..., Any]) -> str:
    module = target.__module__
    return f"og.nn.{target.__qualname__}" if module.startswith("outgrow.nn") else f"og.{target.__qualname__}"
