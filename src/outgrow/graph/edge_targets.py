"""Targets of edges: a column of their features that is predicted, and which edges it is predicted of.

Letters: ``E`` edges, ``De`` columns of features, ``C`` classes.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.graph.link_split import TEST, TRAIN, VAL, draw_link_parts
from outgrow.graph.link_triples import iterate_in_links
from outgrow.graph.topology import Topology

_CHUNK_EDGES = 1 << 20
UNKNOWN = -1
"""Class of an edge of which none is known."""


class EdgeColumn(NamedTuple):
    """A column of features of edges that is predicted.

    Attributes:
        name: Its name, or its number.
        values: ``[E]`` numbers, NaN where unknown; or int32 codes of categories, -1 where unknown.
        num_categories: ``C``; 0 if the column is one of numbers.
        category_names: Name of each category, or empty.
    """

    name: str
    values: Tensor
    num_categories: int = 0
    category_names: tuple[str, ...] = ()


class EdgeTargetSplit(NamedTuple):
    """Ids of the edges with a known target, each ``[n]`` int64, ascending.

    Attributes:
        train: Those to train on.
        val: Those to validate on.
        test: Those to test on.
    """

    train: Tensor
    val: Tensor
    test: Tensor


class _Place(NamedTuple):
    """Where a column is among those that are stored: ``first`` to ``last - 1``, and its categories."""

    name: str
    first: int
    last: int
    categories: tuple[str, ...]
    size: int


def take_edge_column(topology: Topology, column: str | int, where: str) -> tuple[Topology, EdgeColumn]:
    """Return the graph without a column of the features of its edges, and the column.

    Other columns are copied into memory, if there are any; so are the codes of categories.

    Args:
        topology: The graph.
        column: Name of the column, or its number, from 0.
        where: Name of the graph, for errors.

    Raises:
        InputError: Edges have no features, or no such column.
    """
    features = topology.edge_features
    if features is None:
        raise InputError(
            f"the edges of {where!r} have no features",
            needed=f"a column {column!r} of features of edges to predict",
            got="edges without features",
            repair="bring the target as a feature: --edge-features, or og.from_arrays(..., edge_features=...)",
        )
    places = _list_places(topology)
    place = _find_place(places, column, where)
    kept = [at for each in places if each is not place for at in range(each.first, each.last)]
    rest = replace(
        topology,
        edge_features=features[:, kept] if kept else None,
        feature_sizes=tuple(each.size for each in places if each is not place) if topology.feature_sizes else (),
        feature_columns=tuple(each for each in topology.feature_columns if each.name != place.name),
    )
    if topology.known_time_order is not None:
        rest.adopt_time_order(topology.known_time_order)
    return rest, _read_column(topology, place)


def _list_places(topology: Topology) -> list[_Place]:
    """Return where each column is: beside numbers a category is a column of its own."""
    features, columns, sizes = topology.edge_features, topology.feature_columns, topology.feature_sizes
    assert features is not None
    if not columns:
        each = sizes or (0,) * features.shape[1]
        return [_Place(str(at), at, at + 1, (), size) for at, size in enumerate(each)]
    widths = [1 if sizes else max(1, len(column.categories)) for column in columns]
    firsts = [*accumulate(widths, initial=0)]
    return [
        _Place(column.name, first, first + width, column.categories, len(column.categories))
        for column, first, width in zip(columns, firsts, widths, strict=False)
    ]


def _find_place(places: list[_Place], column: str | int, where: str) -> _Place:
    if isinstance(column, str):
        return validate_choice("column of features of edges", column, {each.name: each for each in places})
    if not 0 <= column < len(places):
        raise InputError(
            f"the edges of {where!r} have no such column",
            needed=f"a number from 0 to {len(places) - 1}, or a name",
            got=f"{column}",
            repair="choose one of the columns of graph.edge_features",
        )
    return places[column]


def _read_column(topology: Topology, place: _Place) -> EdgeColumn:
    features = topology.edge_features
    assert features is not None
    if not place.size:
        return EdgeColumn(place.name, features[:, place.first])
    # A row without a text has a category of its own, whose name is empty.
    known = [name != "" for name in place.categories] or [True] * place.size
    # Code -1 looks up the last entry.
    numbers = [code - known[:code].count(False) if is_known else UNKNOWN for code, is_known in enumerate(known)]
    table = torch.tensor([*numbers, UNKNOWN], dtype=torch.int32)
    codes = torch.empty(len(features), dtype=torch.int32)
    for first in range(0, len(features), _CHUNK_EDGES):
        rows = features[first : first + _CHUNK_EDGES, place.first : place.last]
        found = rows[:, 0].long() if topology.feature_sizes else _find_ones(rows)
        codes[first : first + len(rows)] = table[found]
    names = tuple(name for name in place.categories if name)
    return EdgeColumn(place.name, codes, sum(known), names)


def _find_ones(rows_nC: Tensor) -> Tensor:
    """Return ``[n]`` int64: the column that is one in each row of zeros and ones; -1 if none is."""
    return torch.where(rows_nC.any(1), rows_nC.float().argmax(1), UNKNOWN)


def read_edge_classes(column: EdgeColumn, where: str) -> tuple[Tensor, int]:
    """Return ``[E]`` int32 classes, -1 where unknown, and their number.

    Raises:
        InputError: Numbers are not whole, or negative but for -1; or fewer than two classes occur.
    """
    values, count = column.values, column.num_categories
    if not count:
        whole = torch.where(values.isnan(), UNKNOWN, values)
        wrong = (whole != whole.round()) | (whole < UNKNOWN) | whole.isinf()
        if wrong.any():
            raise InputError(
                f"the column {column.name} of the edges of {where!r} has no classes",
                needed="categories, or whole numbers from 0 on, -1 or NaN where unknown",
                got=f"{int(wrong.sum()):,} other numbers, the first is {whole[wrong][0]:g}",
                repair="predict numbers by og.EdgeRegression, or number the classes",
            )
        values = whole.int()
        count = int(values.max()) + 1 if len(values) else 0
    present = torch.unique(values)
    present = present[present >= 0]
    if len(present) < 2:
        raise InputError(
            f"the column {column.name} of the edges of {where!r} has too few classes",
            needed="edges of at least two classes",
            got="no edge of a known class" if not len(present) else f"all known edges in class {int(present[0])}",
            repair="choose another target",
        )
    return values, count


def read_edge_numbers(column: EdgeColumn, where: str, unknown: float | None = None) -> Tensor:
    """Return ``[E]`` numbers, NaN where unknown.

    Args:
        column: The column.
        where: Name of the graph, for errors.
        unknown: The number that stands for an unknown one; None for NaN alone.

    Raises:
        InputError: The column is one of categories, or a number is infinite.
    """
    if column.num_categories:
        raise InputError(
            f"the column {column.name} of the edges of {where!r} is one of categories, whose codes say nothing",
            needed="a column of numbers",
            got=f"{column.num_categories} categories",
            repair="predict them by og.EdgeClassification, or give floating numbers",
        )
    if column.values.isinf().any():
        raise InputError(
            f"the column {column.name} of the edges of {where!r} has infinite numbers",
            needed="finite numbers, NaN where unknown",
            got=f"{int(column.values.isinf().sum()):,} infinite ones",
            repair="correct them",
        )
    if unknown is None:
        return column.values
    # As the column holds it.
    stands = torch.tensor(unknown).to(column.values)
    return torch.where(column.values == stands, torch.nan, column.values)


def split_edge_targets(topology: Topology, known_E: Tensor, *, val: float, test: float, seed: int) -> EdgeTargetSplit:
    """Split the edges whose targets are known; loops are in no part.

    The part of an edge is a function of (seed, smaller node, larger node), as that of a link: see `split_links`. All
    edges stay in the graph.

    Args:
        topology: In-edges of all nodes.
        known_E: ``[E]`` bool.
        val: Share of the linked pairs of nodes to validate on.
        test: Share of the pairs to test on.
        seed: Seed of the split.

    Raises:
        InputError: A part that was asked for is empty.
    """
    found: dict[int, list[Tensor]] = {part: [torch.empty(0, dtype=torch.int64)] for part in (TRAIN, VAL, TEST)}
    for links, number in iterate_in_links(topology):
        part = draw_link_parts(links, val=val, test=test, seed=seed)
        chosen = known_E[number] & links.non_loop_mask
        for name, ids in found.items():
            ids.append(number[chosen & (part == name)])
    split = EdgeTargetSplit(*(torch.cat(found[part]) for part in (TRAIN, VAL, TEST)))
    asked = {"to train on": split.train} | ({"to validate on": split.val} if val else {})
    asked |= {"to test on": split.test} if test else {}
    if not all(len(ids) for ids in asked.values()):
        raise InputError(
            "there are too few edges with a known target",
            needed=f"edges {', '.join(asked)}, loops excepted",
            got=", ".join(f"{len(ids):,} {what}" for what, ids in asked.items()),
            repair="give more targets, or other val_links and test_links",
        )
    return split
