"""Graphs of NetworkX."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import NodeIds, TextArrays
from outgrow.graph.readers.conversions import as_feature_columns, to_weights
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource

_SPLITS = ("train", "val", "test")
_MOST_ID = 2**63


@final
class NetworkxSource(GraphSource):
    """Source of a graph of any of the four classes of NetworkX; an edge of an undirected one goes both ways.

    Nodes are numbered in the order of ``graph.nodes``; if their names are not these numbers, they are the ids of the
    graph: integers, or texts (``str`` of other names). Attributes of nodes that are read: ``x`` (numbers), ``y``
    (whole number or text, then class names are sorted), ``split`` (``"train"``, ``"val"`` or ``"test"``); of edges:
    ``weight``, ``edge_attr`` (a number, or a list of them) and ``relation`` (whole number or text). Keys of a
    multi-graph are relations if all are texts and there is no ``relation``. A node may lack ``y`` or ``split``;
    everything else is given for all or for none.
    Other attributes are not read, with a warning.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Any) -> None:
        self._graph = graph
        self._relation_names: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Name of the graph, if it has one."""
        return str(getattr(self._graph, "name", "")) or "networkx"

    def read_tables(self) -> NodeTableSource:
        """Return the attributes of the nodes.

        Raises:
            InputError: An attribute that only some nodes have, or of the wrong type.
        """
        nodes: list[dict[str, Any]] = [data for _, data in self._graph.nodes(data=True)]
        train, val, test = self._read_split(nodes)
        labels, class_names = _read_labels(nodes)
        return NodeTableSource(
            num_nodes=len(nodes),
            features=_stack_attribute("x", "nodes", nodes),
            labels=labels,
            train=train,
            val=val,
            test=test,
            class_names=class_names,
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges in one chunk.

        Raises:
            InputError: An attribute that only some edges have, or of the wrong type.
        """
        number = {node: at for at, node in enumerate(self._graph.nodes)}
        ends = np.array([(number[u], number[v]) for u, v in self._graph.edges()], dtype=np.int64).reshape(-1, 2)
        attributes: list[dict[str, Any]] = [data for _, _, data in self._graph.edges(data=True)]
        weight = _stack_attribute("weight", "edges", attributes)
        relation = self._read_relations(attributes)
        features = as_feature_columns(_stack_attribute("edge_attr", "edges", attributes))
        src = ends[:, 0]
        dst = ends[:, 1]
        if not self._graph.is_directed():
            # A self-loop is its own reverse edge.
            back = src != dst
            src, dst = np.concatenate([src, dst[back]]), np.concatenate([dst, src[back]])
            relation = None if relation is None else np.concatenate([relation, relation[back]])
            weight = None if weight is None else np.concatenate([weight, weight[back]])
            features = None if features is None else np.concatenate([features, features[back]])
        yield EdgeChunk(
            src=np.ascontiguousarray(src),
            dst=np.ascontiguousarray(dst),
            relation=relation,
            weight=None if weight is None else to_weights(weight, "weight of the edges"),
            features=features,
        )

    def describe_origin(self) -> GraphOrigin:
        """Return the attributes that are read, and those that are not."""
        nodes = {name for _, data in self._graph.nodes(data=True) for name in data}
        edges = {name for _, _, data in self._graph.edges(data=True) for name in data}
        found = [("edges", "edges of the graph")]
        roles = {"relation": "relations", "weight": "weights", "edge_attr": "edge features"}
        found += [(what, f"edges, attribute {name}") for name, what in roles.items() if name in edges]
        meaning = {"x": "features", "y": "labels", "split": "split"}
        found += [(what, f"nodes, attribute {name}") for name, what in meaning.items() if name in nodes]
        return GraphOrigin(read=tuple(found), unread=self.list_unread())

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the relations that are texts, in the order of their first edges."""
        return self._relation_names

    def read_ids(self) -> NodeIds | None:
        """Return the names of the nodes; None if they are the numbers from 0 in order.

        Raises:
            InputError: Names of nodes of several types that look the same.
        """
        names = list(self._graph.nodes)
        if all(type(name) is int and -_MOST_ID <= name < _MOST_ID for name in names):
            return None if names == list(range(len(names))) else NodeIds.from_integers(np.array(names, np.int64))
        import pyarrow as pa

        texts = [str(name) for name in names]
        if len(set(texts)) < len(texts):
            first = next(text for text in texts if texts.count(text) > 1)
            raise InputError(
                "two nodes have the same name as a text",
                needed="names of nodes that differ as texts",
                got=f"several nodes {first!r}",
                repair="rename the nodes: networkx.relabel_nodes",
            )
        return NodeIds.from_texts(TextArrays.from_arrow(pa.array(texts, pa.large_string())))

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the attributes of nodes, edges and the graph that are not read."""
        nodes = dict.fromkeys(name for _, data in self._graph.nodes(data=True) for name in data)
        edges = dict.fromkeys(name for _, _, data in self._graph.edges(data=True) for name in data)
        return (
            *(f"nodes.{name}" for name in nodes if name not in ("x", "y", "split")),
            *(f"edges.{name}" for name in edges if name not in ("weight", "relation", "edge_attr")),
            *(f"graph.{name}" for name in self._graph.graph if name != "name"),
        )

    def _read_relations(self, attributes: Sequence[dict[str, Any]]) -> NDArray[Any] | None:
        values = [data["relation"] for data in attributes if "relation" in data]
        if not values and self._graph.is_multigraph():
            keys = [key for _, _, key in self._graph.edges(keys=True)]
            values = keys if keys and all(isinstance(key, str) for key in keys) else []
        if values and all(isinstance(value, str) for value in values) and len(values) == len(attributes):
            numbers = {name: at for at, name in enumerate(dict.fromkeys(values))}
            self._relation_names = tuple(numbers)
            return np.array([numbers[value] for value in values], np.int64)
        relation = _stack_attribute("relation", "edges", attributes)
        if relation is not None and relation.dtype.kind not in "iu":
            needed = "a whole number or a text for every edge"
            raise _attribute_error("relation", needed, f"values of type {relation.dtype}")
        return relation

    def _read_split(self, nodes: Sequence[dict[str, Any]]) -> tuple[Ids | None, Ids | None, Ids | None]:
        names = [data.get("split") for data in nodes]
        if unknown := sorted({str(name) for name in names} - {*_SPLITS, "None"}):
            raise _attribute_error("split", "train, val or test, or nothing", ", ".join(unknown))
        if not any(names):
            return None, None, None
        train, val, test = (np.array([at for at, n in enumerate(names) if n == part], np.int64) for part in _SPLITS)
        return train, val, test


