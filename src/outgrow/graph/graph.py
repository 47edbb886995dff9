"""Records of a graph: `Graph`, `Split` and `NodeType`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.arguments import check_arguments
from outgrow.graph.store.mapped_files import MappedFiles
from outgrow.graph.topology import Topology
from outgrow.ops.csc import make_edge_index
from outgrow.ops.sparse import SparseRows


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
        return Split(train=_NO_NODES, val=_NO_NODES, test=_NO_NODES)


@check_arguments()
@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """A graph with features, labels and a split of its nodes. Arrays may be memory-mapped.

    Attributes:
        name: Name in messages and reports.
        topology: In-edges of every node.
        features: ``[V, D]`` floating, or sparse rows of that shape; None if nodes have no features.
        labels: ``[V]`` integer, -1 where unknown; or ``[V, C]`` uint8 zeros and ones (multi-label); or ``[V]`` or
            ``[V, K]`` floating, NaN where unknown (regression); None without.
        split: Node ids of training, validation and test.
        num_classes: ``C``, the number of outputs of a model: classes, or targets of a regression; 0 without labels.
        class_names: Name of each class, or empty.
        relation_names: Name of each relation, or empty.
        node_types: Ranges of node ids in order; empty if all nodes have one type.
        files: The files that its arrays may be mapped from.
        store: The store that all arrays are mapped from; None for a graph made or changed in memory.
    """

    name: str
    topology: Topology
    features: Tensor | SparseRows | None = None
    labels: Tensor | None = None
    split: Split = field(default_factory=Split.empty)
    num_classes: int = 0
    class_names: tuple[str, ...] = ()
    relation_names: tuple[str, ...] = ()
    node_types: tuple[NodeType, ...] = ()
    files: MappedFiles = field(default_factory=lambda: MappedFiles({}))
    # Without init, so that `dataclasses.replace` drops it: a changed graph no longer comes from its store.
    store: Path | None = field(default=None, init=False)

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
    def multi_label(self) -> bool:
        """Whether a node may have several labels."""
        return self.labels is not None and self.labels.dim() == 2 and not self.has_targets

    @property
    def has_targets(self) -> bool:
        """Whether labels are numbers to predict, targets of a regression, and no classes."""
        return self.labels is not None and self.labels.is_floating_point()

    @property
    def sparse(self) -> bool:
        """Whether features are stored as sparse rows."""
        return isinstance(self.features, SparseRows)

    @property
    def x(self) -> Tensor | SparseRows | None:
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
        mask = torch.zeros(self.num_nodes, dtype=torch.bool)
        mask[nodes] = True
        return mask

    def __repr__(self) -> str:
        return f"Graph({self.name!r}, {self.num_nodes:,} nodes, {self.num_edges:,} edges, {self.num_features} features)"


_NO_NODES = torch.empty(0, dtype=torch.int64)
