"""Outputs of layers for a worker's own nodes, for prediction: whole layers in memory where they fit, else in chunks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Kind
from outgrow.engine.features.assembly import choose_row_source
from outgrow.engine.features.inputs import ShardInputs, fetch_shard_inputs
from outgrow.engine.inference import full_inference_bytes, infer_shard
from outgrow.engine.shard import GraphShard
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import find_feature_file
from outgrow.inference.chunked import ChunkedInference, InferenceMemory
from outgrow.inference.layer_nodes import all_layer_nodes, find_layer_nodes
from outgrow.inference.sampled import SampledInference, batches_of_all_before
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.system.device import CPU, used_device_bytes

_LEAST_BYTES = 32 << 20
"""Memory that chunks are not made for less than: each would have a few nodes."""


class OutputRows(NamedTuple):
    """Consecutive rows of the output of a layer.

    Attributes:
        depth: Number of layers up to that one, itself included.
        first: Position of the first row among those of the nodes that the worker computes.
        rows: ``[k, O]``, in memory.
    """

    depth: int
    first: int
    rows: Tensor


def limit_inference_memory(comm: Comm, limit: int | None) -> InferenceMemory:
    """Return what an inference may take within a limit on the bytes in a worker's DEVICE tier; None for no limit.

    Raises:
        InputError: The limit leaves nothing beside what the worker holds already.
    """
    if limit is not None:
        held = used_device_bytes(comm.device)
        if limit < held + _LEAST_BYTES:
            raise InputError(
                "outputs of nodes cannot be computed in so little memory",
                needed=f"{-(-(held + _LEAST_BYTES) >> 20):,} MiB, of which the worker holds {held >> 20:,} MiB already",
                got=f"{limit >> 20:,} MiB",
                repair="give a larger memory, or leave it out",
            )
    return InferenceMemory.of_worker(comm, limit)


def compute_layer_outputs(
    model: Model,
    graph: Graph,
    shard: GraphShard,
    depths: Sequence[int],
    nodes: Tensor | None,
    memory: InferenceMemory,
) -> Iterator[OutputRows]:
    """Yield the outputs of some layers for own nodes, one layer after the other. All workers together; exhaust it.

    Rows of a layer come in ascending order of their nodes, in at least one piece, which may be empty.

    Args:
        model: The model, on the device of the worker and in evaluation mode.
        graph: The graph, with features.
        shard: The worker's shard of its topology.
        depths: Numbers of layers, ascending: 1 stands for the output of the first layer.
        nodes: ``[n]`` int64, own nodes, ascending and distinct; None for all.
        memory: What may be held.
    """
    assert graph.features is not None
    assert not isinstance(graph.features, OwnedRows)
    if model.temporal_strategy is not None:
        yield from _compute_before(model, graph, shard, depths, nodes, memory)
        return
    if nodes is None and layers_fit_in_memory(model, shard, graph.features, memory):
        yield from _compute_whole_layers(model, graph.features, shard, depths, memory)
        return
    with closing(IoPool()) as io_pool:
        features = choose_row_source(graph.features, find_feature_file(graph), lambda: io_pool, memory.limit)
        for depth in depths:
            layers = model.layers_list()[:depth]
            sets = all_layer_nodes(shard, layers) if nodes is None else find_layer_nodes(shard, layers, nodes)
            first = 0
            for _, rows in ChunkedInference(model, shard, features, sets, memory).run():
                yield OutputRows(depth, first, rows)
                first += len(rows)


def _compute_before(
    model: Model,
    graph: Graph,
    shard: GraphShard,
    depths: Sequence[int],
    nodes: Tensor | None,
    memory: InferenceMemory,
) -> Iterator[OutputRows]:
    """Yield outputs of nodes from all in-edges before the time of each: whole layers would be of one time for all."""
    assert graph.features is not None
    assert not isinstance(graph.features, OwnedRows)
    batches = batches_of_all_before(model.temporal_strategy)
    wanted = shard.owned_nodes if nodes is None else nodes
    with closing(IoPool()) as io_pool:
        features = choose_row_source(graph.features, find_feature_file(graph), lambda: io_pool, memory.limit)
        for depth in depths:
            first = 0
            # Nothing is drawn where all in-edges are taken, so any seed does.
            for _, rows in SampledInference(model, shard, features, wanted, batches, seed=0, depth=depth).run():
                yield OutputRows(depth, first, rows)
                first += len(rows)


def layers_fit_in_memory(model: Model, shard: GraphShard, features: NodeFeatures, memory: InferenceMemory) -> bool:
    """Whether whole layers of the own nodes fit into the memory of every worker. All workers together."""
    needed = full_inference_bytes(model, shard, features)
    return all(shard.comm.all_gather_object(needed <= memory.total_bytes))


def _compute_whole_layers(
    model: Model, features: Features, shard: GraphShard, depths: Sequence[int], memory: InferenceMemory
) -> Iterator[OutputRows]:
    layers = model.layers_list()
    inputs = fetch_shard_inputs(model, shard, features)
    below = 0
    for depth in depths:
        out = infer_shard(model, shard, inputs, layers=layers[below:depth])
        # On a device there may be more room than in memory.
        step = len(out) if out.device.type == "cpu" else memory.chunk_bytes // max(1, out[:1].nbytes)
        for first in range(0, max(1, len(out)), max(1, step)):
            yield OutputRows(depth, first, out[first : first + max(1, step)].to(CPU))
        if depth != depths[-1]:
            inputs, below = _inputs_of_layer(layers[depth], shard, out), depth
    del inputs, out
    # The pool keeps buffers of whole layers, which the caller has no use for.
    memory_pool.release_idle_memory()


def _inputs_of_layer(layer: Layer, shard: GraphShard, rows: Tensor) -> ShardInputs:
    """Return the input of a layer, with rows of the halo where it passes its input on as it is."""
    if not layer.spec.source_is_input:
        return ShardInputs(rows, rows)
    source = shard.with_halo(rows, Kind.ACTIVATIONS)
    return ShardInputs(source[: len(rows)], source)
