"""Old names of what users write: they work for one more version, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from outgrow.core.errors import InputError

C = TypeVar("C", bound=type)


def warn_renamed(old: str, new: str, stacklevel: int = 3) -> None:
    """Warn that a name has been replaced by another.

    Args:
        old: The name that was used.
        new: The name to use.
        stacklevel: Frames between this function and the user's code, itself included.
    """
    warnings.warn(f"{old} is now called {new}; the old name goes in the next version", DeprecationWarning, stacklevel)


def rename_options(**new_names: str) -> Callable[[C], C]:
    """Let a dataclass accept options, and give attributes, by their old names too.

    Args:
        **new_names: The new name of each old one.
    """

    def decorate(kind: C) -> C:
        described = cast(Any, kind)  # a class gets other attributes, which no type can say
        construct = described.__init__

        @functools.wraps(construct)
        def accept_old_names(self: object, **options: object) -> None:
            construct(self, **translate_options(new_names, options, warn=True))

        described.__init__ = accept_old_names
        for old, new in new_names.items():
            setattr(described, old, _make_alias(old, new))
        described.RENAMED_OPTIONS = new_names
        return kind

    return decorate


def _make_alias(old: str, new: str) -> property:
    def read_new_name(self: object) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    return property(read_new_name, doc=f"Return `{new}`, with a warning.")


def translate_options(
    new_names: Mapping[str, str], options: Mapping[str, Any], *, warn: bool = False
) -> dict[str, Any]:
    """Return options by their new names, in the order in which they were given.

    Args:
        new_names: The new name of each old one.
        options: Value of each option, by its old or its new name.
        warn: Whether to warn of old names: not when a file of an older version is read.

    Raises:
        InputError: An option is given by both of its names.
    """
    translated: dict[str, Any] = {}
    for name, value in options.items():
        new = new_names.get(name, name)
        if new != name and new in options:
            raise InputError(
                f"option {new} is given twice, once by its old name {name}",
                needed=f"{new} once",
                got=f"{name} and {new}",
                repair=f"leave {name} out",
            )
        if new != name and warn:
            warn_renamed(name, new, stacklevel=4)
        translated[new] = value
    return translated
