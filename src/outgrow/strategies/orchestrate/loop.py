"""Super-batches of four stages that overlap: sampling, the CPU's embeddings, gathering, and training on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing

import torch
from torch import Tensor

from outgrow.engine.batches import count_drawn
from outgrow.engine.features.assembly import FeaturesArrival
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.minibatch_loop import Ahead
from outgrow.engine.prefetch import prefetched
from outgrow.nn.layer import Features
from outgrow.ops.rng import derive
from outgrow.strategies.orchestrate.device_side import Device
from outgrow.strategies.orchestrate.host_side import HostSide, Slice, version_of
from outgrow.strategies.orchestrate.hot_embeddings import HotTable
from outgrow.strategies.orchestrate.sampling import Draw, Drawing, SuperBatches


class SuperBatchLoop:
    """Trains one worker's share of the batches of an epoch. Final.

    Args:
        device: Computes batches.
        gather: Rows of cold nodes, on the device.
        host_side: Makes what computes hot nodes, for some batches and how they are drawn.
        loss: The worker's share of the loss, from logits ``[n, C]`` of the seeds of a draw.
        ahead: How much is drawn before its use.
        newest: Whether all slices are given at once, and take the newest parameters when they are begun; else one with
            each batch, with the parameters that this begins with.

    Attributes:
        waited: Seconds for which the device has waited for the CPU; whoever reads them may set them to 0.
    """

    def __init__(
        self,
        device: Device,
        gather: FeatureStore,
        host_side: Callable[[Drawing, SuperBatches], HostSide],
        loss: Callable[[Tensor, Draw], Tensor],
        *,
        ahead: Ahead,
        newest: bool,
    ) -> None:
        self.device, self.gather, self.host_side, self.loss = device, gather, host_side, loss
        self.ahead, self.newest, self.waited = ahead, newest, 0.0

    def steps(self, drawing: Drawing, supers: Sequence[range]) -> Generator[tuple[float, int]]:
        """Losses and numbers of seeds, over all workers, of the batches of super-batches. All workers together.

        Args:
            drawing: How batches are drawn.
            supers: Their numbers; no node is hot in the first.
        """
        timeline = self.device.comm.timeline

        def draw(step: int) -> Draw:
            with timeline.span("draw"):
                return drawing.draw(step, all_cold=step in supers[0])

        every = range(supers[0].start, supers[-1].stop)
        drawn = prefetched(draw, every, threads=self.ahead.threads, ahead=self.ahead.batches)
        with (
            closing(SuperBatches(drawn, [len(each) for each in supers])) as batches,
            closing(self.host_side(drawing, batches)) as host,
            closing(self._with_rows(batches)) as ready,
        ):
            for number, steps in enumerate(supers):
                hot = self._taken(host, len(supers[number - 1]), len(drawing.is_hot)) if number else None
                for step in steps:
                    if number + 1 < len(supers):
                        host.give(self._slices(number + 1, steps, step), version_of(self.device.model, step))
                    with timeline.span("wait for batches"):
                        batch = next(ready)
                    yield self._step(drawing, *batch, hot)

    def _taken(self, host: HostSide, slices: int, num_nodes: int) -> HotTable:
        """What the CPU has made; the device waits for it."""
        began = time.perf_counter()
        with self.device.comm.timeline.span("wait for the CPU"):
            table = HotTable([host.take() for _ in range(slices)], num_nodes)
        self.waited += time.perf_counter() - began
        return table

    def _slices(self, number: int, before: range, step: int) -> list[Slice]:
        """The CPU's work for a super-batch that may begin before a step of the one before."""
        slices = [Slice(number, before.stop, part, len(before)) for part in range(len(before))]
        if self.newest:
            return slices if step == before.start else []
        return [slices[step - before.start]]

    def _with_rows(self, draws: Iterable[Draw]) -> Generator[tuple[Draw, Features]]:
        """Draws with the rows of their cold nodes; those of the next are under way before one is given."""

        def prepare(draw: Draw) -> tuple[Draw, FeatureRequest]:
            with self.device.comm.timeline.span("gather"):
                return draw, self.gather.prepare_request(draw.cold.src_nodes)

        def send(prepared: tuple[Draw, FeatureRequest]) -> tuple[Draw, FeaturesArrival]:
            draw, request = prepared
            return draw, self.gather.send_request(request)

        with closing(prefetched(prepare, draws, threads=1, ahead=1)) as requests:
            for draw, pending in prefetched(send, requests, threads=0, ahead=1):
                yield draw, pending.wait()

    def _step(self, drawing: Drawing, draw: Draw, x: Features, hot: HotTable | None) -> tuple[float, int]:
        comm, model, loss = self.device.comm, self.device.model, torch.zeros((), dtype=torch.float64)
        if len(draw.seeds):
            key = derive(drawing.sampler.draws.seed, drawing.epoch, draw.step)
            with comm.timeline.span("forward"):
                found = self.loss(self.device.logits(draw, x, hot, key), draw)
            with comm.timeline.span("backward"):
                torch.autograd.backward(found)
            loss += found.detach().cpu()
        comm.sum_gradients(model)
        for block in (draw.cold, *draw.above):
            count_drawn(comm.ledger, block.edges)
        return comm.sum_(loss).item(), draw.num_seeds
