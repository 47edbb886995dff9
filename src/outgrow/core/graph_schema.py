"""Names that give the numbers in a graph their meaning: what a model that was trained on one needs of another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

MOST_BLOCKS = 255
"""Most node types with dense features in columns of their own: a byte tells the type of a row that is sent."""


class EdgeFeatureColumn(NamedTuple):
    """A column of features of edges, as it was read.

    Attributes:
        name: Its name; of a list of numbers with the place in the list, as ``scores[0]``.
        categories: Name of each category, in the order of their codes; empty if the column is one of numbers.
    """

    name: str
    categories: tuple[str, ...] = ()


def parse_edge_columns(records: Any) -> tuple[EdgeFeatureColumn, ...]:
    """Return the columns of pairs of a name and a list of names, as JSON has them.

    Raises:
        TypeError: Anything else.
    """
    if not isinstance(records, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in records):
        raise TypeError("columns of features of edges that are no pairs")
    for name, categories in records:
        if not isinstance(categories, list) or not all(isinstance(text, str) for text in (name, *categories)):
            raise TypeError("names of columns of features of edges that are no texts")
    return tuple(EdgeFeatureColumn(name, tuple(categories)) for name, categories in records)


def are_columns_of(columns: Sequence[EdgeFeatureColumn], width: int, sizes: Sequence[int]) -> bool:
    """Whether columns are those of features of edges.

    Args:
        columns: The columns.
        width: Number of columns of the features.
        sizes: Number of categories of each, if they are codes; empty otherwise.
    """
    counts = [len(column.categories) for column in columns]
    return counts == list(sizes) if sizes else width == sum(max(1, count) for count in counts)


@dataclass(frozen=True, kw_only=True)
class GraphSchema:
    """Names of the relations, node types and features of edges of a graph, in the order of their numbers.

    Attributes:
        relations: Name of each relation; empty if edges have none.
        columns: Number of feature columns of each node type, by its name, in the order of the columns; empty if all
            nodes share the columns.
        edge_columns: Columns of the features of edges; empty if they have no names.
    """

    relations: tuple[str, ...] = ()
    columns: tuple[tuple[str, int], ...] = ()
    edge_columns: tuple[EdgeFeatureColumn, ...] = ()

    def as_record(self) -> dict[str, Any]:
        """Return the schema as ``config.json`` has it."""
        record: dict[str, Any] = {
            "relations": list(self.relations),
            "columns": [list(pair) for pair in self.columns],
        }
        if self.edge_columns:
            record["edge_columns"] = [[name, list(categories)] for name, categories in self.edge_columns]
        return record

    @staticmethod
    def from_record(record: Mapping[str, Any] | None) -> GraphSchema | None:
        """Return the schema of a record; None for a run of a version that recorded none."""
        if record is None:
            return None
        columns = tuple((str(name), int(count)) for name, count in record["columns"])
        return GraphSchema(
            relations=tuple(record["relations"]),
            columns=columns,
            edge_columns=parse_edge_columns(record.get("edge_columns", [])),
        )
