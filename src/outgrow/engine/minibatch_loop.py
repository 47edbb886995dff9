"""Training on sampled neighbourhoods: each worker samples around its seeds, fetches features, and computes.

Sampling and gathering of later batches go on while one is computed, and the rows of other workers that the next group
of seeds needs are under way meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import closing
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.batches import Batches, count_drawn
from outgrow.engine.features.assembly import FeaturesArrival
from outgrow.engine.features.inputs import to_device
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.model_migration import Tour, pass_on
from outgrow.engine.prefetch import prefetched
from outgrow.engine.shard import view_of
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.graph.topology import Topology
from outgrow.nn.layer import Features
from outgrow.nn.model import Model
from outgrow.ops import memory_pool
from outgrow.ops.backend import num_threads
from outgrow.ops.rng import derive
from outgrow.ops.sparse import rows_at
from outgrow.runtime.distributed.comm import Comm

Loss = Callable[[Tensor, Tensor, int], Tensor]
_SPARE = 0.5  # no two batches are of one size


class Ahead(NamedTuple):
    """How much is made before its use.

    Attributes:
        threads: Threads of a worker that draw batches.
        batches: Batches that are drawn, or being drawn, besides the one that is computed.
    """

    threads: int
    batches: int

    @staticmethod
    def of(threads: int | None, ahead: int) -> Ahead:
        """Some threads, or half as many as compute."""
        return Ahead(threads or max(1, num_threads() // 2), ahead)


def sampler_of(topology: Topology, model: Model, batches: Batches, seed: int) -> Sampler:
    """Draws the batches of a model."""
    layers = model.stages()
    views = [view_of(topology, layer) for layer in layers]
    return Sampler(views, batches.hops(len(layers)), seed, weighted=batches.weighted)


class Stop(NamedTuple):
    """What a worker computes in one time step of a batch.

    Attributes:
        step: Number of the batch in the epoch.
        seeds: ``[n]`` int64, the worker's own in this time step.
        num_seeds: Number of seeds of the batch, over all workers and time steps.
        blocks: Their sampled neighbourhood, a block for each layer.
        wanted: Rows to ask for now; None if they have come with those of an earlier time step.
        places: ``[m]`` int64, which of these rows the neighbourhood needs; None for all in order.
        stride: By how many workers models move on before it; 0 if this is the first of its batch.
        last: Whether it is the last of its batch.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    blocks: list[Block]
    wanted: FeatureRequest | None
    places: Tensor | None
    stride: int
    last: bool


class MicroBatches:
    """Epochs of one worker. Final.

    Args:
        model: The model; its gradients are left in its parameters.
        comm: The line to the other workers.
        sampler: Draws neighbourhoods.
        rows: Features.
        loss: The worker's share of the loss, from logits ``[n, C]``, their seeds ``[n]``, and the number of seeds over
            all workers.
        ahead: How much is made before its use.
        gather_once: Whether the rows that all time steps of a batch need are asked for at once, each only once, before
            the first; else each time step asks for its own.
    """

    def __init__(
        self,
        model: Model,
        comm: Comm,
        sampler: Sampler,
        rows: FeatureStore,
        loss: Loss,
        *,
        ahead: Ahead,
        gather_once: bool = True,
    ) -> None:
        self.model, self.comm, self.sampler, self.rows, self.loss = model, comm, sampler, rows, loss
        self.ahead, self.gather_once = ahead, gather_once

    def steps(
        self, epoch: int, batches: Sequence[Tensor], tour: Callable[[Tensor], Tour], first: int = 0
    ) -> Generator[tuple[float, int]]:
        """Losses and numbers of seeds, over all workers, of an epoch's batches from ``first`` on. All together.

        Args:
            epoch: Number of the epoch, which with the sampler's seed and the number of the batch decides all draws.
            batches: Seeds of each, over all workers.
            tour: What the worker computes of a batch, from its seeds; of as many time steps on all workers.
            first: Number of the first batch to train on.
        """
        memory_pool.keep_spare(_SPARE)

        def draw(step: int) -> list[Stop]:
            return self._drawn(epoch, step, tour(batches[step]), len(batches[step]))

        numbers = range(first, len(batches))
        with closing(prefetched(draw, numbers, threads=self.ahead.threads, ahead=self.ahead.batches - 1)) as drawn:
            total = torch.zeros((), dtype=torch.float64)
            timeline = self.comm.timeline
            ready = timeline.waiting("wait for batches", drawn)
            for stop, x in self._with_rows(stop for stops in ready for stop in stops):
                if stop.stride:
                    with timeline.span("models travel"):
                        pass_on(self.model, self.comm, stop.stride)
                total += self._computed(epoch, stop, x)
                if stop.last:
                    self.comm.sum_gradients(self.model)
                    yield self.comm.sum_(total).item(), stop.num_seeds
                    total = torch.zeros((), dtype=torch.float64)

    def _drawn(self, epoch: int, step: int, tour: Tour, num_seeds: int) -> list[Stop]:
        """Runs in any thread."""
        timeline = self.comm.timeline
        with timeline.span("draw"):
            blocks = [self.sampler.blocks(seeds, epoch, step) for seeds in tour.groups]
        nodes = [each[0].src_nodes for each in blocks]
        with timeline.span("gather"):
            wanted, places = self._wanted(nodes)
        strides, last = (0, *tour.strides), len(nodes) - 1
        of = zip(tour.groups, blocks, wanted, places, strides, strict=True)
        return [
            Stop(step, seeds, num_seeds, drawn, want, place, stride, index == last)
            for index, (seeds, drawn, want, place, stride) in enumerate(of)
        ]

    def _wanted(self, nodes: list[Tensor]) -> tuple[list[FeatureRequest | None], list[Tensor | None]]:
        if len(nodes) == 1 or not self.gather_once:
            return [self.rows.prepare_request(each) for each in nodes], [None] * len(nodes)
        distinct, places = torch.unique(torch.cat(nodes), return_inverse=True)
        later: list[FeatureRequest | None] = [None] * (len(nodes) - 1)
        return [self.rows.prepare_request(distinct), *later], [*torch.split(places, [len(each) for each in nodes])]

    def _with_rows(self, stops: Iterable[Stop]) -> Iterator[tuple[Stop, Features]]:
        """Stops with their rows."""
        x: Features | None = None
        for stop, waiting in self._asked(stops):
            if waiting is not None:
                x = waiting.wait()
            assert x is not None
            yield stop, x if stop.places is None else rows_at(x, stop.places)

    def _asked(self, stops: Iterable[Stop]) -> Iterator[tuple[Stop, FeaturesArrival | None]]:
        """Stops with their rows under way; those of the next one are asked for before a stop is given."""

        def send(stop: Stop) -> tuple[Stop, FeaturesArrival | None]:
            return stop, None if stop.wanted is None else self.rows.send_request(stop.wanted)

        return prefetched(send, stops, threads=0, ahead=1)

    def _computed(self, epoch: int, stop: Stop, x: Features) -> Tensor:
        """The worker's share of the loss; adds to the gradients."""
        comm, loss = self.comm, torch.zeros((), dtype=torch.float64)
        if len(stop.seeds):
            with comm.timeline.span("forward"):
                blocks = [block.to(comm.device) for block in stop.blocks]
                logits = self.model(blocks, to_device(x, comm), derive(self.sampler.draws.seed, epoch, stop.step))
                found = self.loss(logits, stop.seeds, stop.num_seeds)
            with comm.timeline.span("backward"):
                torch.autograd.backward(found)
            loss += found.detach().cpu()
        for block in stop.blocks:
            count_drawn(comm.ledger, block.edges)
        return loss
