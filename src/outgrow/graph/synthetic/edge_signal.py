"""Generated graph whose labels hang on features of edges: without them, neighbours say nothing.

Every node has one of ``C`` kinds, which its features show, and independently one of ``C`` classes. One in-edge in ``C``
is marked, at random, and comes from a node whose kind is the class of the destination; all others come from nodes of
other kinds, each equally often. So the kind of a neighbour is uniform whatever the class, and only features of edges,
which show the mark, tell which neighbours to believe.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.synthetic.node_features import SyntheticFeatures, SyntheticNodes, normal_from_hash
from outgrow.ops.backend import parallel_kernel, prange
from outgrow.ops.rng import as_int64, fold_in, hash64, uniform01

_CHUNK_EDGES = 1 << 20
_EDGES, _LABELS = 41, 42
_CLASSES, _FEATURES, _EDGE_FEATURES, _DEGREE = 4, 16, 8, 16
_NODE_STRENGTH, _EDGE_STRENGTH = 4.0, 3.0
_LEAST_SCALE, _LARGEST_SCALE = 5, 28


class EdgeSignal(GraphSource):
    """Graph of ``2 ** scale`` nodes with 16 in-edges each, 16 features, 8 features of edges and 4 classes. Final.

    Each edge is a function of its number.

    Args:
        scale: Logarithm of the number of nodes, to base 2: 5 to 28.
        seed: Seed of the generator.

    Raises:
        InputError: The scale is out of range.
    """

    def __init__(self, *, scale: int, seed: int = 0) -> None:
        if not _LEAST_SCALE <= scale <= _LARGEST_SCALE:
            raise InputError(
                f"edge-signal-{scale} cannot be generated",
                needed=f"a scale of {_LEAST_SCALE} to {_LARGEST_SCALE}",
                got=f"{scale}, that is {2**scale:,} nodes",
                repair="write another number",
            )
        self._scale = scale
        self._seed = seed

    @property
    def name(self) -> str:
        """``edge-signal-SCALE``."""
        return f"edge-signal-{self._scale}"

    def read_tables(self) -> NodeTableSource:
        """Return features that show the kind of a node, labels, and a split: half, a quarter, a quarter."""
        spec = SyntheticNodes(classes=_CLASSES, features=_FEATURES, strength=_NODE_STRENGTH)
        kinds = (np.arange(1 << self._scale) % _CLASSES).astype(np.int32)
        tables = spec.make_node_tables(self._draw_labels(), self._seed)
        return replace(tables, features=SyntheticFeatures(labels=kinds, node_spec=spec, seed=self._seed))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges with their features, about a million at a time."""
        labels, key = self._draw_labels(), np.uint64(fold_in(self._seed, _EDGES))
        num_edges = _DEGREE << self._scale
        for first in range(0, num_edges, _CHUNK_EDGES):
            count = min(_CHUNK_EDGES, num_edges - first)
            src = np.empty(count, dtype=np.int64)
            features = np.empty((count, _EDGE_FEATURES), dtype=np.float32)
            _draw_marked_edges(key, first, labels, src, features)
            yield EdgeChunk(src=src, dst=np.arange(first, first + count) // _DEGREE, features=features)

    def _draw_labels(self) -> NDArray[np.int32]:
        labels = np.empty(1 << self._scale, dtype=np.int32)
        _draw_uniform_labels(np.uint64(fold_in(self._seed, _LABELS)), labels)
        return labels


@parallel_kernel
def _draw_uniform_labels(key: np.uint64, labels: NDArray[np.int32]) -> None:
    for node in prange(len(labels)):
        labels[node] = as_int64(hash64(key, np.uint64(node)) % np.uint64(_CLASSES))


@parallel_kernel
def _draw_marked_edges(
    key: np.uint64, first: int, labels: NDArray[np.int32], src: Ids, features: NDArray[np.float32]
) -> None:
    shift = _EDGE_STRENGTH / np.sqrt(_EDGE_FEATURES)
    for i in prange(len(src)):
        edge = hash64(key, np.uint64(first) + np.uint64(i))
        label = labels[(first + i) // _DEGREE]
        is_marked = uniform01(hash64(edge, np.uint64(0))) * _CLASSES < 1
        other = 1 + as_int64(hash64(edge, np.uint64(1)) % np.uint64(_CLASSES - 1))
        kind = label if is_marked else (label + other) % _CLASSES
        # Nodes of a kind are equal modulo the number of kinds.
        place = as_int64(hash64(edge, np.uint64(2)) % np.uint64(len(labels) // _CLASSES))
        src[i] = place * _CLASSES + kind
        for f in range(_EDGE_FEATURES):
            noise = normal_from_hash(hash64(edge, np.uint64(3 + f)))
            features[i, f] = noise + (shift if is_marked else -shift)
