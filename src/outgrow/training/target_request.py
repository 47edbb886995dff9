"""The node types that are asked to be predicted, with tasks and loss weights, and the relations of links."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice, validate_types
from outgrow.nn.tasks import NODE_TASKS


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


def parse_task(given: object) -> str | dict[str, str] | None:
    """Return the name of a task of nodes, or those of several node types by the names of these.

    Args:
        given: ``"regression"``; or ``"paper=classification,author=regression"``, or a mapping of types to names.

    Raises:
        InputError: There is no such task, or a type is given twice or has no name.
    """
    if not isinstance(given, Mapping):
        validate_types({"task": given}, {"task": str | None})
    if given is None:
        return None
    if isinstance(given, str) and "=" not in given:
        validate_choice("task", given, dict.fromkeys(NODE_TASKS))
        return given
    if isinstance(given, Mapping):
        pairs = [(str(name), task) for name, task in given.items()]
    else:
        parts = [text.partition("=") for text in str(given).split(",")]
        pairs = [(name.strip(), task.strip()) for name, _, task in parts]
    names = [name for name, _ in pairs]
    if not names or not all(names) or len({*names}) < len(names) or not all(isinstance(task, str) for _, task in pairs):
        raise InputError(
            "the tasks of node types are not understood",
            needed="node types, each once, with names of tasks: paper=classification,author=regression",
            got=repr(given)[:80],
            repair="correct --task (task)",
        )
    for name, task in pairs:
        validate_choice(f"task of {name}", str(task), dict.fromkeys(NODE_TASKS))
    return {name: str(task) for name, task in pairs}


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
