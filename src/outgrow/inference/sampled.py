"""Inference on sampled neighbourhoods, in batches: approximate, and as small as the batches of training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.batches import BatchConfig
from outgrow.engine.embeddings.exchange import drop_embedding_rows, fetch_embedding_rows
from outgrow.engine.features.assembly import RowSource
from outgrow.engine.features.inputs import move_features_to_device
from outgrow.engine.features.remote import RemoteFeatureStore, input_dtype
from outgrow.engine.features.store import FeatureRequest
from outgrow.engine.minibatch_loop import make_sampler
from outgrow.engine.prefetch import prefetch_results
from outgrow.engine.shard import GraphShard
from outgrow.inference.padding import empty_output, pad_to_longest
from outgrow.nn.model import Model
from outgrow.ops.sparse import index_rows
from outgrow.runtime.system.device import to_host

_EPOCH = -1
"""Part of the key of all draws; epochs of training are numbered from 1."""
_STEP = 0
"""Part of the key, the same for all batches: a node has the same neighbours whichever batch and worker it is in."""


_BEFORE_BATCH_SIZE = 128
"""Nodes of a batch of a worker where all in-edges before the time of each are computed: their neighbourhoods, each of
its own time, hardly overlap."""


def batches_of_all_before(temporal_strategy: str | None) -> BatchConfig:
    """Return batches of all in-edges before the time of each node, for exact evaluation and prediction."""
    return BatchConfig(size=_BEFORE_BATCH_SIZE, temporal_strategy=temporal_strategy)


class _Batch(NamedTuple):
    """Nodes ``[n]``, their sampled neighbourhood, its features on the way, and which of these each row has.

    No blocks for no nodes; no positions for all in order.
    """

    nodes: Tensor
    blocks: list[Block]
    request: FeatureRequest
    positions: Tensor | None


class SampledInference:
    """Outputs of some nodes from sampled neighbours. Final.

    The sampled neighbours of a node are a function of the run's seed alone: the same in every evaluation, and on any
    number of workers.

    Counts in the ledger: ``rows_loaded``, ``remote_rows`` and ``edges_evaluated``.

    Args:
        model: The model.
        shard: The worker's shard of the graph.
        features: ``[V, D]`` of all nodes, as the graph stores them, possibly memory-mapped.
        nodes: ``[n]`` int64, own nodes, ascending.
        batches: Nodes of a batch of one worker, fan-outs, and how neighbours are sampled.
        seed: Seed of all draws.
        depth: Number of layers to compute; None for all.
    """

    def __init__(
        self,
        model: Model,
        shard: GraphShard,
        features: RowSource,
        nodes: Tensor,
        batches: BatchConfig,
        seed: int,
        depth: int | None = None,
    ) -> None:
        assert batches.size is not None
        self._model = model
        self._shard = shard
        self._features = features
        self._comm = shard.comm
        self._nodes = nodes
        self._size = batches.size
        self._sampler = make_sampler(shard.topology, model, batches, seed)
        self._layers = model.layers_list()[:depth]

    @torch.no_grad()
    def run(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield own nodes, ascending, and their output ``[k, C]`` in memory. All workers together; exhaust it."""
        model, comm, features = self._model, self._comm, self._features
        store = RemoteFeatureStore(self._shard, features, input_dtype(model, features))

        def sample(nodes: Tensor) -> _Batch:
            blocks = self._sampler.sample_blocks(nodes, _EPOCH, _STEP, slice(len(self._layers))) if len(nodes) else []
            rows, positions = blocks[0].src_nodes if blocks else nodes, None
            if self._sampler.sampling.is_temporal:
                # Several rows of a node, each for another time, have the same features.
                rows, positions = torch.unique(rows, return_inverse=True)
            return _Batch(nodes, blocks, store.prepare_request(rows), positions)

        with closing(prefetch_results(sample, self._batches(), threads=1, max_ahead=2)) as batches:
            for batch in batches:
                x = store.send_request(batch.request).wait()
                fetch_embedding_rows(model, batch.blocks[0].src_nodes if batch.blocks else batch.nodes)
                if not batch.blocks:
                    yield batch.nodes, empty_output(self._layers[-1], model)
                    continue
                x = x if batch.positions is None else index_rows(x, batch.positions)
                comm.ledger.add_count("edges_evaluated", sum(block.edges.num_edges for block in batch.blocks))
                blocks = [block.to(comm.device) for block in batch.blocks]
                x = move_features_to_device(x, comm)
                is_whole = len(blocks) == len(model.layers_list())
                yield batch.nodes, to_host(model(blocks, x) if is_whole else model.forward_first(blocks, x))
        drop_embedding_rows(model)

    def _batches(self) -> list[Tensor]:
        """Return the nodes of each batch, equally many batches on all workers, at least one."""
        return pad_to_longest(torch.split(self._nodes, self._size), self._nodes[:0], self._comm)
