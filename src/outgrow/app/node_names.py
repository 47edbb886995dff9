"""Nodes in answers and requests: by their ids and types, where a graph has these, and by their numbers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import numpy as np
import torch
from torch import Tensor

from outgrow.core.errors import InputError
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
    if isinstance(nodes, str):
        return None
    # Series of pandas and arrays of Arrow are no sequences.
    given = nodes if isinstance(nodes, Sequence) else np.asarray(nodes)
    if isinstance(given, np.ndarray) and (given.dtype.kind not in "UOT" or given.ndim != 1):
        return None
    values = given.tolist() if isinstance(given, np.ndarray) else given
    return values if values and all(isinstance(value, str) for value in values) else None


def find_nodes(graph: Graph, nodes: Any, node_type: str | None = None) -> Any:
    """Return the numbers of nodes asked about by ids that are texts, or by numbers, one or several; others as they are.

    Args:
        graph: The graph.
        nodes: A node, or ``[n]`` nodes.
        node_type: Type of these nodes; None for any.

    Raises:
        InputError: The graph keeps no ids, or a node has no such id; likely ones are named.
    """
    many = [nodes] if isinstance(nodes, str | int | np.integer) else nodes
    names = None if isinstance(many, Tensor) else _list_texts(many)
    return many if names is None else graph.index_of(names, node_type=node_type)


def parse_nodes(graph: Graph, texts: Sequence[str], node_type: str | None = None) -> Tensor:
    """Return ``[n]`` int64: the nodes that were written as ids or, where the graph keeps none, as numbers.

    Raises:
        InputError: See `find_nodes`; or a text is no number.
    """
    if graph.ids is not None:
        return graph.index_of(list(texts), node_type=node_type)
    if wrong := [text for text in texts if not (text.isascii() and text.isdecimal())]:
        raise InputError(
            f"the nodes of {graph.name!r} have no ids but their numbers",
            needed=f"numbers from 0 to {graph.num_nodes - 1}",
            got=repr(wrong[0]),
            repair="give the number of the node; or convert the tables with --relabel, which keeps ids",
        )
    return torch.tensor([int(text) for text in texts], dtype=torch.int64)
