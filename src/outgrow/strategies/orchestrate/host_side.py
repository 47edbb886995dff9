"""The CPU's part: the bottom layer of the hot nodes that the next super-batch will use, slice by slice."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from outgrow.core.block import Block
from outgrow.engine.features.cache import hottest_first
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.prefetch import BackgroundWorker
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, both_sides, layer_key
from outgrow.ops.rng import derive
from outgrow.runtime.system.device import Streams
from outgrow.strategies.orchestrate.hot_embeddings import HotRows, Reuse
from outgrow.strategies.orchestrate.sampling import Drawing, SuperBatches, hot_step


class Version(NamedTuple):
    """Parameters of the bottom layer at one time.

    Attributes:
        updates: How many updates of the epoch they had seen.
        values: Copies of what `bottom_parameters` gives, in memory.
    """

    updates: int
    values: list[Tensor]


class Slice(NamedTuple):
    """A part of the CPU's work.

    Attributes:
        number: Of the super-batch that will use it.
        first_step: The first step of that.
        part: Number of the slice.
        parts: How many slices there are.
    """

    number: int
    first_step: int
    part: int
    parts: int


Given = tuple[Slice, Version]


class WorkQueue(Protocol):
    """Work done in the order in which it is submitted; see `BackgroundWorker`."""

    def submit(self, item: Given) -> None:
        """Add work."""

    def result(self) -> HotRows:
        """The next result."""

    def close(self) -> None:
        """Take no more work."""


def bottom_parameters(model: Model) -> list[nn.Parameter]:
    """Parameters of the bottom layer, and of the encoder before it."""
    return [p for part in (model.encoder, model.stages()[0]) if part is not None for p in part.parameters()]


def version_of(model: Model, updates: int) -> Version:
    """The parameters as they are now."""
    return Version(updates, [p.detach().to("cpu", copy=True) for p in bottom_parameters(model)])


def bottom_alone(model: Model, bottom: Layer) -> Model:
    """A model up to its bottom layer, as hot nodes go through it."""
    return Model([bottom], input_dropout=model.input_dropout, encoder=model.encoder)


class HostSide:
    """Computes slices in a thread of its own, through one epoch's part. Final.

    Args:
        model: What `bottom_alone` makes of the model.
        rows: Features, over a line of the thread's own; slices go to the device of its worker.
        drawing: How batches are drawn; hot nodes draw theirs anew for each super-batch.
        batches: The super-batches, whose hot nodes are computed.
        hotness: ``[V]`` int64; the hottest are computed first.
        reuse: What is made of hot nodes.
        newest: Whether a slice is computed with the newest parameters when it is begun; else with those given with it.
        make_queue: Makes what does the work: a thread of its own, unless given.
    """

    def __init__(
        self,
        model: Model,
        rows: RemoteFeatureStore,
        drawing: Drawing,
        batches: SuperBatches,
        *,
        hotness: Tensor,
        reuse: Reuse,
        newest: bool,
        make_queue: Callable[[Callable[[Given], HotRows]], WorkQueue] = BackgroundWorker,
    ) -> None:
        self._model = copy.deepcopy(model).to("cpu")
        self._comm, self._streams = rows.comm, Streams(rows.comm.device)
        self._rows, self._drawing, self._batches = rows, drawing, batches
        self._hotness, self._reuse = hotness, reuse
        self._queue = torch.empty(0, dtype=torch.int64)
        self._newest, self._free = Version(0, []), newest
        self._work = make_queue(self._computed)

    def give(self, slices: Sequence[Slice], version: Version) -> None:
        """Have slices computed, and tell the newest parameters. All workers together."""
        self._newest = version
        for each in slices:
            self._work.submit((each, version))

    def take(self) -> HotRows:
        """The next slice, on the device, in the order in which they were given; waits for it."""
        return self._work.result()

    def close(self) -> None:
        """End the thread."""
        self._work.close()

    def _computed(self, given: Given) -> HotRows:
        """In the thread."""
        with self._comm.timeline.span("hot rows"), torch.no_grad():
            return self._slice(given)

    def _slice(self, given: Given) -> HotRows:
        work, version = given
        if work.part == 0:
            self._queue = self._queued(work.number)
        nodes = torch.tensor_split(self._queue, work.parts)[work.part]
        block = self._drawing.bottom(nodes, hot_step(work.first_step))
        x = self._rows.send_request(self._rows.prepare_request(block.src_nodes)).wait()
        version = self._newest if self._free else version
        for mine, value in zip(bottom_parameters(self._model), version.values, strict=True):
            mine.copy_(value)
        key = derive(self._drawing.sampler.draws.seed, self._drawing.epoch, hot_step(work.first_step))
        x_src, x_dst = both_sides(self._model.input(x, block.src_nodes, key), len(nodes))
        found = self._made(block.keyed(layer_key(key, 0)), x_src, x_dst, version.updates)
        self._comm.ledger.count("hot_rows_computed", len(nodes))
        self._comm.ledger.count("edges_aggregated", block.edges.num_edges)
        with self._streams.loading():
            return found.moved(self._comm)

    def _queued(self, number: int) -> Tensor:
        """The hot nodes that a super-batch will use, hottest first."""
        nodes = torch.unique(torch.cat([draw.hot for draw in self._batches.at(number)]))
        return hottest_first(nodes, self._hotness)

    def _made(self, block: Block, x_src: Features, x_dst: Features, updates: int) -> HotRows:
        [layer], reuse, nodes = self._model.stages(), self._reuse, block.dst_nodes
        aggregate = layer.aggregate(block, *layer.ends(x_src, x_dst))
        return HotRows(
            nodes,
            torch.full((len(nodes),), updates),
            layer.update_nodes(x_dst, aggregate, nodes, None) if reuse.embedding else None,
            aggregate if reuse.aggregate else None,
            x_dst if reuse.target else None,
        )
