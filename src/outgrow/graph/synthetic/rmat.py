"""R-MAT graphs, whose skewed degrees follow from four probabilities.

Chakrabarti, Zhan, Faloutsos: R-MAT: a recursive model for graph mining, SDM 2004.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.synthetic.node_features import SyntheticNodes, normal_from_hash
from outgrow.ops.backend import parallel_kernel, prange
from outgrow.ops.rng import fold_in, hash64, permute_value

CHUNK_EDGES = 1 << 20
_EDGES, _NAMES, _LABELS, _FEATURES = 11, 12, 13, 14
_ONE, _LOW32, _S32 = np.uint64(1), np.uint64(0xFFFFFFFF), np.uint64(32)


class RMat(GraphSource):
    """R-MAT generator: ``2 ** scale`` nodes, ``edge_factor`` directed edges per node, with duplicates and self-loops.

    Each edge descends recursively into one quarter of the adjacency matrix. Node ids are shuffled by a keyed
    permutation, so that an id does not reveal a degree. Read it as undirected for a symmetric graph.

    Args:
        scale: Logarithm of the number of nodes, 1 to 40.
        edge_factor: Number of edges per node.
        quarters: Probabilities ``(a, b, c)`` of the upper left, upper right and lower left quarter; the rest
            belongs to the lower right. The defaults are those of the Graph500 benchmark.
        seed: Seed of the generator.
        node_spec: Classes, features and split, independent of the edges; None for nodes without any.
        edge_features: Columns of the features of edges, ``De``: nearly normal float32 numbers of mean 0 and standard
            deviation 1; 0 for none.

    Raises:
        InputError: Scale, edge factor, probabilities or columns out of range.
    """

    def __init__(
        self,
        *,
        scale: int,
        edge_factor: int = 16,
        quarters: tuple[float, float, float] = (0.57, 0.19, 0.19),
        seed: int = 0,
        node_spec: SyntheticNodes | None = None,
        edge_features: int = 0,
    ) -> None:
        numbers = 1 <= scale <= 40 and edge_factor >= 1 and edge_features >= 0
        if not numbers or min(quarters) < 0 or sum(quarters) > 1:
            raise InputError(
                "this R-MAT graph cannot be generated",
                needed="scale 1 to 40, edge factor of at least 1, probabilities a, b, c with a sum of at most 1, and "
                "features of edges of at least 0 columns",
                got=f"scale {scale}, edge factor {edge_factor}, a, b, c = {quarters}, {edge_features} columns",
                repair="change the numbers",
            )
        self._scale = scale
        self._edge_factor = edge_factor
        self._quarters = quarters
        self._seed = seed
        self._node_spec = node_spec
        self._edge_features = edge_features

    @property
    def name(self) -> str:
        """``rmat-SCALE``."""
        return f"rmat-{self._scale}"

    @property
    def num_nodes(self) -> int:
        """``V``."""
        return 1 << self._scale

    @property
    def num_edges(self) -> int:
        """Number of directed edges, including duplicates."""
        return self._edge_factor << self._scale

    def read_tables(self) -> NodeTableSource:
        """Return the number of nodes and, with ``node_spec``, random labels, features and a split."""
        if self._node_spec is None:
            return NodeTableSource(num_nodes=self.num_nodes)
        labels = np.empty(self.num_nodes, dtype=np.int32)
        _draw_random_labels(np.uint64(fold_in(self._seed, _LABELS)), np.uint64(self._node_spec.classes), labels)
        return self._node_spec.make_node_tables(labels, self._seed)

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, about a million at a time, or fewer if they have features."""
        # Limits as integers of 32 bits: the comparison with random bits then needs no floats.
        limits = (np.cumsum(self._quarters) * 2**32).astype(np.uint64)
        edge_key, name_key = (np.uint64(fold_in(self._seed, part)) for part in (_EDGES, _NAMES))
        feature_key, width = np.uint64(fold_in(self._seed, _FEATURES)), self._edge_features
        step = max(1, CHUNK_EDGES // (1 + width))
        for first in range(0, self.num_edges, step):
            count = min(step, self.num_edges - first)
            src = np.empty(count, dtype=np.int64)
            dst = np.empty(count, dtype=np.int64)
            _draw_rmat_edges(first, edge_key, name_key, self._scale, limits, src, dst)
            features = np.empty((count, width), np.float32) if width else None
            if features is not None:
                _draw_edge_features(feature_key, first, features)
            yield EdgeChunk(src=src, dst=dst, features=features)


@parallel_kernel
def _draw_rmat_edges(
    first: int, edge_key: np.uint64, name_key: np.uint64, scale: int, limits: NDArray[np.uint64], src: Ids, dst: Ids
) -> None:
    nodes = _ONE << np.uint64(scale)
    for i in prange(len(src)):
        # A key for each edge: the graph depends neither on the chunks nor on the threads.
        key = hash64(edge_key, np.uint64(first) + np.uint64(i))
        row, column, bits = np.uint64(0), np.uint64(0), np.uint64(0)
        for level in range(scale):
            # One hash serves two levels, 32 bits each.
            bits = bits >> _S32 if level % 2 else hash64(key, np.uint64(level))
            part = bits & _LOW32
            # Quarters a, b, c, d in this order: the lower two have row bit 1, b and d have column bit 1.
            row = (row << _ONE) | np.uint64(part >= limits[1])
            column = (column << _ONE) | np.uint64((limits[0] <= part < limits[1]) or part >= limits[2])
        # The same permutation for both ends: it renames nodes and keeps the structure.
        src[i] = permute_value(row, nodes, name_key)
        dst[i] = permute_value(column, nodes, name_key)


@parallel_kernel
def _draw_edge_features(key: np.uint64, first: int, features: NDArray[np.float32]) -> None:
    for i in prange(len(features)):
        edge_key = hash64(key, np.uint64(first) + np.uint64(i))
        for f in range(features.shape[1]):
            features[i, f] = normal_from_hash(hash64(edge_key, np.uint64(f)))


@parallel_kernel
def _draw_random_labels(key: np.uint64, classes: np.uint64, labels: NDArray[np.int32]) -> None:
    for v in prange(len(labels)):
        labels[v] = hash64(key, np.uint64(v)) % classes
