"""Requests for outputs of a model: the nodes, the layers and the workers, all of them checked."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from outgrow.app.compatibility import (
    select_read_features,
    validate_argument_types,
    validate_model_fits_graph,
    warn_of_unread_weights,
)
from outgrow.app.node_names import find_named_nodes
from outgrow.app.runs.data import align_with_model
from outgrow.app.runs.workers import Workers, resolve_prediction_workers
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes, validate_memory_limit
from outgrow.graph.graph import Graph
from outgrow.graph.graph_part import require_all_features
from outgrow.graph.readers.conversions import to_node_ids
from outgrow.graph.sampling.layer_sampling import require_times_of
from outgrow.nn.model import Model

Nodes = Tensor | Sequence[int] | Sequence[str] | None
"""Nodes whose output is asked for: numbers in any order, a mask, or ids that are texts; None for all."""


class RequestedNodes(NamedTuple):
    """Nodes whose output is asked for.

    Attributes:
        num_computed: Number of nodes that are computed, ``m``.
        distinct: ``[m]`` int64, these, ascending; None for all nodes.
        order: ``[n]`` int64, the position of each node of the request among those that are computed; None if the
            request has these in order.
    """

    num_computed: int
    distinct: Tensor | None = None
    order: Tensor | None = None

    @staticmethod
    def from_nodes(nodes: Nodes, num_nodes: int) -> RequestedNodes:
        """Check nodes of a graph.

        Raises:
            InputError: See `to_ids`.
        """
        if nodes is None:
            return RequestedNodes(num_nodes)
        ids = to_ids(nodes, num_nodes)
        if bool((ids[1:] > ids[:-1]).all()):
            return RequestedNodes(len(ids), ids)
        distinct, order = torch.unique(ids, return_inverse=True)
        return RequestedNodes(len(distinct), distinct, order)

    @property
    def num_rows(self) -> int:
        """``n``, how many rows the answer has."""
        return self.num_computed if self.order is None else len(self.order)

    def ids_of_rows(self, first: int, last: int) -> Tensor:
        """Return ``[last - first]`` int64: the nodes of some rows of the answer."""
        if self.distinct is None:
            return torch.arange(first, last)
        return self.distinct[first:last] if self.order is None else self.distinct[self.order[first:last]]

    def select_rows(self, table: Tensor, first: int, last: int) -> Tensor:
        """Return some rows of the answer out of those that were computed, ``[m, ...]``."""
        return table[first:last] if self.order is None else table[self.order[first:last]]


@dataclass(frozen=True, kw_only=True, eq=False)
class OutputRequest:
    """A request that can be met.

    Attributes:
        graph: The graph, with features, in the order of relations and columns that the model knows.
        model: The model, on the CPU.
        nodes: The nodes.
        workers: The workers; at most one for each node.
        memory_limit: Limit on the bytes in the DEVICE tier of a worker; None for what there is.
    """

    graph: Graph
    model: Model
    nodes: RequestedNodes
    workers: Workers
    memory_limit: int | None = None

    def output_shape(self, depth: int) -> tuple[int, int]:
        """Return the shape ``(m, O)`` of what the first ``depth`` layers give."""
        return self.nodes.num_computed, self.model.layers_list()[depth - 1].spec.out_features


def make_output_request(
    graph: Graph, model: Model, nodes: Nodes, *, device: str, workers: int, memory: str | None = None
) -> OutputRequest:
    """Check a request; the first layer of the model is made to accept sparse features where these are.

    Raises:
        InputError: The graph has no features, the model does not fit it, there is no such node, or the device, the
            number of workers or the limit of memory is not possible.
    """
    validate_memory_limit(memory)
    validate_argument_types(graph, model)
    graph = select_read_features(graph, model)
    if graph.features is None:
        raise InputError(
            f"graph {graph.name!r} has no features", needed="features", got="none", repair="add features to the graph"
        )
    require_all_features(graph.part, graph.name, "prediction")
    settings = resolve_prediction_workers(workers, device, graph)
    graph = align_with_model(graph, model)
    validate_model_fits_graph(graph, model)
    warn_of_unread_weights(graph, model)
    requested = RequestedNodes.from_nodes(find_named_nodes(graph, nodes), graph.num_nodes)
    if model.temporal_strategy is not None:
        require_times_of(graph.topology, graph.topology.nodes if requested.distinct is None else requested.distinct)
    limit = None if memory is None else parse_bytes(memory)
    return OutputRequest(graph=graph, model=model, nodes=requested, workers=settings, memory_limit=limit)


def embedding_depth(model: Model) -> int:
    """Return how many layers give embeddings: all but the last, or all if there is a decoder.

    Raises:
        InputError: There is no such layer.
    """
    num_layers = len(model.layers_list())
    if model.decoder is not None:
        return num_layers
    if num_layers == 1:
        raise InputError(
            "the model has no embeddings",
            needed="at least 2 layers: embeddings are the input of the last one",
            got="1 layer, which takes the features themselves",
            repair="train a model with more layers, or ask for its logits",
        )
    return num_layers - 1


def logit_depth(model: Model) -> int:
    """Return how many layers give logits: all.

    Raises:
        InputError: The model predicts links.
    """
    if model.decoder is not None:
        raise InputError(
            "link models have no per-node predictions",
            needed="a model without a decoder, or embeddings, which the decoder takes",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="ask for embeddings: `outgrow predict RUN --what embeddings`, or og.embed(graph, model)",
        )
    return len(model.layers_list())


def to_ids(nodes: Tensor | Sequence[int] | Sequence[str], num_nodes: int) -> Tensor:
    """Return ``[n]`` int64: the ids of nodes that were given as ids or as a mask.

    Raises:
        InputError: They are something else, or an id is not one of the graph.
    """
    try:
        given = nodes.detach().cpu().numpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
    except ValueError:  # a sequence of sequences of several lengths
        given = np.empty((1, 1), dtype=object)
    if given.ndim != 1 or (len(given) and given.dtype.kind not in "iub"):
        raise InputError(
            "these are no nodes",
            needed="one id for each node, or a mask with an entry for each node of the graph",
            got=f"shape {tuple(given.shape)} of {given.dtype}",
            repair="give a list or a tensor of whole numbers",
        )
    ids = torch.from_numpy(to_node_ids(given, num_nodes, "nodes").astype(np.int64))
    if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < num_nodes:
        bad = int(ids.max()) if int(ids.min()) >= 0 else int(ids.min())
        raise InputError(
            "there is no such node",
            needed=f"ids from 0 to {num_nodes - 1}",
            got=str(bad),
            repair="give ids of nodes of this graph: they count from 0 in the order of its features",
        )
    return ids
