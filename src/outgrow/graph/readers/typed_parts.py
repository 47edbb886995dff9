"""Graphs in memory that come in parts: one for each node type, and one for each edge type."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.builders.edge_features import require_edge_feature_form
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.readers.node_parts import NodePart, count_borders, count_nodes, join_node_parts, part_error
from outgrow.graph.readers.npz import iter_array_edges
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.times import NO_TIME

Relation = tuple[str, str, str]
"""Type of the sources, name, type of the destinations."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EdgePart:
    """The edges of one type.

    Attributes:
        relation: Types of both ends and name; None if the graph has but one node type.
        edge_index: ``[2, E]`` integer: sources and destinations, numbered within their types.
        relations: ``[E]`` integer type of each edge, only without ``relation``; None if edges have no type.
        weight: ``[E]`` real; None if edges have no weight.
        features: ``[E, De]`` floating or integer codes; None if edges have no features.
        time: ``[E]`` int64; None if edges have no times.
    """

    relation: Relation | None = None
    edge_index: NDArray[Any]
    relations: NDArray[Any] | None = None
    weight: NDArray[Any] | None = None
    features: NDArray[Any] | None = None
    time: NDArray[np.int64] | None = None


def name_relation(relation: Relation) -> str:
    """Return the name that a graph gives a relation between types: ``author__writes__paper``."""
    return "__".join(relation)


def are_weighted(without: Sequence[str], count: int) -> bool:
    """Whether edges of any type have weights; warn if those of others have none.

    Args:
        without: Names of the edge types without weights.
        count: Number of all edge types.
    """
    if len(without) in (0, count):
        return not without
    warn_about_data(f"edges have weights of some types only: those of {', '.join(without)} get weight 1")
    return True


def check_types_without_features(without: Sequence[str], *, coded: bool) -> None:
    """Warn that edges of some types have no features, which become zeros; refuse it where features are codes.

    Args:
        without: Names of the edge types without features, beside others that have some.
        coded: Whether a feature is a code of a category.

    Raises:
        InputError: There are such types, and zero would be a category.
    """
    if without and coded:
        raise part_error(
            f"features of edges {', '.join(without)}",
            "categories of the edges of all types, or of none",
            "no features",
            "give these edges a category of their own",
        )
    if without:
        warn_about_data(f"edges have features of some types only: those of {', '.join(without)} get zeros")


class TypedPartsSource(GraphSource, ABC):
    """Source of a graph in memory, whose nodes and edges come in parts."""

    @abstractmethod
    def read_node_parts(self) -> list[NodePart]:
        """Return the node types in order; one part if nodes have no types."""

    @abstractmethod
    def read_edge_parts(self) -> Iterator[EdgePart]:
        """Yield the edges of all types in order; without node types all in one part."""

    def read_tables(self) -> NodeTableSource:
        """Return the tables of all nodes; types follow one another.

        Raises:
            InputError: Attributes of the wrong form, or labels of several types that are not of one kind.
        """
        relations = [part.relation for part in self.read_edge_parts() if part.relation]
        return replace(join_node_parts(self._nodes), relation_names=tuple(map(name_relation, relations)))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, type after type; a weight is 1 where only other types have weights, with a warning.

        Features are as wide in all types that have some, and zeros in the others, with a warning.

        Raises:
            InputError: Attributes of the wrong form, or ids outside their type.
        """
        borders = count_borders(self._nodes)
        at = {part.name: number for number, part in enumerate(self._nodes)}
        parts = list(self.read_edge_parts())
        without = [name_relation(part.relation) for part in parts if part.weight is None and part.relation]
        weighted = are_weighted(without, len(parts))
        form = _join_edge_features(parts)
        timed = any(part.time is not None for part in parts)
        for number, part in enumerate(parts):
            if part.relation is None:
                yield from iter_array_edges(
                    part.edge_index, part.relations, part.weight, "the graph", features=part.features, time=part.time
                )
                continue
            where = f"edges {' '.join(part.relation)}"
            _check_edge_index(part.edge_index, where)
            ends = []
            for ids, kind in zip(part.edge_index, (part.relation[0], part.relation[2]), strict=True):
                first, last = borders[at[kind] : at[kind] + 2]
                _check_endpoints(ids, kind, last - first, where)
                ends.append(ids.astype(np.int64) + first)
            index = np.stack(ends)
            num_edges = index.shape[1]
            weight = np.ones(num_edges, np.float32) if weighted and part.weight is None else part.weight
            features = fill_edge_features(part.features, form, num_edges)
            # Edges of a type without times have those of their sources.
            time = np.full(num_edges, NO_TIME) if timed and part.time is None else part.time
            relations = np.full(num_edges, number, np.int32)
            yield from iter_array_edges(index, relations, weight, where, features=features, time=time)

    def describe_origin(self) -> GraphOrigin:
        """Return which types of nodes and edges have what is read, and the attributes that are not read."""
        edges = list(self.read_edge_parts())
        found = {
            "edges": [name_relation(part.relation) if part.relation else "edges" for part in edges],
            "weights": [name_relation(part.relation or ("", "", "")) for part in edges if part.weight is not None],
            "edge features": [
                name_relation(part.relation or ("", "", "")) for part in edges if part.features is not None
            ],
            "times of edges": [name_relation(part.relation or ("", "", "")) for part in edges if part.time is not None],
            "times": [part.name for part in self._nodes if part.time is not None],
            "features": [part.name for part in self._nodes if part.features is not None],
            "labels": [part.name for part in self._nodes if part.labels is not None],
            "split": [part.name for part in self._nodes if any(nodes is not None for nodes in part.split)],
        }
        # Graphs of one type have no names of types.
        read = [(what, ", ".join(names).strip("_") or "the object") for what, names in found.items() if names]
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return None: links are held out of the edges."""
        return None

    @cached_property
    def _nodes(self) -> list[NodePart]:
        """The node parts, each with its count, types that only edges name included."""
        parts = self.read_node_parts()
        if len(parts) == 1 and not parts[0].name:
            return [replace(parts[0], count=count_nodes(parts[0]))]
        edges = list(self.read_edge_parts())
        known = {part.name for part in parts}
        named = dict.fromkeys(end for part in edges if part.relation for end in (part.relation[0], part.relation[2]))
        parts = parts + [NodePart(name=name) for name in named if name not in known]
        return [replace(part, count=_count_typed_nodes(part, edges)) for part in parts]


