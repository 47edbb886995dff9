"""Reader of graphs from arrays in memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_features import require_edge_feature_form
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.conversions import to_weights
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.times import to_times, validate_times


class ArraySource(GraphSource):
    """Source of edges in one array. Final.

    Args:
        edge_index: ``[2, E]`` integer, sources then destinations.
        tables: Tables of the nodes.
        name: Name of the graph.
        relation: ``[E]`` integer; None if edges have no type.
        weight: ``[E]`` real; None if edges have no weight.
        edge_features: ``[E, De]`` floating or integer codes; None if edges have no features.
        edge_time: ``[E]`` times, see `outgrow.graph.readers.times.to_times`; None if edges have no times.
        times_are_dates: Whether times of edges and nodes are those of dates.

    Raises:
        InputError: Arrays of the wrong shape or type.
    """

    def __init__(
        self,
        edge_index: NDArray[Any],
        tables: NodeTableSource,
        *,
        name: str = "graph",
        relation: NDArray[Any] | None = None,
        weight: NDArray[Any] | None = None,
        edge_features: NDArray[Any] | None = None,
        edge_time: NDArray[Any] | None = None,
        times_are_dates: bool = False,
    ) -> None:
        edge_index = np.asarray(edge_index)
        if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
            raise InputError(
                "edge_index has the wrong form",
                needed="integers of shape [2, E]: sources, then destinations",
                got=f"{edge_index.dtype} of shape {list(edge_index.shape)}",
                repair="transpose it if it is [E, 2], and convert ids to integers",
            )
        for what, values, kinds in (("relation", relation, "iu"), ("weight", weight, "fiub")):
            if values is not None and np.asarray(values).dtype.kind not in kinds:
                raise InputError(
                    f"{what} is of another type",
                    needed="integers" if what == "relation" else "numbers",
                    got=f"{np.asarray(values).dtype}",
                    repair=f"convert {what}",
                )
            if values is not None and np.shape(values) != (edge_index.shape[1],):
                raise InputError(
                    f"{what} does not fit the edges",
                    needed=f"shape [{edge_index.shape[1]}], one for each edge",
                    got=f"shape {list(np.shape(values))}",
                    repair=f"give one {what} for each column of edge_index",
                )
        if edge_features is not None:
            require_edge_feature_form(edge_features, edge_index.shape[1])
        self._edge_index = edge_index
        self._tables = tables
        self._name = name
        self._relation = relation
        self._weight = weight
        self._edge_features = edge_features
        times = None if edge_time is None else to_times(edge_time, "edge_time")
        self._times_are_dates = times_are_dates
        self._edge_time = None if times is None else validate_times(times, edge_index.shape[1], "edge")

    @property
    def name(self) -> str:
        """Name as given."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Return the tables as given."""
        return self._tables

    def has_dates(self) -> bool:
        """Return what was given."""
        return self._times_are_dates

    def describe_origin(self) -> GraphOrigin:
        """Return the arguments of `og.from_arrays` that are given."""
        tables = self._tables
        given = {
            "edges": ("edge_index", self._edge_index),
            "relations": ("relation", self._relation),
            "weights": ("weight", self._weight),
            "edge features": ("edge_features", self._edge_features),
            "times of edges": ("edge_time", self._edge_time),
            "times": ("node_time", tables.node_time),
            "features": ("features", tables.features),
            "labels": ("labels", tables.labels),
            **{part: (f"split[{part!r}]", getattr(tables, part)) for part in ("train", "val", "test")},
        }
        read = ((what, f"argument {name}") for what, (name, values) in given.items() if values is not None)
        return GraphOrigin(read=tuple(read))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges in one chunk."""
        yield EdgeChunk(
            src=np.ascontiguousarray(self._edge_index[0], dtype=np.int64),
            dst=np.ascontiguousarray(self._edge_index[1], dtype=np.int64),
            relation=None if self._relation is None else np.asarray(self._relation),
            weight=None if self._weight is None else to_weights(np.asarray(self._weight), "weight of the edges"),
            features=self._edge_features,
            time=self._edge_time,
        )
