"""Names that users of PyG and DGL write, accepted beside the documented ones without a warning.

Each is translated where a call enters, once: nothing behind it, and no file that is written, knows it. Names of the
previous version, which do warn, are in `outgrow.core.deprecation`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from outgrow.core.arguments import wrap_calls
from outgrow.core.errors import InputError

Target = TypeVar("Target", bound=Callable[..., Any])


def accept_synonyms(**names: str) -> Callable[[Target], Target]:
    """Decorator of a function or a class, whose keywords (those of the constructor) have other names too.

    Args:
        **names: The documented name of each synonym.
    """

    def decorate(target: Target) -> Target:
        return wrap_calls(target, lambda function: translate_keywords(target.__name__, function, names))

    return decorate


def rename_keys(owner: str, options: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Options by other names.

    Args:
        owner: What the options belong to, for the error.
        options: Value of each option.
        names: The new name of each one that may be among the options.

    Raises:
        InputError: An option is given by both names.
    """
    renamed: dict[str, Any] = {}
    for name, value in options.items():
        new = names.get(name, name)
        if new in renamed:
            raise InputError(
                f"option {new} of {owner} is given twice",
                needed="one value",
                got=", ".join(each for each in options if names.get(each, each) == new),
                repair=f"give {new} only",
            )
        renamed[new] = value
    return renamed


def translate_keywords(
    owner: str, function: Callable[..., Any], names: Mapping[str, str], on_use: Callable[[str], None] | None = None
) -> Callable[..., Any]:
    """Return the function, with other names of its keywords accepted too.

    Args:
        owner: What the keywords belong to, for the error.
        function: The function, or a constructor.
        names: The keyword of each other name.
        on_use: Called with each other name that a call has; None for nothing.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Any:
        used = options.keys() & names.keys()
        if on_use is not None:
            for name in used:
                on_use(name)
        return function(*args, **(rename_keys(owner, options, names) if used else options))

    return call
