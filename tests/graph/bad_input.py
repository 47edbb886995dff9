"""Input that must be refused, with parts of what the error says: what went wrong, and what came."""

from __future__ import annotations

import numpy as np
from scipy.sparse import csr_array

from graph.handmade import Edge
from outgrow.graph.graph import NodeType

NAN, INF = float("nan"), float("inf")


def dense(row, column, value):
    features = np.zeros((40, 3), dtype=np.float32)
    features[row:, column] = value
    return features


def labels(node, label):
    values = np.zeros(40, dtype=np.int64)
    values[node] = label
    return values


BAD_SPARSE = csr_array((np.array([1, INF], "f4"), np.array([0, 2]), np.array([0] * 38 + [1] * 2 + [2])), shape=(40, 3))
BAD_COLUMN = csr_array((np.ones(1, "f4"), np.array([0]), np.array([0] * 40 + [1])), shape=(40, 3))
BAD_COLUMN.indices[0] = 3

BAD_TABLES = [
    ({"features": dense(37, 1, NAN)}, "not finite", "3 NaN or infinite values, the first is nan at node 37, column 1"),
    (
        {"features": dense(39, 2, -INF)},
        "not finite",
        "1 NaN or infinite values, the first is -inf at node 39, column 2",
    ),
    ({"features": BAD_SPARSE}, "not finite", "the first is inf at node 39, column 2"),
    ({"features": BAD_COLUMN}, "sparse features do not fit", "3"),
    ({"features": np.zeros((39, 3))}, "features do not fit", "39 rows"),
    ({"features": np.zeros(40)}, "features do not fit", "[40]"),
    ({"features": np.full((40, 2), "x")}, "features do not fit", "<U1"),
    ({"labels": labels(5, 4)}, "label is out of range", "1 others, the first is 4 at node 5"),
    ({"labels": labels(5, -2), "class_names": ()}, "label is out of range", "the first is -2 at node 5"),
    ({"labels": np.zeros(41, int)}, "labels have the wrong form", "[41]"),
    ({"labels": np.full(40, 0.5)}, "labels cannot be used", "40 others, the first is 0.5 at node 0"),
    ({"labels": np.full((40, 4), 2)}, "multi-label labels are wrong", "160 other values, the first is 2 at node 0"),
    ({"labels": np.ones((40, 3), int)}, "multi-label labels are wrong", "3 columns"),
    ({"labels": labels([3, 7], -1)}, "train has nodes without a label", "2 of 20 nodes without, the first is node 3"),
    ({"val": np.arange(18, 30)}, "train and val overlap", "2 nodes in both, the first is node 18"),
    ({"test": np.arange(29, 40)}, "val and test overlap", "1 nodes in both, the first is node 29"),
    ({"test": np.array([0])}, "train and test overlap", "first is node 0"),
    ({"test": np.array([40, 41])}, "test names nodes outside", "2 others, the first is 40"),
    ({"val": np.array([-1])}, "val names nodes outside", "the first is -1"),
    ({"train": np.array([5, 5, 5])}, "train names a node twice", "2 repetitions, the first is node 5"),
    ({"train": np.array([0.5])}, "train has the wrong form", "float64"),
    ({"train": np.ones(39, bool)}, "mask of the split train has the wrong length", "[39]"),
    ({"train": np.ones((40, 2), np.uint8)}, "train has the wrong form", "[40, 2]"),
    ({"train": np.ones(40, np.int64)}, "mask of another type", "int64"),
    ({"node_types": (NodeType(name="x", first=0, last=39),)}, "node types do not fit", "x 0 to 39"),
]

GOOD = [Edge(0, 1, 0, 1.0)] * 10
BAD_EDGES = [
    (
        [*GOOD, Edge(40, 2), Edge(1, 99)],
        "node that does not exist",
        "2 such of 12 edges, the first is edge 10: 40 -> 2",
    ),
    ([*GOOD, Edge(3, -1)], "node that does not exist", "the first is edge 10: 3 -> -1"),
    ([*GOOD, Edge(0, 1, 2)], "relation is out of range", "1 edges outside, the first is edge 10: relation 2"),
    ([Edge(0, 1, -1), *GOOD], "relation is out of range", "edge 0: relation -1"),
    ([*GOOD, Edge(0, 1, 0, NAN)], "edge weight is not a finite number", "the first is edge 10: nan"),
]
