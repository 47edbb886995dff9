"""Layer-wise inference over full neighbourhoods, in chunks of destinations, for evaluation and `predict`."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.constant_sums import first_aggregate_if_cached
from outgrow.engine.features.inputs import ShardInputs, keeps_half
from outgrow.engine.full_graph import gather_sources
from outgrow.engine.layer_rows import LayerRows, NeededRows
from outgrow.engine.shard import FullGraphShard, GraphShard
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features, Layer, NodeMessages
from outgrow.nn.model import Model
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.ops.memory_pool import pooled_empty_rows
from outgrow.ops.owned_rows import NodeFeatures, OwnedRows
from outgrow.ops.sparse import index_rows, slice_rows

_CHUNK_BYTES = 256 << 20
_INDEX_BYTES = 8
_EDGE_BYTES = 24
"""Bytes of an in-edge of a shard: its source, its weight, and both again by owner of the source."""


def infer_full_graph(
    model: Model,
    topology: Topology,
    features: Features,
    *,
    layers: Sequence[Layer] | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Tensor:
    """Return logits of every node, on one worker; see `infer_shard`.

    Args:
        model: The model.
        topology: In-edges of all nodes.
        features: ``[V, D]``, of any floating type; may be memory-mapped and larger than memory.
        layers: Which consecutive layers of the model to compute, from the first one's input; None for all.
        chunk_bytes: Largest size of the temporary rows of one chunk of nodes.

    Returns:
        ``[V, C]``, or as wide as the last of ``layers``.
    """
    return infer_shard(
        model, FullGraphShard(topology), ShardInputs(features, features), layers=layers, chunk_bytes=chunk_bytes
    )


@torch.no_grad()
def infer_shard(
    model: Model,
    shard: GraphShard,
    inputs: ShardInputs,
    *,
    layers: Sequence[Layer] | None = None,
    needed: NeededRows | None = None,
    chunk_bytes: int = _CHUNK_BYTES,
) -> Tensor:
    """Return logits of the nodes that a worker owns, with all their neighbours and without random draws.

    Each layer is computed for all nodes before the next, so nothing is computed twice and memory does not
    grow with depth: it holds the input, the source rows and the output of one layer, and the temporary rows
    of one chunk. Features of the model's type are read in place; those of another type are converted chunk by
    chunk, except for a first layer whose source rows are its input, which needs all of them converted.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        inputs: Features of its nodes, or the input of the first of ``layers``.
        layers: Which consecutive layers of the model to compute; None for all.
        needed: The rows to compute in each of the model's layers; None for all.
        chunk_bytes: Largest size of the temporary rows of one chunk of nodes.

    Returns:
        ``[n, C]``, or as wide as the last of ``layers``; of the rows of ``needed`` alone if these are given.
    """
    x, nodes = inputs.own, shard.owned_nodes.to(shard.comm.device)
    stages = model.layers_list() if layers is None else layers
    rows_of: Sequence[LayerRows | None] = (None,) * len(stages) if needed is None else needed.layers
    if needed is not None and needed.inputs is not None:
        x, nodes = index_rows(x, needed.inputs.to(x.device)), nodes[needed.inputs.to(nodes.device)]
    dtype = x.dtype if keeps_half(model, x) else model.dtype
    encoded = model.encoder is not None and stages[0] is model.layers_list()[0]
    if encoded:
        x = _encode_rows(model, nodes, x, dtype, chunk_bytes)
        dtype = x.dtype
    for index, (layer, rows) in enumerate(zip(stages, rows_of, strict=True)):
        block = shard.layer_view(layer).block
        first = index == 0 and not encoded
        known = first_aggregate_if_cached(layer, block, inputs.source) if first else None
        # Training has computed it already; it depends on no parameters.
        if known is not None:
            source = NodeMessages(known, None)
        elif first and layer.spec.source_is_input:
            source = _compute_sources(layer, inputs.source, block.src_nodes, dtype, chunk_bytes)
        else:
            source = gather_sources(layer, shard, _compute_sources(layer, x, nodes, dtype, chunk_bytes))
        computed = LayerRows(range(len(block.dst_nodes)), block) if rows is None else rows
        x = _compute_layer(layer, computed, x, source, known, dtype, chunk_bytes)
        nodes = computed.block.dst_nodes
        dtype = x.dtype
    assert isinstance(x, Tensor)
    return x


def full_inference_bytes(model: Model, shard: GraphShard, features: NodeFeatures) -> int:
    """Return the bytes that `infer_shard` takes at most: the input, one layer of all own nodes, and its edges."""
    own = len(shard.owned_nodes)
    indptr = shard.topology.indptr
    edges = int((indptr[shard.owned_nodes + 1] - indptr[shard.owned_nodes]).sum())
    # Nodes of others that send an edge; more than that many there cannot be.
    sources = min(shard.topology.num_nodes, own + edges)
    number = model.dtype.itemsize

    def layer_numbers(layer: Layer) -> int:
        spec = layer.spec
        source = math.prod(spec.source) * (not spec.source_is_input) + spec.score + spec.in_features
        scores = edges * spec.score + edges * spec.aggregate[0]
        return sources * source + own * (math.prod(spec.aggregate) + 2 * spec.out_features) + scores

    # Of features of edges there are two copies: those from own nodes lie apart from those of the halo.
    of_edge = _EDGE_BYTES + 2 * shard.topology.edge_row_bytes
    held = max(map(layer_numbers, model.layers_list())) * number + edges * of_edge
    # Rows of a worker's own nodes are copied out of the features of the graph unless it has all of them.
    copied = own < shard.topology.num_nodes or shard.comm.device.type != "cpu"
    rows = features.nbytes
    if not isinstance(features, OwnedRows):
        rows = rows * own // max(1, shard.topology.num_nodes)
    return held + copied * rows


def _encode_rows(model: Model, nodes: Tensor, x: Features, dtype: torch.dtype, chunk_bytes: int) -> Tensor:
    """Encode nodes from their features, chunk by chunk, ``[n, O]``."""
    assert model.encoder is not None
    step = max(1, chunk_bytes // ((model.in_features + model.encoder.activation_width) * dtype.itemsize))

    def encode_chunk(first: int) -> Tensor:
        rows = slice_rows(x, first, min(first + step, len(x))).to(dtype)
        out = model.encode_input(rows, nodes[first : first + step], None)
        assert isinstance(out, Tensor)
        return out

    # The first chunk shows shape and type of the result.
    part = encode_chunk(0)
    if len(x) <= step:
        return part
    whole = pooled_empty_rows(len(x), tuple(part.shape[1:]), part)
    whole[:step] = part
    for first in range(step, len(x), step):
        whole[first : first + step] = encode_chunk(first)
    return whole


def _compute_sources(layer: Layer, x: Features, nodes: Tensor, dtype: torch.dtype, chunk_bytes: int) -> NodeMessages:
    """Compute the source rows of all nodes; an input of another type is converted chunk by chunk."""
    widths = layer.spec
    row_numbers = widths.in_features + widths.source[0] * widths.source[1] + widths.score
    step = max(1, chunk_bytes // (row_numbers * dtype.itemsize))
    # Nothing to convert, or small enough to convert at once.
    if x.dtype == dtype or len(x) <= step:
        return layer.source(x.to(dtype), nodes)

    # The first chunk shows which parts there are, and their shapes.
    def source_of_rows(first: int) -> NodeMessages:
        last = min(first + step, len(x))
        return layer.source(slice_rows(x, first, last).to(dtype), nodes[first:last])

    first_rows = source_of_rows(0)
    out = NodeMessages(
        *(None if part is None else pooled_empty_rows(len(x), tuple(part.shape[1:]), part) for part in first_rows)
    )
    for first in range(0, len(x), step):
        rows = first_rows if first == 0 else source_of_rows(first)
        for whole, part in zip(out, rows, strict=True):
            if whole is not None and part is not None:
                whole[first : first + step] = part
    return out


def _compute_layer(
    layer: Layer,
    computed: LayerRows,
    x: Features,
    source: NodeMessages,
    first_aggregate: Tensor | None,
    dtype: torch.dtype,
    chunk_bytes: int,
) -> Tensor:
    values, whole = source.values, computed.block
    assert values is not None
    num_dst = len(whole.dst_nodes)

    def update_chunk(block: Block, first: int, last: int) -> Tensor:
        # Chunk by chunk, and only what is read: rows that lie anywhere are copied.
        x_dst: Features = values.new_empty(last - first, 0, dtype=dtype)
        if layer.reads_target:
            x_dst = computed.select_rows(x, first, last).to(dtype)
        if first_aggregate is not None:
            known = computed.select_rows(first_aggregate, first, last)
            assert isinstance(known, Tensor)
            return layer.update(x_dst, known, block)
        return layer.update(x_dst, layer.aggregate(block, source, layer.target(x_dst, block.dst_nodes)), block)

    sizes = temporary_bytes(layer, values.element_size())
    chunks = list(chunk_ranges(whole.edges.indptr.cpu(), *sizes, chunk_bytes))
    if len(chunks) <= 1:
        return update_chunk(whole, 0, num_dst)
    # Written chunk by chunk: concatenating would hold the output twice.
    out = values.new_empty(num_dst, layer.spec.out_features, dtype=accumulate_dtype(values.dtype))
    for first, last in chunks:
        out[first:last] = update_chunk(whole.slice_destinations(first, last), first, last)
    return out


def chunk_ranges(indptr: Tensor, row_bytes: int, edge_bytes: int, chunk_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the range of destinations of each chunk: as many as fit with their in-edges, at least one.

    Args:
        indptr: ``[n + 1]`` int64, in memory; the ends of the in-edges of each destination.
        row_bytes: Bytes of a destination.
        edge_bytes: Bytes of an in-edge.
        chunk_bytes: Bytes of a chunk.
    """
    num_dst = len(indptr) - 1

    def bytes_before(v: int) -> int:
        return v * row_bytes + int(indptr[v]) * edge_bytes

    first = 0
    while first < num_dst:
        # Bytes before a destination ascend, so a binary search finds the end without a loop over nodes.
        end = bisect_right(range(num_dst + 1), bytes_before(first) + chunk_bytes, lo=first + 1, key=bytes_before) - 1
        last = max(end, first + 1)
        yield first, last
        first = last


def temporary_bytes(layer: Layer, number_bytes: int) -> tuple[int, int]:
    """Return the temporary bytes of a destination, and those of each of its in-edges."""
    widths = layer.spec
    aggregation = layer.conv.aggregation
    channels, columns = widths.aggregate
    target = widths.target[0] * widths.target[1]
    row = widths.in_features + target + channels * columns + 2 * widths.out_features
    edge = channels  # at most one weight for each channel
    # Nothing is known of a foreign aggregation, which may compute a row for each edge.
    if not (aggregation.sliceable or aggregation.additive):
        edge += widths.in_features + widths.out_features
    return row * number_bytes, edge * number_bytes + _INDEX_BYTES
