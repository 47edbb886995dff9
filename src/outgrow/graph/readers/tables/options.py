"""Options for tables: what their columns mean, and what becomes of what does not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from outgrow.core.errors import InputError

if TYPE_CHECKING:
    from outgrow.graph.readers.source import GraphSource

NODE_ROLES = ("id", "type")
"""Roles that ``columns`` gives to columns of a node table; others are those of edge tables."""
NODE_AND_EDGE_OPTIONS = (
    "label",
    "features",
    "edge_features",
    "time_column",
    "categorical",
    "split",
    "split_seed",
    "split_index",
    "unknown_nodes",
)
"""Options that apply wherever there are tables of nodes and tables of edges, of types too."""
BUILD_OPTIONS = ("inverse_relations", "allow_overlap", "allow_unseen_relations")
"""Options that apply to graphs of every form, since builders meet them."""


@dataclass(frozen=True, kw_only=True)
class TableOptions:
    """Options for the tables of nodes and edges; each applies to some tables only.

    Attributes:
        columns: Column of each role of an edge table, such as ``{"src": "txId1", "weight": "amount"}``, and of the
            roles ``id`` and ``type`` of a node table beside it; ``_`` as a role's column says that it is not read.
            Columns without names are numbered from 0.
        num_nodes: ``V`` of an edge table whose ids number the nodes; None for one more than the largest id.
        relabel: Number the integer ids of an edge table from 0 in ascending order, and keep them as ids.
        label: Columns of a node table with labels; empty for those whose name says so.
        features: Columns of a node table with features; empty for all that are numbers.
        edge_features: Columns of an edge table with features of edges: numbers, lists of numbers, or texts, which are
            categories; ``COLUMN:category`` says so of integers. Empty for none.
        time_column: Column of times, of the node table, the edge table or both; empty for none.
        categorical: What becomes of columns of texts among the features: ``"refuse"``, ``"onehot"`` or ``"hash"``.
        split: Split of the nodes: shares such as ``"0.6,0.2,0.2"``, ``"time:COLUMN:0.6,0.2,0.2"``, ``"files"``, or a
            column; empty for what the tables say.
        split_seed: Seed of a split that is drawn.
        split_index: Which of several splits is chosen.
        unknown_nodes: What becomes of an edge to a node that the node table does not name: ``"refuse"``, ``"add"``
            or ``"drop"``.
        inverse_relations: Add for each edge of relation ``r`` its inverse, of the relation ``r^-1``.
        allow_overlap: Take links to validate and to test on that are training links too, or in both parts.
        allow_unseen_relations: Take them of relations of which there are no training links.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    num_nodes: int | None = None
    relabel: bool = False
    label: tuple[str, ...] = ()
    features: tuple[str, ...] = ()
    edge_features: tuple[str, ...] = ()
    time_column: str = ""
    categorical: str = "refuse"
    split: str = ""
    split_seed: int = 0
    split_index: int = 0
    unknown_nodes: str = "refuse"
    inverse_relations: bool = False
    allow_overlap: bool = False
    allow_unseen_relations: bool = False

    def without_build_options(self) -> TableOptions:
        """Return the options that readers know: those of `BUILD_OPTIONS` apply to graphs of every form."""
        plain = TableOptions()
        return replace(self, **{name: getattr(plain, name) for name in BUILD_OPTIONS})

    def apply_build_options(self, source: GraphSource) -> None:
        """Tell a source what builders are to do."""
        source.adds_inverse_relations = self.inverse_relations
        source.allows_overlap = self.allow_overlap
        source.allows_unseen_relations = self.allow_unseen_relations

    def list_given(self) -> dict[str, Any]:
        """Return the options that are not at their defaults."""
        plain = TableOptions()
        return {
            each.name: value
            for each in fields(self)
            if (value := getattr(self, each.name)) != getattr(plain, each.name)
        }

    def select_for_edges(self) -> TableOptions:
        """Return the options of an edge table beside a node table."""
        columns = {role: name for role, name in self.columns.items() if role not in NODE_ROLES}
        return TableOptions(
            columns=columns,
            edge_features=self.edge_features,
            time_column=self.time_column,
            unknown_nodes=self.unknown_nodes,
        )

    def refuse_all_but(self, known: tuple[str, ...], where: str) -> None:
        """Refuse options that do not apply to a source.

        Raises:
            InputError: An option is given that is not among those known.
        """
        if others := {name: value for name, value in self.list_given().items() if name not in known}:
            raise InputError(
                f"{where} does not take these options",
                needed=f"of the options of tables only {', '.join(known)}" if known else "no options of tables",
                got=", ".join(f"{name}={value!r}" for name, value in others.items()),
                repair="leave them out",
            )


def parse_columns(text: str) -> dict[str, str]:
    """Parse the columns of roles: ``"src=txId1,dst=txId2"`` to ``{"src": "txId1", "dst": "txId2"}``.

    Raises:
        InputError: A part has another form, or a role occurs twice.
    """
    columns: dict[str, str] = {}
    for part in text.split(","):
        role, equals, name = (piece.strip() for piece in part.partition("="))
        if not (role and equals and name) or role in columns:
            raise InputError(
                "the columns cannot be read",
                needed="ROLE=COLUMN,ROLE=COLUMN, such as src=from_id,dst=to_id,weight=amount",
                got=repr(text),
                repair="name a column for each role once",
            )
        columns[role] = name
    return columns
