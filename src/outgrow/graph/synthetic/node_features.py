"""Classes, noisy features and splits of generated nodes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import Ids, LazyMatrix, NodeTableSource
from outgrow.ops.backend import parallel_kernel, prange, serial_kernel
from outgrow.ops.rng import fold_in, hash64, permute_range

_MEANS, _NOISE, _SPLIT = 1, 2, 3
_LOW16, _S16, _S32, _S48 = np.uint64(0xFFFF), np.uint64(16), np.uint64(32), np.uint64(48)
# The sum of four 16-bit numbers has mean 2 * 65535 and this standard deviation.
_MEAN, _DEVIATION = 131070, 37837.2


@dataclass(frozen=True, kw_only=True)
class SyntheticNodes:
    """Classes, features and split of generated nodes.

    Attributes:
        classes: Number of classes, ``C``.
        features: Width of the features, ``D``; 0 for none.
        strength: Length of the mean vector of each class, in standard deviations of the noise; the means of
            two classes are about 1.4 times as far apart. 0 gives pure noise.
        shares: Shares of nodes for training, validation and test; their sum is at most 1.
        labelled_share: Share of the nodes, the first ones, that all of these are drawn from; not below that sum. In a
            block model whose ids are not shuffled they are those of its first communities.
    """

    classes: int
    features: int
    strength: float = 1.0
    shares: tuple[float, float, float] = (0.5, 0.25, 0.25)
    labelled_share: float = 1.0

    def __post_init__(self) -> None:
        if self.classes < 1 or self.features < 0 or self.strength < 0:
            raise InputError(
                "these nodes cannot be generated",
                needed="classes of at least 1, features and strength of at least 0",
                got=f"classes {self.classes}, features {self.features}, strength {self.strength}",
                repair="change the numbers of the node signal",
            )
        if min(self.shares) < 0 or sum(self.shares) > 1 + 1e-9:
            raise InputError(
                "the shares of the split are wrong",
                needed="three shares from 0 to 1 with a sum of at most 1",
                got=f"{self.shares}, sum {sum(self.shares):g}",
                repair="change the shares of training, validation and test",
            )
        if not sum(self.shares) - 1e-9 <= self.labelled_share <= 1:
            raise InputError(
                "the nodes of the split cannot be drawn",
                needed=f"a labelled_share from {sum(self.shares):g}, the sum of the shares of the split, to 1",
                got=f"{self.labelled_share:g}",
                repair="raise labelled_share, or lower the shares of the split",
            )

    def make_node_tables(self, labels: NDArray[np.int32], seed: int) -> NodeTableSource:
        """Return tables of nodes with these labels (``[V]`` int32); features are computed when read."""
        train, val, test = self._draw_split(len(labels), seed)
        rows = SyntheticFeatures(labels=labels, node_spec=self, seed=seed) if self.features else None
        # The names say how many classes there are, even if a small graph has no node of the last one.
        names = tuple(str(label) for label in range(self.classes))
        return NodeTableSource(
            num_nodes=len(labels),
            features=rows,
            labels=labels,
            train=train,
            val=val,
            test=test,
            class_names=names,
        )

    def _draw_split(self, num_nodes: int, seed: int) -> tuple[Ids, Ids, Ids]:
        sizes = [round(share * num_nodes) for share in self.shares]
        nodes = round(self.labelled_share * num_nodes)
        # Rounded shares may add up to more than all nodes.
        ends = np.minimum(np.cumsum(sizes), nodes).tolist()
        key = fold_in(seed, _SPLIT)
        # Ranges of one permutation are disjoint and have exact sizes.
        first, second, third = (permute_range(a, b, nodes, key) for a, b in zip([0, *ends[:2]], ends, strict=True))
        return np.sort(first), np.sort(second), np.sort(third)


class SyntheticFeatures(LazyMatrix):
    """Features computed when read: the mean of a node's class plus noise of standard deviation 1.

    The noise is the sum of four uniform numbers, a pure function of (seed, node, column): a row is the same
    whenever and by however many threads it is read.

    Args:
        labels: ``[V]`` int32, the class of each node.
        node_spec: Width and strength of the features.
        seed: Seed of the features.
    """

    def __init__(self, *, labels: NDArray[np.int32], node_spec: SyntheticNodes, seed: int) -> None:
        self._labels = labels
        self._key = np.uint64(fold_in(seed, _NOISE))
        means = np.zeros((node_spec.classes, node_spec.features), dtype=np.float32)
        no_class = np.zeros(node_spec.classes, dtype=np.int32)
        # The same kernel fills the means: noise around zero, of one row per class.
        _fill_features(0, np.uint64(fold_in(seed, _MEANS)), no_class, np.zeros_like(means), means)
        # Divided by the root of the width: the length of a mean then depends on ``strength`` alone.
        self._means = means * np.float32(node_spec.strength / np.sqrt(node_spec.features))

    @property
    def shape(self) -> tuple[int, int]:
        """``(V, D)``."""
        return len(self._labels), self._means.shape[1]

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type float32."""
        return self._means.dtype

    def read_rows(self, first: int, last: int) -> NDArray[np.float32]:
        """Return rows ``first`` to ``last - 1``: ``[last - first, D]`` float32."""
        labels = self._labels[first:last]
        out = np.empty((len(labels), self.shape[1]), dtype=np.float32)
        _fill_features(first, self._key, labels, self._means, out)
        return out


@parallel_kernel
def _fill_features(
    first: int, key: np.uint64, labels: NDArray[np.int32], means: NDArray[np.float32], out: NDArray[np.float32]
) -> None:
    for i in prange(out.shape[0]):
        row_key = hash64(key, np.uint64(first) + np.uint64(i))
        for f in range(out.shape[1]):
            out[i, f] = means[labels[i], f] + normal_from_hash(hash64(row_key, np.uint64(f)))


@serial_kernel
def normal_from_hash(drawn: np.uint64) -> np.float32:
    """Return a nearly normal number of mean 0 and standard deviation 1 for a hash. For kernels."""
    # By the central limit theorem; logarithms and cosines of an exact method would be much slower.
    total = (drawn & _LOW16) + ((drawn >> _S16) & _LOW16) + ((drawn >> _S32) & _LOW16) + (drawn >> _S48)
    return np.float32((np.int64(total) - _MEAN) / _DEVIATION)
