"""Labels by class and by part of the split."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.graph.graph import Graph
from outgrow.ops.backend import as_numpy

_BLOCK = 1 << 20


def mark_labelled(graph: Graph, nodes: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.bool_]:
    """Return ``[n]`` bool: which of some nodes have a label.

    Of several classes a node always has one, even if it is zeros only; of several numbers of a regression one is
    enough.
    """
    assert graph.labels is not None
    labels = as_numpy(graph.labels)[nodes]
    known = np.asarray(~np.isnan(labels) if graph.has_targets else labels >= 0)
    return known if known.ndim == 1 else np.asarray(known.any(1))


def count_labelled(graph: Graph) -> int:
    """Return the number of nodes that have a label; see `mark_labelled`."""
    if graph.labels is None:
        return 0
    return sum(
        int(mark_labelled(graph, slice(first, first + _BLOCK)).sum()) for first in range(0, graph.num_nodes, _BLOCK)
    )


def count_classes(graph: Graph, parts: Mapping[str, NDArray[np.int64] | slice]) -> dict[str, NDArray[np.int64]]:
    """Return ``[C]`` int64 for each part: how many of its nodes have each class. Empty without classes.

    Args:
        graph: The graph.
        parts: Nodes of each part, by name.
    """
    if graph.labels is None or graph.has_targets:
        return {}
    labels = as_numpy(graph.labels)
    return {name: _count_part(labels, nodes, graph.num_classes) for name, nodes in parts.items()}


def _count_part(labels: NDArray[Any], nodes: NDArray[np.int64] | slice, num_classes: int) -> NDArray[np.int64]:
    counts = np.zeros(num_classes, np.int64)
    given = range(*nodes.indices(len(labels))) if isinstance(nodes, slice) else nodes
    # In blocks: labels may be mapped, and a copy of all would be as large as they are.
    for first in range(0, len(given), _BLOCK):
        part = given[first : first + _BLOCK]
        some = labels[part.start : part.stop] if isinstance(part, range) else labels[part]
        counts += some.sum(0, dtype=np.int64) if some.ndim == 2 else _count_values(some, num_classes)
    return counts


def _count_values(labels: NDArray[Any], num_classes: int) -> NDArray[np.int64]:
    return np.bincount(labels[labels >= 0], minlength=num_classes)
