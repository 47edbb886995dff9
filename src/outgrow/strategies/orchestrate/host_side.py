"""The CPU's part: the bottom layer of the hot nodes of the next super-batch, slice by slice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from outgrow.engine.features.cache import sort_by_hotness
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.nn.layer import Layer
from outgrow.nn.model import Model, layer_key
from outgrow.ops.rng import fold_in
from outgrow.runtime.system.device import DeviceStreams
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, ReuseSpec
from outgrow.strategies.orchestrate.hot_inputs import HotInputs, aggregate_hot_rows
from outgrow.strategies.orchestrate.parameter_history import ParameterVersion
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SuperBatches, hot_step


class HotSlice(NamedTuple):
    """A part of the hot nodes of a super-batch.

    Attributes:
        number: Number of the super-batch that will use it.
        first_step: First step of that super-batch.
        slice_index: Number of the slice.
        num_slices: Number of slices.
    """

    number: int
    first_step: int
    slice_index: int
    num_slices: int


SliceTask = tuple[HotSlice, ParameterVersion]


class WorkQueue(Protocol):
    """A queue of work, done in the order of submission; see `BackgroundWorker`."""

    def submit(self, item: SliceTask) -> None:
        """Add a task."""

    def result(self) -> HotEmbeddings:
        """Wait for the next result and return it."""

    def close(self) -> None:
        """Accept no more tasks."""


def bottom_parameters(model: Model) -> list[nn.Parameter]:
    """Return the parameters of the encoder, if there is one, and of the bottom layer."""
    return [p for part in (model.encoder, model.layers_list()[0]) if part is not None for p in part.parameters()]


def snapshot_parameters(model: Model, updates: int) -> ParameterVersion:
    """Copy the current parameters of the bottom layer to host memory."""
    return ParameterVersion(updates, [p.detach().to("cpu", copy=True) for p in bottom_parameters(model)])


def bottom_model(model: Model, bottom: Layer) -> Model:
    """Return a model of the encoder and the bottom layer, in the form that hot nodes use."""
    return Model([bottom], input_dropout=model.input_dropout, encoder=model.encoder)


class HostSide:
    """Computes slices in its own thread, for one part of an epoch. Final.

    Args:
        model: Result of `bottom_model`.
        feature_store: Fetches features, through a communicator of the thread's own, which also gives the
            device.
        sampler: Samples batches, and neighbours of hot nodes anew for each super-batch.
        batches: The super-batches whose hot nodes are computed.
        hotness: ``[V]`` int64; the hottest are computed first.
        reuse: Which results of hot nodes are kept.
        latest_parameters: Whether a slice uses the newest parameters when its computation starts; else those
            submitted with it.
        make_queue: Creates the queue that computes tasks; by default a thread.
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
        # A private copy: the optimizer updates the model in place while the thread computes.
        self._model = copy.deepcopy(model).to("cpu")
        self._comm = feature_store.comm
        self._streams = DeviceStreams(feature_store.comm.device)
        self._feature_store = feature_store
        self._sampler = sampler
        self._batches = batches
        self._hotness = hotness
        self._reuse = reuse
        self._hot_nodes = torch.empty(0, dtype=torch.int64)
        self._latest_version = ParameterVersion(0, [])
        self._uses_latest = latest_parameters
        self._work_queue = make_queue(self._compute_timed)

    def submit_slices(self, slices: Sequence[HotSlice], version: ParameterVersion) -> None:
        """Queue slices, and publish the newest parameters. All workers together."""
        self._latest_version = version
        for each in slices:
            self._work_queue.submit((each, version))

    def next_slice(self) -> HotEmbeddings:
        """Wait for the next slice and return it on the device, in the order of submission."""
        return self._work_queue.result()

    def close(self) -> None:
        """Stop the thread."""
        self._work_queue.close()

    def _compute_timed(self, task: SliceTask) -> HotEmbeddings:
        """Compute a slice, in the thread."""
        with self._comm.timeline.span("hot rows"), torch.no_grad():
            return self._compute_slice(task)

    def _compute_slice(self, task: SliceTask) -> HotEmbeddings:
        work, version = task
        # Drawn by this thread if training has not come so far yet; slices of one super-batch share the order.
        if work.slice_index == 0:
            self._hot_nodes = self._order_hot_nodes(work.number)
        # As many slices as steps of the current super-batch, which spreads the work evenly over them.
        nodes = torch.tensor_split(self._hot_nodes, work.num_slices)[work.slice_index]
        block = self._sampler.bottom_block(nodes, hot_step(work.first_step))
        x = self._feature_store.send_request(self._feature_store.prepare_request(block.src_nodes)).wait()
        # Read after the features are here, as late as possible.
        version = self._latest_version if self._uses_latest else version
        for parameter, value in zip(bottom_parameters(self._model), version.values, strict=True):
            parameter.copy_(value)
        key = fold_in(self._sampler.sampler.sampling.seed, self._sampler.epoch, hot_step(work.first_step))
        inputs = HotInputs(block.with_rng_key(layer_key(key, 0)), x, key)
        embeddings = self._compute_embeddings(inputs, version.updates)
        self._comm.ledger.add_count("hot_rows_computed", len(nodes))
        self._comm.ledger.add_count("edges_aggregated", block.edges.num_edges)
        # On a stream of its own, so that the copy overlaps with the device's kernels.
        with self._streams.on_load_stream():
            return embeddings.move_to_device(self._comm, embedding_only=self._reuse.on_host)

    def _order_hot_nodes(self, number: int) -> Tensor:
        """Return the hot nodes of a super-batch, hottest first."""
        nodes = torch.unique(torch.cat([draw.hot_nodes for draw in self._batches.get_super_batch(number)]))
        return sort_by_hotness(nodes, self._hotness)

    def _compute_embeddings(self, inputs: HotInputs, updates: int) -> HotEmbeddings:
        [layer] = self._model.layers_list()
        reuse = self._reuse
        nodes = inputs.block.dst_nodes
        target, aggregate = aggregate_hot_rows(self._model, inputs)
        return HotEmbeddings(
            nodes,
            torch.full((len(nodes),), updates),
            # No key: dropout is drawn on the device, anew for each batch that uses the row.
            layer.update_nodes(target, aggregate, nodes, None) if reuse.embedding else None,
            aggregate if reuse.aggregate else None,
            target if reuse.target else None,
            inputs if reuse.sources else None,
        )