def _read_labels(nodes: Sequence[dict[str, Any]]) -> tuple[NDArray[Any] | None, tuple[str, ...]]:
    values = [data.get("y") for data in nodes]
    known = [value for value in values if value is not None]
    if not known:
        return None, ()
    if not all(isinstance(value, str) for value in known):
        # A target that is not known must not become the number -1.
        unknown = np.nan if any(isinstance(value, float | np.floating) for value in known) else -1
        return _as_numbers("y", [unknown if value is None else value for value in values]), ()
    names = sorted(set(known))
    numbers = {name: at for at, name in enumerate(names)}
    return np.array([-1 if value is None else numbers[value] for value in values], np.int64), tuple(names)


def _stack_attribute(name: str, what: str, attributes: Sequence[dict[str, Any]]) -> NDArray[Any] | None:
    values = [data[name] for data in attributes if name in data]
    if not values:
        return None
    if len(values) != len(attributes):
        raise _attribute_error(name, f"a value for all {len(attributes)} {what}, or for none", f"{len(values)} values")
    return _as_numbers(name, values)


def _as_numbers(name: str, values: Sequence[Any]) -> NDArray[Any]:
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise _attribute_error(name, "values of one shape", str(error)) from error
    if array.dtype.kind not in "iufb":
        raise _attribute_error(name, "numbers", f"values of type {array.dtype}")
    return array


def _attribute_error(name: str, needed: str, got: str) -> InputError:
    return InputError(
        f"the attribute {name} cannot be used", needed=needed, got=got, repair="change or remove the attribute"
    )
