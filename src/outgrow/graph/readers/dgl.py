"""Reader of DGL graphs, in memory or as `outgrow.graph.readers.dgl_file` reads them; DGL itself is not imported."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, final

import numpy as np

from outgrow.core.errors import InputError
from outgrow.graph.readers.conversions import as_feature_columns
from outgrow.graph.readers.node_parts import NodePart
from outgrow.graph.readers.splits import PARTS
from outgrow.graph.readers.tensors import to_matrix, to_numpy
from outgrow.graph.readers.typed_parts import EdgePart, Relation, TypedPartsSource, name_relation

_FEATURES = ("feat", "feature", "features", "x")
_LABELS = ("label", "labels", "y")
_WEIGHTS = ("weight", "edge_weight", "weights", "w")
_EDGE_FEATURES = ("feat", "feature", "features", "edge_attr", "efeat")
_MASKS = tuple((f"{part}_mask",) for part in PARTS)
_RELATION = ("_TYPE", "etype", "edge_type")
_OLD_NUMBERS = "_ID"
"""Where `dgl.to_homogeneous` and samplers keep the numbers of another graph."""
NO_TYPE = "_N"
"""Name of the node type of a graph without types."""


class DglNodes(NamedTuple):
    """The nodes of one type: its name, their number, and their data by name, arrays or tensors of ``[n, ...]``."""

    name: str
    num_nodes: int
    data: Mapping[str, Any]


class DglEdges(NamedTuple):
    """The edges of one type: canonical type, ``[E]`` sources and destinations, and their data by name."""

    relation: Relation
    src: Any
    dst: Any
    data: Mapping[str, Any]


@final
class DglSource(TypedPartsSource):
    """Source of the node and edge types of a DGL graph. Final.

    Data that is read, the first of these names that is there: of nodes ``feat``, ``feature``, ``features``, ``x``;
    ``label``, ``labels``, ``y``; ``train_mask``, ``val_mask``, ``test_mask``; of edges ``weight``, ``edge_weight``,
    ``weights``, ``w``; ``feat``, ``feature``, ``features``, ``edge_attr``, ``efeat``; and of edges without types
    ``_TYPE`` (as `dgl.to_homogeneous` writes it), ``etype`` or ``edge_type``, the number of the relation. Other data is
    not read, with a warning.

    Args:
        nodes: Node types, in order.
        edges: Edge types, in order.
        name: Name of the graph.
        unread: Names of what is not read besides.
    """

    def __init__(
        self, nodes: Sequence[DglNodes], edges: Sequence[DglEdges], name: str, unread: Sequence[str] = ()
    ) -> None:
        self._unread = list(unread)
        self._nodes_of_types = list(nodes)
        self._edges_of_types = list(edges)
        self._name = name
        self._untyped = len(nodes) == 1 and len(edges) <= 1 and nodes[0].name == NO_TYPE

    @property
    def name(self) -> str:
        """Name as given."""
        return self._name

    def read_node_parts(self) -> list[NodePart]:
        """Return the data of the nodes of each type.

        Raises:
            InputError: Data of the wrong form.
        """
        parts = []
        for kind in self._nodes_of_types:
            train, val, test = (to_numpy(_first(kind.data, names), names[0]) for names in _MASKS)
            parts.append(
                NodePart(
                    name="" if self._untyped else kind.name,
                    count=kind.num_nodes,
                    features=to_matrix(_first(kind.data, _FEATURES), f"features of {kind.name}"),
                    labels=to_numpy(_first(kind.data, _LABELS), f"labels of {kind.name}"),
                    split=(train, val, test),
                )
            )
        return parts

    def read_edge_parts(self) -> Iterator[EdgePart]:
        """Yield the edges of each type.

        Raises:
            InputError: Data of the wrong form.
        """
        if not self._edges_of_types and self._untyped:
            yield EdgePart(edge_index=np.empty((2, 0), np.int64))
        for edges in self._edges_of_types:
            where = f"edges {' '.join(edges.relation)}"
            weight = to_numpy(_first(edges.data, _WEIGHTS), f"weight of {where}")
            ends = [to_numpy(ids, where) for ids in (edges.src, edges.dst)]
            yield EdgePart(
                relation=None if self._untyped else edges.relation,
                edge_index=np.stack([ids for ids in ends if ids is not None]),
                relations=to_numpy(_first(edges.data, _RELATION), where) if self._untyped else None,
                weight=weight[:, 0] if weight is not None and weight.shape[1:] == (1,) else weight,
                features=as_feature_columns(to_numpy(_first(edges.data, _EDGE_FEATURES), f"features of {where}")),
            )

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the data that is not read."""
        unread = [*self._unread]
        for kind in self._nodes_of_types:
            of = "ndata" if self._untyped else kind.name
            unread += _unread_names(of, kind.data, (_FEATURES, _LABELS, *_MASKS))
        for edges in self._edges_of_types:
            of = "edata" if self._untyped else name_relation(edges.relation)
            read = (_WEIGHTS, _EDGE_FEATURES)
            unread += _unread_names(of, edges.data, (*read, _RELATION) if self._untyped else read)
        return tuple(unread)


def open_dgl_graph(graph: Any, name: str = "dgl") -> DglSource:
    """Return the source of a ``DGLGraph``; its tensors are shared.

    Args:
        graph: The graph, of one or several types.
        name: Name of the graph.

    Raises:
        InputError: A block of a sampler, which is no graph.
    """
    if getattr(graph, "is_block", False):
        raise InputError(
            "cannot read a graph from a block of DGL",
            needed="a graph, whose edges lead from nodes to nodes",
            got="a block of one layer, as samplers make it",
            repair="give the graph that was sampled",
        )
    nodes = [DglNodes(kind, int(graph.num_nodes(kind)), graph.nodes[kind].data) for kind in graph.ntypes]
    edges = []
    for relation in graph.canonical_etypes:
        # Ordered by the number of the edge, as its data is.
        src, dst = graph.edges(etype=relation, order="eid")
        edges.append(DglEdges(tuple(relation), src, dst, graph.edges[relation].data))
    return DglSource(nodes, edges, name)


def _first(data: Mapping[str, Any], names: Sequence[str]) -> Any:
    return next((data[name] for name in names if name in data), None)


def _unread_names(of: str, data: Mapping[str, Any], read: Sequence[Sequence[str]]) -> list[str]:
    taken = {next((name for name in names if name in data), "") for names in read}
    return [f"{of}.{name}" for name in data if name not in taken and name != _OLD_NUMBERS]
