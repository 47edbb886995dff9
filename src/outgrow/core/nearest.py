"""Look a name up, and offer the nearest ones when it is unknown."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from typing import TypeVar

from outgrow.core.errors import InputError

T = TypeVar("T")


def pick(kind: str, name: str, choices: Mapping[str, T]) -> T:
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
