"""Inference in bounded memory: layer by layer, in chunks of the nodes that are needed, from and to storage.

A layer is computed for one chunk of nodes after another. A chunk reads the rows of all its in-neighbours, from the
features or from what the layer below has stored, and stores its own. Nothing is computed twice. Rows of two layers
exist at a time, in memory where there is room, else in scratch files; memory does not grow with the graph but for
node ids. With several workers each computes its own nodes, and asks others for the rows of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind, Link
from outgrow.core.memory_limits import available_bytes
from outgrow.engine.embeddings.exchange import drop_embedding_rows, fetch_embedding_rows
from outgrow.engine.features.assembly import RowSource
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.features.stored_rows import StoredRows
from outgrow.engine.inference import chunk_ranges, temporary_bytes
from outgrow.engine.prefetch import prefetch_results
from outgrow.engine.shard import GraphShard, sampling_view
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.inference.layer_nodes import LayerNodes, count_in_edges
from outgrow.inference.padding import empty_output, pad_to_longest
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model, src_and_dst_rows
from outgrow.ops import memory_pool
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage
from outgrow.runtime.storage.scratch_dir import scratch_directory
from outgrow.runtime.system.device import free_device_bytes, to_host, used_device_bytes

_ALL_NEIGHBORS = -1
MEMORY_SHARE = 0.5
"""Share of the memory that is left which an inference may take: training keeps what it has."""
CHUNK_BYTES = 128 << 20
CHUNKS_IN_FLIGHT = 4
"""Chunks in memory at a time: being gathered, waiting, being sent, being computed."""
_NUMBERING_BYTES = 12
"""Bytes of an in-edge while its source gets a number in the chunk."""


class InferenceMemory(NamedTuple):
    """The memory of an inference.

    Attributes:
        total_bytes: What whole layers may take on the device, if they are computed at once.
        chunk_bytes: Size of a chunk, of which some exist at a time.
        table_bytes: Rows of layers that may be in host memory; others are in files.
        limit: Limit on the bytes in the worker's DEVICE tier that these are a part of; None for what there is.
    """

    total_bytes: int
    chunk_bytes: int
    table_bytes: int
    limit: int | None = None

    @staticmethod
    def of_worker(comm: Comm, limit: int | None = None) -> InferenceMemory:
        """Return what a worker may take: a part of what is left on its host and its device.

        Args:
            comm: Communicator of the workers.
            limit: Limit on the bytes in the worker's DEVICE tier; None for what there is.
        """
        host = available_bytes() // comm.local_world_size
        left = host if limit is None else max(0, limit - used_device_bytes(comm.device))
        device = min(left, host if comm.device.type == "cpu" else free_device_bytes(comm.device))
        if comm.device.type == "cpu":
            host = device
        total = max(1, round(MEMORY_SHARE * device))
        # On a CPU chunks and tables share this.
        chunk = max(1, min(CHUNK_BYTES, total // (2 * CHUNKS_IN_FLIGHT)))
        return InferenceMemory(total, chunk, round(MEMORY_SHARE * host / 2), limit)


class _Chunk(NamedTuple):
    """A chunk of the nodes of a layer, with rows of its in-neighbours on the way.

    Attributes:
        first: Position of its first node among those of the layer.
        num_nodes: How many nodes it has.
        block: The nodes and all their in-edges; None for no nodes.
        request: Rows of the sources.
    """

    first: int
    num_nodes: int
    block: Block | None
    request: FeatureRequest


class ChunkedInference:
    """Outputs of some nodes, in bounded memory. Final.

    Counts in the ledger, as training does: ``rows_loaded`` and ``remote_rows``; and ``edges_evaluated``.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        features: ``[V, D]`` of all nodes, as the graph stores them, possibly memory-mapped.
        nodes: What each layer computes. Fewer than there are in the model are its first layers.
        memory: What chunks and stored rows may take.
    """

    def __init__(
        self, model: Model, shard: GraphShard, features: RowSource, nodes: LayerNodes, memory: InferenceMemory
    ) -> None:
        self._model = model
        self._shard = shard
        self._features = features
        self._comm = shard.comm
        self._layers = model.layers_list()[: len(nodes.outputs)]
        self._nodes = nodes
        self._memory = memory
        views = [sampling_view(self._shard.topology, layer) for layer in self._layers]
        self._sampler = NeighborSampler(views, (_ALL_NEIGHBORS,) * len(views), seed=0, memory_limit=memory.limit)

    @torch.no_grad()
    def run(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield own nodes, ascending, and their output ``[k, C]`` in memory. All workers together; exhaust it."""
        # What batches of training left is of other sizes, and both together could exceed the memory.
        memory_pool.release_idle_memory()
        with ExitStack() as stack:
            tables = _Tables(stack, self._memory.table_bytes)
            dtype = input_dtype(self._model, self._features)
            store: FeatureStore = RemoteFeatureStore(self._shard, self._features, dtype)
            for index, layer in enumerate(self._layers[:-1]):
                store = self._store_layer(index, layer, store, tables)
            nodes = self._nodes.outputs[-1]
            for first, out in self._compute_chunks(len(self._layers) - 1, store):
                yield nodes[first : first + len(out)], to_host(out)
        memory_pool.release_idle_memory()

    def _store_layer(self, index: int, layer: Layer, store: FeatureStore, tables: _Tables) -> FeatureStore:
        """Compute a layer for all nodes that need it; return a store of its output."""
        nodes = self._nodes.outputs[index]
        table: RowStorage | None = None
        for first, out in self._compute_chunks(index, store):
            if table is None:
                table = tables.create(len(nodes), out.shape[1], out.dtype)
            if out.device.type != "cpu":
                self._comm.ledger.add_bytes(Link.DEVICE_TO_HOST, Kind.ACTIVATIONS, out.nbytes)
            table.write_range(first, to_host(out))
        assert table is not None
        tables.release_older()
        rows = StoredRows(table, nodes)
        return RemoteFeatureStore(self._shard, rows, table.dtype, kind=Kind.ACTIVATIONS, owned_only=True)

    def _compute_chunks(self, index: int, store: FeatureStore) -> Iterator[tuple[int, Tensor]]:
        """Yield the first node and the output ``[k, O]`` of each chunk; at least one chunk, which may be empty."""
        model, comm, layer = self._model, self._comm, self._layers[index]
        nodes = self._nodes.outputs[index]

        def gather(span: tuple[int, int]) -> _Chunk:
            first, last = span
            if first == last:
                return _Chunk(first, 0, None, store.prepare_request(nodes[:0]))
            (block,) = self._sampler.sample_blocks(nodes[first:last], 0, 0, slice(index, index + 1))
            return _Chunk(first, last - first, block, store.prepare_request(block.src_nodes))

        with closing(prefetch_results(gather, self._chunk_ranges(layer, nodes), threads=1, max_ahead=1)) as chunks:
            for chunk in chunks:
                x = store.send_request(chunk.request).wait()
                if index == 0:
                    fetch_embedding_rows(model, nodes[:0] if chunk.block is None else chunk.block.src_nodes)
                if chunk.block is None:
                    yield chunk.first, empty_output(layer, model).to(comm.device)
                    continue
                block = chunk.block.to(comm.device)
                rows = move_features_to_device(x, comm, Kind.ACTIVATIONS if index else Kind.FEATURES)
                if index == 0:
                    rows = model.encode_input(rows, block.src_nodes, None)
                comm.ledger.add_count("edges_evaluated", block.edges.num_edges)
                yield chunk.first, layer(block, *src_and_dst_rows(rows, chunk.num_nodes))
        drop_embedding_rows(model)

    def _chunk_ranges(self, layer: Layer, nodes: Tensor) -> list[tuple[int, int]]:
        """Return the range of nodes of each chunk, equally many ranges on all workers."""
        spec, number = layer.spec, self._model.dtype.itemsize
        row_bytes, edge_bytes = temporary_bytes(layer, number)
        # Each edge may have a source of its own, whose rows a chunk gathers.
        source = spec.in_features + math.prod(spec.source) * (not spec.source_is_input) + spec.score
        edge_bytes += source * number + _NUMBERING_BYTES
        edge_bytes += self._shard.topology.edge_row_bytes * (layer.conv.edge_dim > 0)
        degree = count_in_edges(self._shard, layer, nodes)
        ends = torch.cat([degree.new_zeros(1), degree.cumsum(0)])
        ranges = chunk_ranges(ends, row_bytes, edge_bytes, self._memory.chunk_bytes)
        return pad_to_longest([*ranges], (len(nodes), len(nodes)), self._comm)


class _Tables:
    """Stored rows of the layers below; in memory as long as there is room, else in files of a scratch folder."""

    def __init__(self, stack: ExitStack, memory_bytes: int) -> None:
        self._stack = stack
        self._memory_bytes = memory_bytes
        self._held: list[tuple[RowStorage, int]] = []

    def create(self, num_rows: int, width: int, dtype: torch.dtype) -> RowStorage:
        """Return storage for the rows of a layer."""
        num_bytes = num_rows * width * dtype.itemsize
        if sum(size for _, size in self._held) + num_bytes <= self._memory_bytes:
            table: RowStorage = InMemoryRows(torch.empty(num_rows, width, dtype=dtype))
            self._held.append((table, num_bytes))
            return table
        folder = self._stack.enter_context(scratch_directory(None, num_bytes))
        io_pool = IoPool()
        self._stack.callback(io_pool.close)
        file = RowFile.create(io_pool, folder / "rows", num_rows, width, dtype)
        self._stack.callback(file.close)
        self._held.append((file, 0))
        return file

    def release_older(self) -> None:
        """Release all tables but the newest."""
        for table, _ in self._held[:-1]:
            table.close()
        self._held = self._held[-1:]
