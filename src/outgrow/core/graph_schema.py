"""Names that give the numbers in a graph their meaning: what a model that was trained on one needs of another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class GraphSchema:
    """Names of the relations and node types of a graph, in the order of their numbers.

    Attributes:
        relations: Name of each relation; empty if edges have none.
        columns: Number of feature columns of each node type, by its name, in the order of the columns; empty if all
            nodes share the columns.
    """

    relations: tuple[str, ...] = ()
    columns: tuple[tuple[str, int], ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Return the schema as ``config.json`` has it."""
        return {"relations": list(self.relations), "columns": [list(pair) for pair in self.columns]}

    @staticmethod
    def from_record(record: Mapping[str, Any] | None) -> GraphSchema | None:
        """Return the schema of a record; None for a run of a version that recorded none."""
        if record is None:
            return None
        columns = tuple((str(name), int(count)) for name, count in record["columns"])
        return GraphSchema(relations=tuple(record["relations"]), columns=columns)
