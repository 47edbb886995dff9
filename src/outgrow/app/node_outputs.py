"""Outputs of a model for nodes of a graph: whole layers in memory where they fit, else in chunks."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from outgrow.app.compatibility import validate_argument_types, validate_model_fits_graph, warn_of_unread_weights
from outgrow.app.runs.data import align_with_model
from outgrow.core.errors import InputError
from outgrow.engine.features.assembly import choose_row_source
from outgrow.engine.features.inputs import ShardInputs, fetch_shard_inputs
from outgrow.engine.inference import full_inference_bytes, infer_shard
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.graph.readers.conversions import to_node_ids
from outgrow.graph.store.reader import find_feature_file
from outgrow.inference.chunked import ChunkedInference, InferenceMemory
from outgrow.inference.layer_nodes import all_layer_nodes, find_layer_nodes
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.system.device import CPU, choose_device
from outgrow.runtime.system.process_memory import allocate_mapped_tensor
from outgrow.runtime.system.sigbus import explain_bus_errors

Nodes = Tensor | Sequence[int] | None
"""Nodes whose output is asked for: ids in any order, or a mask; None for all."""


def compute_embeddings(graph: Graph, model: Model, nodes: Nodes = None, device: str = "auto") -> Tensor:
    """Return ``[n, H]`` embeddings of nodes; see `outgrow.app.api.embed`."""
    graph = _validate_inputs(graph, model)
    num_layers = len(model.layers_list())
    if model.decoder is not None:
        return _compute_outputs(graph, model, num_layers, nodes, device)
    if num_layers == 1:
        raise InputError(
            "the model has no embeddings",
            needed="at least 2 layers: embeddings are the input of the last one",
            got="1 layer, which takes the features themselves",
            repair="train a model with more layers, or ask for its logits",
        )
    return _compute_outputs(graph, model, num_layers - 1, nodes, device)


def compute_logits(
    graph: Graph, model: Model, nodes: Nodes = None, device: str = "auto", embeddings: Tensor | None = None
) -> Tensor:
    """Return ``[n, C]`` logits of nodes, from the embeddings of all nodes if given; see `outgrow.app.api.predict`."""
    graph = _validate_inputs(graph, model)
    if model.decoder is not None:
        raise InputError(
            "link models have no per-node predictions",
            needed="a model without a decoder, or embeddings, which the decoder takes",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="ask for embeddings: `outgrow predict RUN --what embeddings`, or og.embed(graph, model)",
        )
    shard = FullGraphShard(graph.topology)
    if (
        embeddings is not None
        and full_inference_bytes(model, shard, embeddings) <= InferenceMemory.of_worker(shard.comm).total_bytes
    ):
        # Only the last layer is left to compute.
        with model.evaluating():
            inputs = ShardInputs(embeddings, embeddings)
            logits = infer_shard(model, shard, inputs, layers=model.layers_list()[-1:])
        memory_pool.release_idle_memory()
        return logits
    return _compute_outputs(graph, model, len(model.layers_list()), nodes, device)


def to_ids(nodes: Nodes, num_nodes: int) -> Tensor:
    """Return ``[n]`` int64: the ids of nodes that were given as ids or as a mask.

    Raises:
        InputError: They are something else, or an id is not one of the graph.
    """
    if nodes is None:
        return torch.arange(num_nodes)
    given = nodes.detach().cpu().numpy() if isinstance(nodes, Tensor) else np.asarray(nodes)
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


def _compute_outputs(graph: Graph, model: Model, num_layers: int, nodes: Nodes, device: str) -> Tensor:
    """Return the output of the first layers for nodes, in memory or, if it is too large for that, in a mapped file."""
    assert graph.features is not None
    ids = None if nodes is None else to_ids(nodes, graph.num_nodes)
    comm = SingleProcessComm()
    comm.device = choose_device(device, comm)
    shard = FullGraphShard(graph.topology, comm)
    layers = model.layers_list()[:num_layers]
    # The file of the features may be truncated while it is mapped: reading it then raises SIGBUS.
    with explain_bus_errors(), graph.files.check_sizes_on_exit(), model.evaluating():
        model.to(comm.device)
        try:
            memory = InferenceMemory.of_worker(comm)
            if ids is None and full_inference_bytes(model, shard, graph.features) <= memory.total_bytes:
                inputs = fetch_shard_inputs(model, shard, graph.features)
                out = infer_shard(model, shard, inputs, layers=layers).to(CPU)
            else:
                out = _compute_in_chunks(model, shard, graph, num_layers, ids, memory)
        finally:
            model.to(CPU)
    # The pool keeps buffers of whole layers, which the caller has no use for.
    memory_pool.release_idle_memory()
    return out


def _compute_in_chunks(
    model: Model, shard: FullGraphShard, graph: Graph, num_layers: int, ids: Tensor | None, memory: InferenceMemory
) -> Tensor:
    layers = model.layers_list()[:num_layers]
    assert graph.features is not None
    if ids is None:
        sets = all_layer_nodes(shard, layers)
        order = None
    else:
        distinct, order = torch.unique(ids, return_inverse=True)
        sets = find_layer_nodes(shard, layers, distinct)
    out: Tensor | None = None
    done, count = 0, len(sets.outputs[-1])
    with closing(IoPool()) as io_pool:
        features = choose_row_source(graph.features, find_feature_file(graph), lambda: io_pool)
        for nodes, rows in ChunkedInference(model, shard, features, sets, memory).run():
            if out is None:
                out = _allocate((count, rows.shape[1]), rows.dtype, memory.table_bytes)
            out[done : done + len(nodes)] = rows
            done += len(nodes)
    assert out is not None
    return out if order is None else out[order]


def _allocate(shape: tuple[int, int], dtype: torch.dtype, memory_bytes: int) -> Tensor:
    """Return a tensor in memory or, if it is larger than that, in a file without a name."""
    if shape[0] * shape[1] * dtype.itemsize <= memory_bytes:
        return torch.empty(shape, dtype=dtype)
    return allocate_mapped_tensor(Path(tempfile.gettempdir()), shape, dtype)


def _validate_inputs(graph: Graph, model: Model) -> Graph:
    """Return the graph, with its relations and columns in the order that the model was trained with."""
    validate_argument_types(graph, model)
    if graph.features is None:
        raise InputError(
            f"graph {graph.name!r} has no features", needed="features", got="none", repair="add features to the graph"
        )
    graph = align_with_model(graph, model)
    validate_model_fits_graph(graph, model)
    warn_of_unread_weights(graph, model)
    return graph
