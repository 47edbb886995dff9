"""Validation of option names, types and ranges."""

from __future__ import annotations

import difflib
import math
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from numbers import Integral, Real
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin

from outgrow.core.errors import InputError

_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "a string",
    Path: "a path",
    type(None): "None",
}
_WIDER_TYPES: dict[type, type] = {int: Integral, float: Real, Path: os.PathLike}
_SHOWN = 100
# Two letters at least: one is a drive of Windows.
_ADDRESS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/")


def validate_types(options: Mapping[str, object], hints: Mapping[str, Any]) -> None:
    """Check each option against its annotation.

    That is a class, a function, a sequence of a class, or a union of these. Options with another one, or none, pass.

    Raises:
        InputError: A value has another type.
    """
    for name, value in options.items():
        hint = hints.get(name, Any)
        if not _is_of_type(value, hint):
            raise InputError(
                f"option {name} has a value of the wrong type",
                needed=_describe_type(hint),
                got=describe_value(value),
                repair=f"correct the value of {name}",
            )


def describe_value(value: object) -> str:
    """Return a value as Python writes it, in one line that is not too long."""
    text = " ".join(repr(value).split())
    return text if len(text) <= _SHOWN else f"{text[: _SHOWN - 3]}..."


def to_python_number(value: object) -> object:
    """Return a number or truth value of NumPy as Python's, which JSON can hold; other values as they are."""
    # Without importing NumPy, which takes longer than all else that the command needs to start.
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.number | numpy.bool_) else value


def finite_or_none(value: float) -> float | None:
    """Return a number for a JSON file: None for NaN and infinities, which JSON has not and many parsers refuse."""
    return value if math.isfinite(value) else None


def replace_non_finite(values: Any) -> Any:
    """Return nested dictionaries with None for numbers that are not finite, as JSON needs."""
    if isinstance(values, Mapping):
        return {name: replace_non_finite(each) for name, each in values.items()}
    return finite_or_none(values) if isinstance(values, float) else values


def out_of_range_error(option: str, needed: str, got: object) -> InputError:
    """Return the error of an option whose value has the right type, but is out of range."""
    return InputError(
        f"option {option} is out of range",
        needed=needed,
        got=describe_value(got),
        repair=f"give {option} a value in range",
    )


def require_counts(least: int = 1, /, **counts: int) -> None:
    """Check that each count, such as a width, is at least ``least`` and below 2^31.

    Raises:
        InputError: A count is out of range.
    """
    for name, count in counts.items():
        if not least <= count < 1 << 31:
            raise out_of_range_error(name, f"from {least} to 2^31 - 1", count)


def validate_probability(name: str, p: float) -> None:
    """Check a probability of dropping.

    Raises:
        InputError: It is not in [0, 1).
    """
    if not 0 <= p < 1:
        raise out_of_range_error(name, "in [0, 1)", p)


def require_local_path(path: Path) -> None:
    """Check that a path is no address of a remote file system: a local folder of that name would be made.

    Raises:
        InputError: It is one.
    """
    if match := _ADDRESS.match(str(path)):
        raise InputError(
            f"{path} is not a local path",
            needed="a folder or file of this machine, or of a file system that is mounted on it",
            got=f"an address of {match[1]}",
            repair="write to a local folder, and copy it; give the absolute path of a folder that is really called so",
        )


def validate_positive(owner: str, *, least: int = 1, **options: int | None) -> None:
    """Check that options are at least ``least``, or None.

    Args:
        owner: Name of the component that the options belong to.
        least: The smallest permitted value, 1 or 0.
        **options: Value of each option.

    Raises:
        InputError: An option is less.
    """
    for name, value in options.items():
        if value is not None and value < least:
            raise InputError(
                f"option {name} of {owner} is out of range",
                needed=f"at least {least}",
                got=str(value),
                repair=f"give {name} a {'positive' if least else 'larger'} number, or leave it out",
            )


def _is_of_type(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_is_of_type(value, each) for each in get_args(hint))
    if origin is Callable:
        return callable(value)
    if origin is Sequence:
        [kind] = get_args(hint)
        # Not by `Sequence`, which a `ModuleList` is not.
        if not isinstance(value, Sized) or not isinstance(value, Iterable) or isinstance(value, str | bytes | Mapping):
            return False
        try:
            return all(_is_of_type(each, kind) for each in value)
        except TypeError:  # an array without dimensions
            return False
    if not isinstance(hint, type) or origin is not None or hint in (object, Any):
        return True
    # `bool` is a subclass of `int`, but true is not a number of epochs.
    if isinstance(to_python_number(value), bool):
        return hint is bool
    # Numbers of NumPy are numbers too, and paths of other libraries are paths.
    return isinstance(value, _WIDER_TYPES.get(hint, hint))


def _describe_type(hint: Any) -> str:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return " or ".join(dict.fromkeys(_describe_type(each) for each in get_args(hint)))
    if origin is Callable:
        return "a function"
    if origin is Sequence:
        return f"a sequence, each element {_describe_type(get_args(hint)[0])}"
    return _WORDS.get(hint) or f"an object of class {getattr(hint, '__name__', hint)}"


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
