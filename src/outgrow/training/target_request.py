"""The node types that are asked to be predicted, with their loss weights, and the relations of links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outgrow.core.errors import InputError


def parse_targets(given: object) -> dict[str, float] | None:
    """Return the loss weight of each type, in order.

    Args:
        given: ``"paper,author=0.5"``, a sequence of ``NAME`` or ``NAME=WEIGHT``, or weights by name; None for None.

    Raises:
        InputError: A type is given twice or has no name, a weight is not a positive number, or there is no type.
    """
    if given is None:
        return None
    if isinstance(given, Mapping):
        pairs = [(str(name), weight) for name, weight in given.items()]
    else:
        texts = given.split(",") if isinstance(given, str) else given
        if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
            raise _targets_error("node types, as paper,author=0.5 or as a mapping to loss weights", repr(given)[:80])
        pairs = [_parse_pair(text) for text in texts]
    names = [name for name, _ in pairs]
    if not all(names) or not names or len({*names}) < len(names):
        twice = [name for name in names if names.count(name) > 1]
        got = f"{twice[0]} twice" if twice else "no name"
        raise _targets_error("node types, each once, as paper,author=0.5", got)
    made = {}
    for name, weight in pairs:
        if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 < weight < math.inf:
            raise _targets_error("a positive number as loss weight", f"{name} with {weight!r}")
        made[name] = float(weight)
    return made


def parse_relations(given: Sequence[str] | str) -> tuple[str, ...]:
    """Return the names of relations that are given as a sequence, or joined by commas.

    Raises:
        InputError: A name is empty, or given twice.
    """
    names = tuple(name.strip() for name in (given.split(",") if isinstance(given, str) else given))
    if not all(names) or len({*names}) < len(names):
        raise InputError(
            "the relations of links are not understood",
            needed="names of relations, each once, as author__writes__paper",
            got=", ".join(map(repr, names)),
            repair="correct --link-relations (link_relations)",
        )
    return names


def _parse_pair(text: str) -> tuple[str, float | str]:
    name, between, weight = text.strip().partition("=")
    if not between:
        return name.strip(), 1.0
    try:
        return name.strip(), float(weight)
    except ValueError:
        return name.strip(), weight


def _targets_error(needed: str, got: str) -> InputError:
    return InputError("the targets are not understood", needed=needed, got=got, repair="correct --target (targets)")
