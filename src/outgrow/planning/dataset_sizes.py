"""The sizes of a graph, as far as costs depend on them."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from outgrow.engine.features.cache import mean_row_bytes
from outgrow.graph.graph import Graph
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.owned_rows import held_rows
from outgrow.ops.sparse import SparseRows
from outgrow.planning.aggregation_sizes import count_edges_by_relation, count_pairs


@dataclass(frozen=True, kw_only=True)
class DatasetSizes:
    """The sizes of a graph.

    Attributes:
        nodes: ``V``.
        edges: ``E``, without the self-loops that layers add.
        features: Columns of raw features ``D``.
        feature_bytes: Bytes of a raw feature as it is stored.
        row_entries: Mean number of stored entries in a row of raw features: ``D``, or fewer in sparse rows.
        row_bytes: Mean bytes of a row of raw features as it is stored.
        sparse: Whether raw features are sparse rows.
        in_blocks: Whether they are dense, of node types with columns of their own.
        train: Number of training nodes.
        classes: Columns of the logits.
        resident_bytes: Bytes of the graph in the memory of the process that reads it; 0 if it is in a store.
        label_bytes: Bytes of the label of a node.
        val: Number of validation nodes.
        test: Number of test nodes.
        edge_features: Columns of features of edges ``De``; 0 if there are none, or no layer reads them.
        edge_feature_bytes: Bytes of a feature of an edge as it is stored.
        type_nodes: Number of nodes of each type; empty if all have one.
        relation_edges: Number of edges of each relation; empty if edges have none.
        pairs: Number of pairs of relation and destination that have edges; 0 if edges have no relation.
        target_nodes: Nodes from the first to the last of those to train on: of the types that have targets.
        target_edges: In-edges of these.
        is_weighted: Whether edges have weights.
    """

    nodes: int
    edges: int
    features: int
    feature_bytes: int
    row_entries: float
    row_bytes: float
    sparse: bool
    train: int
    classes: int
    resident_bytes: int = 0
    label_bytes: int = 8
    val: int = 0
    test: int = 0
    type_nodes: tuple[int, ...] = ()
    relation_edges: tuple[int, ...] = ()
    edge_features: int = 0
    edge_feature_bytes: int = 0
    pairs: int = 0
    target_nodes: int = 0
    in_blocks: bool = False
    target_edges: int = 0
    is_weighted: bool = False

    @property
    def edge_row_bytes(self) -> int:
        """Bytes of the features of an edge."""
        return self.edge_features * self.edge_feature_bytes


def dataset_sizes(graph: Graph) -> DatasetSizes:
    """Return the sizes of a loaded graph with features and labels."""
    assert graph.features is not None
    # Of a part, its own rows stand for all.
    features = held_rows(graph.features)
    entries = features.shape[1] if isinstance(features, Tensor) else features.num_values / max(1, len(features))
    return DatasetSizes(
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        feature_bytes=features.dtype.itemsize,
        row_entries=entries,
        row_bytes=mean_row_bytes(features),
        sparse=isinstance(features, SparseRows),
        in_blocks=isinstance(features, BlockRows),
        train=len(graph.split.train),
        classes=graph.num_classes,
        resident_bytes=0 if graph.whole.store is not None else count_resident_bytes(graph),
        val=len(graph.split.val),
        test=len(graph.split.test),
        label_bytes=_label_bytes(graph),
        edge_features=0 if graph.edge_features is None else graph.edge_features.shape[1],
        edge_feature_bytes=0 if graph.edge_features is None else graph.edge_features.itemsize,
        type_nodes=tuple(kind.last - kind.first for kind in graph.node_types),
        relation_edges=count_edges_by_relation(graph),
        pairs=count_pairs(graph),
        is_weighted=graph.topology.weight is not None,
        **_count_targets(graph),
    )


def _count_targets(graph: Graph) -> dict[str, int]:
    train = graph.split.train
    if not len(train):
        return {}
    first, last = int(train.min()), int(train.max()) + 1
    indptr = graph.topology.indptr
    return {"target_nodes": last - first, "target_edges": int(indptr[last] - indptr[first])}


def _label_bytes(graph: Graph) -> int:
    labels = graph.task_labels
    return 8 if labels is None else labels.nbytes // max(1, len(labels))


def count_resident_bytes(graph: Graph) -> int:
    """Return the bytes of features and topology in memory."""
    rows = 0 if graph.features is None else round(graph.num_nodes * mean_row_bytes(held_rows(graph.features)))
    times = graph.topology.node_time
    return rows + graph.topology.edge_bytes + (0 if times is None else times.nbytes)
