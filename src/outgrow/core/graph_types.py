"""`GraphTypes`: the types of nodes and edges of a graph, which modules per type are matched with by name."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

EdgeType = tuple[str, str, str]
"""Type of the sources of a relation, its name, and the type of its destinations."""


@dataclass(frozen=True, kw_only=True)
class GraphTypes:
    """Node types, which are ranges of node ids, and relations between them.

    Attributes:
        names: Name of each of ``T`` node types, in the order of their nodes.
        borders: ``[T + 1]``: the first node of each type, and the number of nodes.
        columns: ``[T + 1]``: the first feature column of each type, and the number of columns; zeros, then the number
            of columns, if all types share the columns.
        has_own_columns: Whether types have columns of their own; it need only be said where the last one alone has any.
        edge_types: Type of each of ``R`` relations, in the order of their numbers.
    """

    names: tuple[str, ...]
    borders: tuple[int, ...]
    columns: tuple[int, ...]
    edge_types: tuple[EdgeType, ...]
    has_own_columns: bool = False

    @property
    def num_nodes(self) -> int:
        """Number of nodes of all types."""
        return self.borders[-1]

    @property
    def num_types(self) -> int:
        """``T``."""
        return len(self.names)

    @property
    def num_relations(self) -> int:
        """``R``."""
        return len(self.edge_types)

    @property
    def shares_columns(self) -> bool:
        """Whether all types have the same feature columns."""
        return not self.has_own_columns and not any(self.columns[:-1])

    def type_columns(self, name: str) -> tuple[int, int]:
        """Return the first feature column of a type, and the column after its last one."""
        number = self.names.index(name)
        return (0, self.columns[-1]) if self.shares_columns else (self.columns[number], self.columns[number + 1])

    def type_nodes(self, name: str) -> tuple[int, int]:
        """Return the first node of a type, and the node after its last one."""
        number = self.names.index(name)
        return self.borders[number], self.borders[number + 1]

    def types_of(self, nodes_V: Tensor) -> Tensor:
        """Return ``[V]`` int64: the number of the type of each node."""
        inner = torch.tensor(self.borders[1:-1], dtype=torch.int64, device=nodes_V.device)
        return torch.bucketize(nodes_V.contiguous(), inner, right=True)

    def out_relations(self, name: str) -> tuple[int, ...]:
        """Return the relations whose sources are of a type."""
        return tuple(number for number, (source, _, _) in enumerate(self.edge_types) if source == name)

    def in_relations(self, name: str) -> tuple[int, ...]:
        """Return the relations whose destinations are of a type."""
        return tuple(number for number, (_, _, target) in enumerate(self.edge_types) if target == name)


class RowWidths(NamedTuple):
    """How much is used of a row of each node type: the first columns of each of its parts; the others are zeros.

    Attributes:
        borders: ``[T + 1]``: see `GraphTypes`.
        parts: For each part of a row its number of columns, and ``[T]`` how many of them a type uses.
    """

    borders: tuple[int, ...]
    parts: tuple[tuple[int, tuple[int, ...]], ...]
