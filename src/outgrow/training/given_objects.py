"""Objects of torch that options name or hold: classes, functions that make them, and their options by signature."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value, validate_choice

_RECORD = "given_as"


@dataclass(frozen=True)
class RecordedObject:
    """An object that a run was given from Python, as ``config.json`` has it: by its name alone.

    Attributes:
        name: Module and qualified name of the object.
    """

    name: str


class Choice(NamedTuple):
    """What an option chooses.

    Attributes:
        value: A name, a class that has none, a function that makes the object, or a `RecordedObject`.
        options: Options that a `functools.partial` of a class has brought.
    """

    value: Any
    options: Mapping[str, object]


def read_choice(option: str, value: object, named: Mapping[str, type], base: tuple[type, ...]) -> Choice:
    """Return what an option chooses, by its name where it has one.

    Args:
        option: Name of the option.
        value: A name, a class, a partial of a class, a function, or what `record_choice` returned.
        named: Classes by name.
        base: Classes that a class must be one of.

    Raises:
        InputError: There is no such name, or the value is none of these.
    """
    if isinstance(value, str):
        # By a name's letters alone: "SGD" is what the class is called.
        name = next((each for each in named if each.lower() == value.lower()), value)
        validate_choice(option, name, named)
        return Choice(name, {})
    if isinstance(value, Mapping) and set(value) == {_RECORD}:
        return Choice(RecordedObject(str(value[_RECORD])), {})
    if isinstance(value, RecordedObject):
        return Choice(value, {})
    if isinstance(value, functools.partial) and isinstance(value.func, type) and not value.args:
        return Choice(read_choice(option, value.func, named, base).value, dict(value.keywords))
    if isinstance(value, type) and issubclass(value, base):
        return Choice(next((name for name, kind in named.items() if kind is value), value), {})
    if isinstance(value, base):
        raise InputError(
            f"option {option} is an object that exists already",
            needed=f"its class, or a function that makes it: every worker makes the {option} of its own model",
            got=describe_value(value),
            repair=f"give the class with its options, or {option}=lambda ...: {type(value).__name__}(...)",
        )
    if not callable(value) or isinstance(value, type):
        raise InputError(
            f"option {option} is not understood",
            needed=f"a name ({', '.join(sorted(named))}), a class of torch, or a function that makes the object",
            got=describe_value(value),
            repair=f"correct {option}",
        )
    return Choice(value, {})


def record_choice(value: object) -> object:
    """Return what ``config.json`` has of a choice: its name, or that of the object."""
    if value is None or isinstance(value, str):
        return value
    return {_RECORD: describe_choice(value)}


def describe_choice(value: object) -> str:
    """Return the name of a choice."""
    if isinstance(value, str):
        return value
    if isinstance(value, RecordedObject):
        return value.name
    kind = value if isinstance(value, type) or inspect.isroutine(value) else type(value)
    return f"{kind.__module__}.{kind.__qualname__}"


def refuse_recorded(option: str, value: object) -> None:
    """Refuse an object of which only the name is known.

    Raises:
        InputError: It is one.
    """
    if isinstance(value, RecordedObject):
        raise InputError(
            f"the {option} of this run was given as an object in Python",
            needed=f"the object, which a file of a run does not hold: {value.name}",
            got="its name alone",
            repair=f"go on from Python: og.train(..., {option}=..., resume=True)",
        )


def signature_options(kind: type, hidden: Collection[str]) -> dict[str, inspect.Parameter] | None:
    """Return the options of a class by name; None if it takes any."""
    parameters = inspect.signature(kind).parameters
    if any(each.kind is each.VAR_KEYWORD for each in parameters.values()):
        return None
    return {name: each for name, each in parameters.items() if name not in hidden}


def validate_options(owner: str, options: Mapping[str, object], kind: type, hidden: Collection[str]) -> None:
    """Check that a class has options of these names.

    Raises:
        InputError: One is unknown; the message offers the nearest names.
    """
    known = signature_options(kind, hidden)
    if known is not None:
        for name in options:
            validate_choice(f"option of {owner}", name, known)


def call_maker(what: str, make: Callable[..., Any], *args: object, **options: object) -> Any:
    """Call a class of torch or a function of the user.

    Raises:
        InputError: It refuses its arguments.
    """
    try:
        return make(*args, **options)
    except InputError:
        raise
    except (TypeError, ValueError, RuntimeError, KeyError) as error:
        raise InputError(
            f"{what} cannot be made",
            needed="options that it accepts",
            got=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}",
            repair="correct its options",
        ) from error
