"""Validation of option names, types and ranges."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from numbers import Integral, Real
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from outgrow.core.errors import InputError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a string", type(None): "null"}


def validate_types(options: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Check each option against its annotation. Options with no annotation, or not a plain type, pass.

    Raises:
        InputError: A value has another type.
    """
    for name, value in options.items():
        kinds = _accepted_types(hints.get(name))
        if kinds and not any(_is_of_type(value, kind) for kind in kinds):
            raise InputError(
                f"option {name} has a value of the wrong type",
                needed=" or ".join(_WORDS[kind] for kind in kinds),
                got=repr(value),
                repair=f"correct the value of {name}",
            )


def validate_positive(owner: str, **options: int | None) -> None:
    """Check that options are at least 1, or None.

    Args:
        owner: Name of the component that the options belong to.
        **options: Value of each option.

    Raises:
        InputError: An option is less than 1.
    """
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(
                f"option {name} of {owner} is out of range",
                needed="at least 1",
                got=str(value),
                repair=f"give {name} a positive number, or leave it out",
            )


def _accepted_types(hint: Any) -> tuple[type, ...]:
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return kinds if all(kind in _WORDS for kind in kinds) else ()


def _is_of_type(value: object, kind: type) -> bool:
    # `bool` is a subclass of `int`, but true is not a number of epochs.
    if isinstance(value, bool):
        return kind is bool
    # Numbers of NumPy are numbers too.
    numbers: dict[type, type] = {int: Integral, float: Real}
    return isinstance(value, numbers.get(kind, kind))


T = TypeVar("T")


def validate_choice(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """Return the choice with a name.

    Raises:
        InputError: There is no such name; the message offers the nearest ones.
    """
    if name in choices:
        return choices[name]
    near = difflib.get_close_matches(str(name), list(choices), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "choose one of the names above"
    raise InputError(
        f"unknown {kind} {name!r}", needed=f"one of {', '.join(sorted(choices))}", got=repr(name), repair=hint
    )
