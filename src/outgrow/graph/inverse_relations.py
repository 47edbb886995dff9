"""Names of inverse relations: for each relation ``r`` its inverse, ``r^-1``, behind all relations of a graph."""

from __future__ import annotations

from outgrow.core.errors import InputError

_SHOWN = 3


def name_inverses(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the name of the inverse of each relation."""
    return tuple(f"{name}^-1" for name in names)


def has_inverses(names: tuple[str, ...]) -> bool:
    """Whether there are relations, and each of the second half is the inverse of one of the first, in their order."""
    half = len(names) // 2
    return bool(names) and names[half:] == name_inverses(names[:half])


def list_forward_relations(names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the relations that are no inverses of others: the first half; of no relations none.

    Raises:
        InputError: The graph has relations, but no inverse of each.
    """
    if names and not has_inverses(names):
        raise InputError(
            "the graph has relations without inverses",
            needed="a graph that was converted with --undirected or --inverse-relations, as the new edges are to be",
            got=f"relations {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}",
            repair="append with --directed",
        )
    return names[: len(names) // 2]
