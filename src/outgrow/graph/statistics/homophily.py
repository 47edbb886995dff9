"""Homophily of a graph: whether edges join nodes of one class."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.statistics.edges import EdgeSample
from outgrow.graph.topology import Topology
from outgrow.ops.backend import as_numpy, serial_kernel


class ClassEdgeCounts(NamedTuple):
    """Edges by the classes of their ends; without self-loops, and without edges of which a class is unknown.

    Attributes:
        same: ``[C]`` int64, edges between two nodes of each class.
        by_src: ``[C]`` int64, edges by the class of the source.
        by_dst: ``[C]`` int64, edges by the class of the destination.
    """

    same: NDArray[np.int64]
    by_src: NDArray[np.int64]
    by_dst: NDArray[np.int64]


class Homophily(NamedTuple):
    """Three measures, each 1 if edges join equal classes only.

    Attributes:
        edge: Share of edges whose ends have the same class (Zhu et al., NeurIPS 2020).
        class_insensitive: The mean over classes of how much more of their in-edges come from the same class than the
            share of nodes that are of it, at least 0 (Lim et al., NeurIPS 2021, eq. 1).
        adjusted: The share of edges, less what is expected of the degrees of each class, scaled so that 0 is what
            chance gives (Platonov et al., NeurIPS 2023); NaN if all ends are of one class.
    """

    edge: float
    class_insensitive: float
    adjusted: float


def count_class_edges(topology: Topology, labels: NDArray[Any], num_classes: int) -> ClassEdgeCounts:
    """Count all edges by the classes of their ends.

    Args:
        topology: In-edges; may be mapped.
        labels: ``[V]`` integer, -1 where unknown.
        num_classes: ``C``.
    """
    counts = np.zeros((3, num_classes), np.int64)
    _count_class_edges(as_numpy(topology.indptr), as_numpy(topology.indices), labels, counts)
    return ClassEdgeCounts(*counts)


def count_sampled_class_edges(sample: EdgeSample, labels: NDArray[Any], num_classes: int) -> ClassEdgeCounts:
    """Count the edges of a sample by the classes of their ends."""
    src, dst = labels[sample.src], labels[sample.dst]
    known = (src >= 0) & (dst >= 0) & (sample.src != sample.dst)
    src, dst = src[known], dst[known]
    return ClassEdgeCounts(*(np.bincount(each, minlength=num_classes) for each in (src[src == dst], src, dst)))


def measure_homophily(edges: ClassEdgeCounts, class_sizes: NDArray[np.int64]) -> Homophily | None:
    """Return measures of homophily; None without an edge between nodes of known class.

    Args:
        edges: Edges by the classes of their ends.
        class_sizes: ``[C]`` int64, nodes of each class.
    """
    total = int(edges.by_dst.sum())
    if not total:
        return None
    share = float(edges.same.sum() / total)
    expected = float((((edges.by_src + edges.by_dst) / (2 * total)) ** 2).sum())
    # A class without edges adds nothing, as in PyG's `homophily`.
    own = edges.same / np.maximum(1, edges.by_dst)
    above = np.maximum(0, own - class_sizes / max(1, class_sizes.sum())).sum()
    return Homophily(
        edge=share,
        class_insensitive=float(above / max(1, len(class_sizes) - 1)),
        adjusted=(share - expected) / (1 - expected) if expected < 1 else float("nan"),
    )


@serial_kernel
def _count_class_edges(
    indptr: NDArray[np.int64], indices: NDArray[Any], labels: NDArray[Any], counts: NDArray[np.int64]
) -> None:
    for v in range(len(indptr) - 1):
        label = labels[v]
        if label < 0:
            continue
        for e in range(indptr[v], indptr[v + 1]):
            other = labels[indices[e]]
            # A self-loop says nothing: its ends always agree.
            if other < 0 or indices[e] == v:
                continue
            counts[1, other] += 1
            counts[2, label] += 1
            if other == label:
                counts[0, label] += 1
