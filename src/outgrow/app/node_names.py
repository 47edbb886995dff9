"""Nodes in answers and requests: by their ids and types, where a graph has these, and by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
from torch import Tensor

from outgrow.graph.graph import Graph
from outgrow.graph.node_ids import ArrowArray


@final
class NodeNames:
    """Columns that name the nodes of a graph.

    Args:
        graph: The graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._ids = graph.ids
        self._types = graph.node_types

    def make_columns(self, nodes: Tensor) -> dict[str, ArrowArray]:
        """Return the columns of some nodes: ``node``, ``id`` if the graph has ids, and ``type`` if it has types.

        Args:
            nodes: ``[k]`` int64.
        """
        import pyarrow as pa

        numbers = nodes.numpy()
        columns: dict[str, ArrowArray] = {"node": pa.array(numbers)}
        if self._ids is not None:
            columns["id"] = self._ids.take_arrow(numbers)
        if self._types:
            borders = np.array([kind.last for kind in self._types])
            names = pa.array([kind.name for kind in self._types], pa.string())
            # Of types without nodes, whose range is empty, none is found.
            columns["type"] = names.take(np.searchsorted(borders, numbers, side="right"))
        return columns


def find_named_nodes(graph: Graph, nodes: Any) -> Any:
    """Return the numbers of nodes that were given by ids that are texts; anything else as it is.

    Args:
        graph: The graph.
        nodes: ``[n]`` nodes in any form; a sequence or an array of texts is looked up, numbers are not.

    Raises:
        InputError: The graph keeps no ids, or a node has no such id.
    """
    if nodes is None or isinstance(nodes, Tensor):
        return nodes
    names = _list_texts(nodes)
    return nodes if names is None else graph.index_of(names)


def _list_texts(nodes: Any) -> Sequence[str] | None:
    if isinstance(nodes, np.ndarray) and nodes.dtype.kind not in "UOT":
        return None
    values = nodes.tolist() if hasattr(nodes, "tolist") else nodes
    if isinstance(values, str) or not isinstance(values, Sequence) or not values:
        return None
    return values if all(isinstance(value, str) for value in values) else None
