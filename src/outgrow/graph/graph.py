"""Records of a graph: `Graph`, `Split` and `NodeType`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.graph.edge_types import find_edge_types
from outgrow.graph.graph_part import GraphPart
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.store.mapped_files import MappedFiles
from outgrow.graph.topology import Topology
from outgrow.graph.type_labels import (
    TypeLabels,
    check_target_names,
    has_labels,
    join_type_labels,
    label_fields,
    mark_ranges,
)
from outgrow.ops.csc import make_edge_index
from outgrow.ops.owned_rows import NodeFeatures, held_rows


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class NodeType:
    """A node type, which covers the ids ``first`` to ``last - 1``.

    Attributes:
        name: Its name.
        first: Its first node.
        last: The node after its last one.
        num_columns: Number of its own feature columns, which follow those of the types before it; 0 if all types
            share the columns.
    """

    name: str
    first: int
    last: int
    num_columns: int = 0


@check_arguments()
@dataclass(frozen=True, kw_only=True, eq=False)
class Split:
    """Node ids for training, validation and test; sorted, unique, disjoint.

    Attributes:
        train: ``[n]`` int64.
        val: ``[n]`` int64; may be empty.
        test: ``[n]`` int64; may be empty.
    """

    train: Tensor
    val: Tensor
    test: Tensor

    @staticmethod
    def empty() -> Split:
        """Return an empty split: the graph can be inspected, but not trained on."""
        none = torch.empty(0, dtype=torch.int64)
        return Split(train=none, val=none, test=none)

    def restrict_to_ranges(self, ranges: Sequence[tuple[int, int]]) -> Split:
        """Return the nodes of the split that are in some ranges of ids, each from its first to before its last."""
        parts = {name: nodes[mark_ranges(nodes, ranges)] for name, nodes in vars(self).items()}
        return Split(**parts)


@dataclass(frozen=True, kw_only=True)
class GraphOrigin:
    """What the arrays of a graph were made of.

    Attributes:
        read: What was read, and where from: pairs such as ``("labels", "nodes.csv, column kind")``.
        unread: Names of columns, keys and attributes that were not read.
    """

    read: tuple[tuple[str, str], ...] = ()
    unread: tuple[str, ...] = ()


@check_arguments()
@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A graph with features, labels and a split of its nodes. Arrays may be memory-mapped.

    Attributes:
        name: Name in messages and reports.
        topology: In-edges of every node.
        features: ``[V, D]`` floating, or sparse rows or blocks of that shape; None if nodes have no features.
        labels: ``[V]`` integer, -1 where unknown; or ``[V, C]`` uint8 zeros and ones (multi-label); or ``[V]`` or
            ``[V, K]`` floating, NaN where unknown (regression); None without, or with ``type_labels``.
        split: Node ids of training, validation and test.
        num_classes: ``C``, the number of outputs of a model: classes, or targets of a regression, of all types together
            with ``type_labels``; 0 without labels.
        class_names: Name of each class, or empty.
        relation_names: Name of each relation, or empty.
        node_types: Ranges of node ids in order; empty if all nodes have one type.
        ids: Id of each node in the tables that the graph was made of; None if these number nodes from 0.
        splits: All splits of the nodes that the graph comes with, ``split`` among them; empty if that is the only one.
        held_out_links: Links to validate and test on that the graph comes with; None if they are drawn of its edges.
        type_labels: Labels of at least two node types that each have labels of their own: see `select_targets`; empty
            where ``labels`` are those of all nodes.
        part: The part of a graph that this is, with features of its own nodes alone; None for a whole graph.
        origin: What the arrays were made of.
        files: The files that its arrays may be mapped from.
        store: The store that all arrays are mapped from; None for a graph made or changed in memory.
        selected_from: The graph that targets were selected of; None if none were, or if this one was changed since.
    """

    name: str
    topology: Topology
    features: NodeFeatures | None = None
    labels: Tensor | None = None
    split: Split = field(default_factory=Split.empty)
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    relation_names: tuple[str, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    ids: NodeIds | None = None
    splits: tuple[Split, ...] = ()
    held_out_links: HeldOutLinks | None = None
    type_labels: tuple[TypeLabels, ...] = ()
    part: GraphPart | None = None
    origin: GraphOrigin = field(default_factory=GraphOrigin)
    files: MappedFiles = field(default_factory=lambda: MappedFiles({}))
    # Without init, so that `dataclasses.replace` drops it: a changed graph no longer comes from its store.
    store: Path | None = field(default=None, init=False)
    selected_from: Graph | None = field(default=None, init=False)

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return self.topology.num_nodes

    @property
    def num_edges(self) -> int:
        """``E``, number of directed edges."""
        return self.topology.num_edges

    @property
    def num_features(self) -> int:
        """``D``; 0 without features."""
        return 0 if self.features is None else self.features.shape[1]

    @property
    def num_relations(self) -> int:
        """Number of relations; 0 if edges have no type."""
        return len(self.relation_names)

    @property
    def type_borders(self) -> tuple[int, ...]:
        """``[T + 1]``: the first node of each type, and ``V``; empty if all nodes have one type."""
        return (*(kind.first for kind in self.node_types), self.num_nodes) if self.node_types else ()

    @cached_property
    def types(self) -> GraphTypes:
        """Node types and relations, as modules per type match them; one type ``node`` if all nodes have one.

        Raises:
            InputError: The edges of a relation are between nodes of several types.
        """
        kinds = self.node_types or (NodeType(name="node", first=0, last=self.num_nodes),)
        columns = (*accumulate((kind.num_columns for kind in kinds[:-1]), initial=0), self.num_features)
        names, borders = tuple(kind.name for kind in kinds), (*(kind.first for kind in kinds), self.num_nodes)
        return GraphTypes(
            names=names,
            borders=borders,
            columns=columns,
            edge_types=find_edge_types(self.topology, self.relation_names, names, borders),
            has_own_columns=any(kind.num_columns for kind in kinds),
        )

    @property
    def edge_features(self) -> Tensor | None:
        """``[E, De]`` features of the edges, in the order of `edge_index`; see `Topology`."""
        return self.topology.edge_features

    @property
    def edge_attr(self) -> Tensor | None:
        """`edge_features`, as PyG calls them."""
        return self.topology.edge_features

    @property
    def num_edge_features(self) -> int:
        """Inputs that the features of an edge are to a layer; 0 if edges have none (see `Edges.num_features`)."""
        return self.topology.block.edges.num_features

    @property
    def edge_time(self) -> Tensor | None:
        """``[E]`` int64 times of the edges, in the order of `edge_index`; see `Topology`."""
        return self.topology.edge_time

    @property
    def node_time(self) -> Tensor | None:
        """``[V]`` int64 times of the nodes; see `Topology`."""
        return self.topology.node_time

    @property
    def multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels is not None and self.labels.dim() == 2 and not self.has_targets

    @property
    def has_targets(self) -> bool:
        """Whether labels are numbers to predict, targets of a regression, and no classes."""
        return self.labels is not None and self.labels.is_floating_point()

    @property
    def sparse(self) -> bool:
        """Whether features are sparse rows, or dense ones of types with columns of their own: not one dense matrix."""
        return self.features is not None and not isinstance(held_rows(self.features), Tensor)

    def index_of(self, names: Sequence[str] | Sequence[int], *, node_type: str | None = None) -> Tensor:
        """Return ``[n]`` int64: the nodes that have some ids, in their order.

        Args:
            names: Ids, as in the tables that the graph was made of.
            node_type: Type of these nodes; None for any.

        Raises:
            InputError: The graph keeps no ids, no node or several nodes have an id, or there is no such type.
        """
        if self.ids is None:
            raise InputError(
                f"the nodes of {self.name!r} have no ids but their numbers",
                needed="a graph made of tables with ids",
                got=f"nodes numbered from 0 to {self.num_nodes - 1}",
                repair="give the numbers themselves",
            )
        ranges = {kind.name: (kind.first, kind.last) for kind in self.node_types}
        return self.ids.index_of(names, ranges, node_type)

    def select_split(self, index: int) -> Graph:
        """Return the graph with another of its `splits`; the arrays are shared.

        Raises:
            InputError: There is no such split.
        """
        splits = self.splits or (self.split,)
        if not 0 <= index < len(splits):
            raise InputError(
                f"{self.name!r} has no split {index}",
                needed=f"0 to {len(splits) - 1}",
                got=str(index),
                repair="choose one of these",
            )
        return replace(self, split=splits[index])

    @property
    def target_types(self) -> tuple[str, ...]:
        """The node types that have labels; empty if nodes have no types."""
        if self.type_labels or self.labels is None:
            return tuple(each.name for each in self.type_labels)
        return tuple(kind.name for kind in self.node_types if has_labels(self.labels[kind.first : kind.last]))

    @cached_property
    def task_labels(self) -> Tensor | None:
        """``labels``; or ``[V, 1 + L]`` of types with labels of their own: see `join_type_labels`."""
        if not self.type_labels:
            return self.labels
        return join_type_labels(self.type_labels, {kind.name: kind.first for kind in self.node_types}, self.num_nodes)

    def select_targets(self, names: str | Sequence[str]) -> Graph:
        """Return the graph with the labels of some node types alone; arrays of nodes and edges are shared.

        Of one type, ``labels`` are its labels, unknown for other nodes. Of several, each has labels of its own, and a
        model has outputs for each of them, one type after the other. Nodes of other types are in no part of a split.

        Args:
            names: One type, or several.

        Raises:
            InputError: There is no such type, it has no labels, or a name is given twice.
        """
        wanted = (names,) if isinstance(names, str) else tuple(names)
        check_target_names(wanted, self.target_types, [kind.name for kind in self.node_types], self.name)
        if wanted == tuple(each.name for each in self.type_labels):
            return self
        kinds = {kind.name: kind for kind in self.node_types}
        chosen = tuple(self._labels_of_type(kinds[name]) for name in wanted)
        ranges = [(kinds[name].first, kinds[name].last) for name in wanted]
        split, *splits = (each.restrict_to_ranges(ranges) for each in (self.split, *self.splits))
        labels = label_fields(chosen, ranges[0][0], self.num_nodes)
        made = replace(self, **labels, split=split, splits=tuple(splits))
        object.__setattr__(made, "selected_from", self.whole)
        return made

    @property
    def whole(self) -> Graph:
        """The graph, or the one that its targets were selected of: all but labels and splits are the same."""
        return self if self.selected_from is None else self.selected_from

    def _labels_of_type(self, kind: NodeType) -> TypeLabels:
        if self.labels is None:
            return next(each for each in self.type_labels if each.name == kind.name)
        own = self.labels[kind.first : kind.last]
        return TypeLabels(name=kind.name, labels=own, num_classes=self.num_classes, class_names=self.class_names)

    @property
    def x(self) -> NodeFeatures | None:
        """`features`, as PyG calls them."""
        return self.features

    @property
    def y(self) -> Tensor | None:
        """`labels`, as PyG calls them."""
        return self.labels

    @property
    def edge_index(self) -> Tensor:
        """``[2, E]`` int64: sources above destinations, as PyG has them; 16 bytes an edge, made anew each time.

        Edges are sorted by destination, then by source, then by relation: the order of ``topology.relation`` and
        ``topology.weight``.
        """
        return make_edge_index(self.topology.block.edges)

    @property
    def train_mask(self) -> Tensor:
        """``[V]`` bool: the nodes of ``split.train``, as PyG has them; made anew each time."""
        return self._make_mask(self.split.train)

    @property
    def val_mask(self) -> Tensor:
        """``[V]`` bool: the nodes of ``split.val``, as PyG has them; made anew each time."""
        return self._make_mask(self.split.val)

    @property
    def test_mask(self) -> Tensor:
        """``[V]`` bool: the nodes of ``split.test``, as PyG has them; made anew each time."""
        return self._make_mask(self.split.test)

    def _make_mask(self, nodes: Tensor) -> Tensor:
        return torch.zeros(self.num_nodes, dtype=torch.bool).index_fill_(0, nodes, True)

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges, {self.num_features} features)"
