"""The CPU's part: the bottom layer of the hot nodes that the next super-batch will use, slice by slice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.engine.features.cache import sort_by_hotness
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, layer_key, src_and_dst_rows
from outgrow.ops.rng import fold_in
from outgrow.runtime.system.device import DeviceStreams
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, ReuseSpec
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SuperBatches, hot_step


class ParameterVersion(NamedTuple):
    """Parameters of the bottom layer at one time.

    Attributes:
        updates: How many updates of the epoch they had seen.
        values: Copies of what `bottom_parameters` gives, in memory.
    """

    updates: int
    values: list[Tensor]


class HotSlice(NamedTuple):
    """A part of the CPU's work.

    Attributes:
        number: Of the super-batch that will use it.
        first_step: The first step of that.
        part: Number of the slice.
        num_slices: How many slices there are.
    """

    number: int
    first_step: int
    slice_index: int
    num_slices: int


SliceTask = tuple[HotSlice, ParameterVersion]


class WorkQueue(Protocol):
    """Work done in the order in which it is submitted; see `BackgroundWorker`."""

    def submit(self, item: SliceTask) -> None:
        """Add work."""

    def result(self) -> HotEmbeddings:
        """The next result."""

    def close(self) -> None:
        """Take no more work."""


def bottom_parameters(model: Model) -> list[nn.Parameter]:
    """Parameters of the bottom layer, and of the encoder before it."""
    return [p for part in (model.encoder, model.layers_list()[0]) if part is not None for p in part.parameters()]


def snapshot_parameters(model: Model, updates: int) -> ParameterVersion:
    """The parameters as they are now."""
    return ParameterVersion(updates, [p.detach().to("cpu", copy=True) for p in bottom_parameters(model)])


def bottom_model(model: Model, bottom: Layer) -> Model:
    """A model up to its bottom layer, as hot nodes go through it."""
    return Model([bottom], input_dropout=model.input_dropout, encoder=model.encoder)


class HostSide:
    """Computes slices in a thread of its own, through one epoch's part. Final.

    Args:
        model: What `bottom_model` makes of the model.
        feature_store: Features, over a line of the thread's own; slices go to the device of its worker.
        sampler: How batches are drawn; hot nodes draw theirs anew for each super-batch.
        batches: The super-batches, whose hot nodes are computed.
        hotness: ``[V]`` int64; the hottest are computed first.
        reuse: What is made of hot nodes.
        latest_parameters: Whether a slice is computed with the newest parameters when it is begun; else with
            those given with it.
        make_queue: Makes what does the work: a thread of its own, unless given.
    """

    def __init__(
        self,
        model: Model,
        feature_store: RemoteFeatureStore,
        sampler: HotColdSampler,
        batches: SuperBatches,
        *,
        hotness: Tensor,
        reuse: ReuseSpec,
        latest_parameters: bool,
        make_queue: Callable[[Callable[[SliceTask], HotEmbeddings]], WorkQueue] = BackgroundWorker,
    ) -> None:
        self._model = copy.deepcopy(model).to("cpu")
        self._comm, self._streams = feature_store.comm, DeviceStreams(feature_store.comm.device)
        self._feature_store, self._sampler, self._batches = feature_store, sampler, batches
        self._hotness, self._reuse = hotness, reuse
        self._hot_nodes = torch.empty(0, dtype=torch.int64)
        self._latest_version, self._uses_latest = ParameterVersion(0, []), latest_parameters
        self._work_queue = make_queue(self._compute_timed)

    def submit_slices(self, slices: Sequence[HotSlice], version: ParameterVersion) -> None:
        """Have slices computed, and tell the newest parameters. All workers together."""
        self._latest_version = version
        for each in slices:
            self._work_queue.submit((each, version))

    def next_slice(self) -> HotEmbeddings:
        """The next slice, on the device, in the order in which they were given; waits for it."""
        return self._work_queue.result()

    def close(self) -> None:
        """End the thread."""
        self._work_queue.close()

    def _compute_timed(self, task: SliceTask) -> HotEmbeddings:
        """In the thread."""
        with self._comm.timeline.span("hot rows"), torch.no_grad():
            return self._compute_slice(task)

    def _compute_slice(self, task: SliceTask) -> HotEmbeddings:
        work, version = task
        if work.slice_index == 0:
            self._hot_nodes = self._order_hot_nodes(work.number)
        nodes = torch.tensor_split(self._hot_nodes, work.num_slices)[work.slice_index]
        block = self._sampler.bottom_block(nodes, hot_step(work.first_step))
        x = self._feature_store.send_request(self._feature_store.prepare_request(block.src_nodes)).wait()
        version = self._latest_version if self._uses_latest else version
        for mine, value in zip(bottom_parameters(self._model), version.values, strict=True):
            mine.copy_(value)
        key = fold_in(self._sampler.sampler.sampling.seed, self._sampler.epoch, hot_step(work.first_step))
        x_src, x_dst = src_and_dst_rows(self._model.encode_input(x, block.src_nodes, key), len(nodes))
        found = self._compute_embeddings(block.with_rng_key(layer_key(key, 0)), x_src, x_dst, version.updates)
        self._comm.ledger.add_count("hot_rows_computed", len(nodes))
        self._comm.ledger.add_count("edges_aggregated", block.edges.num_edges)
        with self._streams.on_load_stream():
            return found.move_to_device(self._comm)

    def _order_hot_nodes(self, number: int) -> Tensor:
        """The hot nodes that a super-batch will use, hottest first."""
        nodes = torch.unique(torch.cat([draw.hot_nodes for draw in self._batches.get_super_batch(number)]))
        return sort_by_hotness(nodes, self._hotness)

    def _compute_embeddings(self, block: Block, x_src: Features, x_dst: Features, updates: int) -> HotEmbeddings:
        [layer], reuse, nodes = self._model.layers_list(), self._reuse, block.dst_nodes
        aggregate = layer.aggregate(block, *layer.source_and_target(x_src, x_dst))
        return HotEmbeddings(
            nodes,
            torch.full((len(nodes),), updates),
            layer.update_nodes(x_dst, aggregate, nodes, None) if reuse.embedding else None,
            aggregate if reuse.aggregate else None,
            x_dst if reuse.target else None,
        )
