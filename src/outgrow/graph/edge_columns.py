"""Columns of features of edges, matched by the names of columns and categories and never by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy

_SHOWN = 5


def align_edge_columns(topology: Topology, wanted: Sequence[EdgeFeatureColumn], where: str) -> Topology:
    """Return a graph with the columns of features and the codes of another; warn if that changes any.

    Nothing is changed where one of both has no names. The result is in memory where something changes.

    Args:
        topology: The graph.
        wanted: Columns of the other graph.
        where: Name of the graph, for messages.

    Raises:
        InputError: A column is missing or unknown, or a category is unknown.
    """
    own, features = topology.feature_columns, topology.edge_features
    if not own or not wanted or own == tuple(wanted) or features is None:
        return topology
    require_same_columns(own, wanted, where)
    warn_about_data(
        f"the features of the edges of {where!r} have another order or other codes than in training, and were matched "
        "by name"
    )
    if topology.feature_sizes:
        rows = match_edge_columns(as_numpy(features), own, wanted)
        sizes = tuple(len(column.categories) for column in wanted)
        return replace(
            topology, edge_features=torch.from_numpy(rows), feature_sizes=sizes, feature_columns=tuple(wanted)
        )
    # Each category beside numbers is a column of its own; those that do not occur are zeros.
    names = _list_expanded(wanted)
    place = torch.tensor([names.index(name) for name in _list_expanded(own)])
    made = features.new_zeros(len(features), len(names)).index_copy_(1, place, features)
    return replace(topology, edge_features=made, feature_columns=tuple(wanted))


def match_edge_columns(
    rows: NDArray[Any], own: Sequence[EdgeFeatureColumn], wanted: Sequence[EdgeFeatureColumn]
) -> NDArray[Any]:
    """Return ``[n, C]`` features with the columns in another order, and the codes of the categories of the same names.

    Args:
        rows: ``[n, C]`` numbers and codes, a column for each of ``own``.
        own: Their columns.
        wanted: The same columns with the codes and the order that are wanted, as `require_same_columns` checks.
    """
    names = [column.name for column in own]
    coded = all(column.categories for column in wanted)
    made = np.empty_like(rows, dtype=np.int32 if coded else rows.dtype)
    for at, column in enumerate(wanted):
        values, given = rows[:, names.index(column.name)], own[names.index(column.name)]
        number = {name: code for code, name in enumerate(column.categories)}
        table = np.array([number[name] for name in given.categories])
        made[:, at] = table[values.astype(np.int64)] if column.categories else values
    return made


def require_same_columns(own: Sequence[EdgeFeatureColumn], wanted: Sequence[EdgeFeatureColumn], where: str) -> None:
    """Refuse columns that are not those of another graph, or categories that it does not know.

    Raises:
        InputError: A column is missing or unknown, or a category is unknown.
    """
    names, others = [column.name for column in own], [column.name for column in wanted]
    kinds = {column.name: bool(column.categories) for column in wanted}
    changed = [column.name for column in own if kinds.get(column.name) not in (None, bool(column.categories))]
    if sorted(names) != sorted(others) or changed:
        got = f"numbers or categories, other than there, in {', '.join(changed[:_SHOWN])}" if changed else None
        raise InputError(
            f"the features of the edges of {where} are not those of the graph that they must fit",
            needed=f"the columns {', '.join(others)}, in any order",
            got=got or f"{', '.join(names) or 'none'}",
            repair="name these columns: --edge-features; or leave it out for a model that reads no features of edges",
        )
    known = {column.name: set(column.categories) for column in wanted}
    for column in own:
        if unknown := [name for name in column.categories if name not in known[column.name]]:
            raise InputError(
                f"the column {column.name} of the edges of {where} has categories that are not known",
                needed=f"categories among {', '.join(sorted(known[column.name])[:20])}: a trained model has parameters "
                "for each",
                got=f"{len(unknown)} others, such as {', '.join(map(repr, unknown[:_SHOWN]))}",
                repair="leave these edges out, or convert all of the tables together and train anew",
            )


def _list_expanded(columns: Sequence[EdgeFeatureColumn]) -> list[tuple[str, str]]:
    return [(column.name, category) for column in columns for category in column.categories or ("",)]