def _join_edge_features(parts: Sequence[EdgePart]) -> NDArray[Any] | None:
    """Return no rows of the width and type that the features of all edges have; None without features.

    Raises:
        InputError: Features of several widths or kinds, or codes of some types only.
    """
    given = {name_relation(part.relation or ("", "", "")): part.features for part in parts}
    found = {name: rows for name, rows in given.items() if rows is not None}
    for part in parts:
        if part.features is not None:
            name = f"features of edges {' '.join(part.relation)}" if part.relation else "features of edges"
            require_edge_feature_form(part.features, part.edge_index.shape[-1], name)
    if not found:
        return None
    forms = {name: (rows.shape[1], rows.dtype.kind) for name, rows in found.items()}
    if len(set(forms.values())) > 1:
        raise part_error(
            "edge_attr of several edge types",
            "features of one width and one kind in all edge types that have some",
            "; ".join(f"{name} {found[name].dtype} of {width} columns" for name, (width, _) in forms.items()),
            "pad them with zeros to columns for all types: a layer reads the same columns of every edge",
        )
    without = [name for name, rows in given.items() if rows is None]
    check_types_without_features(without, coded=any(kind != "f" for _, kind in forms.values()))
    return np.empty((0, next(iter(forms.values()))[0]), np.result_type(*found.values()))


def fill_edge_features(features: NDArray[Any] | None, form: NDArray[Any] | None, num_edges: int) -> NDArray[Any] | None:
    """Return the features of the edges of one type in the form of those of all types; zeros if it has none.

    Args:
        features: ``[num_edges, De]``; None if the type has none.
        form: ``[0, De]`` of the type of all; None if no type has features.
        num_edges: Number of edges of the type.
    """
    if form is None:
        return None
    if features is None:
        return np.zeros((num_edges, form.shape[1]), form.dtype)
    return features.astype(form.dtype, copy=False)


def _count_typed_nodes(part: NodePart, edges: Sequence[EdgePart]) -> int:
    count = count_nodes(part)
    if count is not None:
        return count
    count = 0
    for each in edges:
        assert each.relation is not None
        _check_edge_index(each.edge_index, f"edges {' '.join(each.relation)}")
        for ids, kind in zip(each.edge_index, (each.relation[0], each.relation[2]), strict=True):
            if kind == part.name:
                count = max(count, int(ids.max(initial=-1)) + 1)
    warn_about_data(
        f"the number of nodes of {part.name} is taken from the largest id in the edges: {count}; give num_nodes if "
        "there are more"
    )
    return count


def _check_edge_index(index: NDArray[Any], where: str) -> None:
    if index.ndim != 2 or len(index) != 2 or index.dtype.kind not in "iu":
        raise part_error(f"edge_index of {where}", "integers of shape [2, E]", f"{index.dtype} of {list(index.shape)}")


def _check_endpoints(ids: NDArray[Any], kind: str, count: int, where: str) -> None:
    # An id too large for its type would silently be a node of the next type.
    bad = ids[(ids < 0) | (ids >= count)]
    if len(bad):
        got = f"{len(bad)} others, the first is {bad[0]}"
        raise part_error(f"edge_index of {where}", f"ids of {kind} from 0 to {count - 1}", got)
