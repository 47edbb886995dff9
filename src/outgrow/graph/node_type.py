"""Types of nodes: ranges of ids."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class NodeType:
    """A type of node: the ids ``first`` to ``last - 1`` are of it."""

    name: str
    first: int
    last: int
