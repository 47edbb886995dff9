"""`validate_choice` (with nearest match), `validate_types`, `validate_positive`."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from types import UnionType
from typing import Any, TypeVar, get_args, get_origin

from outgrow.core.errors import InputError

_WORDS = {int: "a whole number", float: "a number", bool: "true or false", str: "a word", type(None): "null"}


def validate_types(options: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Check each option against its annotation; options without one, or with one that is no plain type, pass.

    Raises:
        InputError: A value of another type.
    """
    for name, value in options.items():
        kinds = _accepted_types(hints.get(name))
        if kinds and not any(_is_of_type(value, kind) for kind in kinds):
            raise InputError(
                f"option {name} has a value of the wrong kind",
                needed=" or ".join(_WORDS[kind] for kind in kinds),
                got=repr(value),
                repair=f"correct the value of {name}",
            )


def validate_positive(owner: str, **options: int | None) -> None:
    """Check that options are 1 at least, where they are given.

    Args:
        owner: What they are options of.
        **options: Value of each.

    Raises:
        InputError: One of them is less.
    """
    for name, value in options.items():
        if value is not None and value < 1:
            raise InputError(
                f"option {name} of {owner} is out of range",
                needed="1 at least",
                got=str(value),
                repair=f"give {name} a positive number, or leave it out",
            )


def _accepted_types(hint: Any) -> tuple[type, ...]:
    kinds = get_args(hint) if get_origin(hint) is UnionType else (hint,)
    return kinds if all(kind in _WORDS for kind in kinds) else ()


def _is_of_type(value: object, kind: type) -> bool:
    if isinstance(value, bool):
        return kind is bool
    return isinstance(value, (int, float) if kind is float else kind)


T = TypeVar("T")


def validate_choice(kind: str, name: str, choices: Mapping[str, T]) -> T:
    """Return ``choices[name]``.

    Raises:
        InputError: No such name; the nearest ones are offered.
    """
    if name in choices:
        return choices[name]
    near = difflib.get_close_matches(str(name), list(choices), n=3, cutoff=0.5)
    hint = f"did you mean {' or '.join(near)}?" if near else "choose one of the names above"
    raise InputError(
        f"unknown {kind} {name!r}", needed=f"one of {', '.join(sorted(choices))}", got=repr(name), repair=hint
    )
