"""Old names of what users write: they work for one more version, with a `DeprecationWarning`."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

from outgrow.core.errors import InputError

C = TypeVar("C", bound=type)

RENAMED_CONV_MEMBERS = {
    "weigh": "edge_weight",
    "both": "source_and_target",
    "summing_first": "aggregate_first",
    "late_bias": "epilogue_bias",
    "takes_sparse": "accepts_sparse",
    "takes_half": "accepts_half",
}
RENAMED_STRATEGY_MEMBERS = {
    "takes_batches": "uses_minibatches",
    "share": "shard_graph",
    "method": "partition_method",
    "home": "parameter_device",
    "require": "validate_graph",
    "require_model": "validate_model",
}
"""Members that a user's class may override, by the names that they had in the version before."""


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
            setattr(described, old, make_alias(old, new))
        described.RENAMED_OPTIONS = new_names
        return kind

    return decorate


def adopt_renamed_members(kind: type, new_names: Mapping[str, str]) -> None:
    """Give a user's class what it defines by old names by the new ones too, with a `DeprecationWarning`.

    Without this a method of an old name would never be called, and nobody would be told.
    """
    for old, new in new_names.items():
        if old in vars(kind):
            warn_renamed(f"{kind.__name__}.{old}", new, stacklevel=4)
            setattr(kind, new, vars(kind)[old])


def make_alias(old: str, new: str) -> property:
    """Make an attribute that reads and writes another, with a `DeprecationWarning`."""

    def read_new_name(self: object) -> Any:
        warn_renamed(old, new)
        return getattr(self, new)

    def write_new_name(self: object, value: object) -> None:
        warn_renamed(old, new)
        setattr(self, new, value)

    return property(read_new_name, write_new_name, doc=f"Read or write `{new}`, with a warning.")


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
