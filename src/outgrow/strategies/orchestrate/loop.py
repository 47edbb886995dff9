"""Super-batches of four stages that overlap: sampling, the CPU's embeddings, gathering, and training on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing

import torch
from torch import Tensor

from outgrow.engine.batches import count_sampled_layer
from outgrow.engine.features.assembly import AwaitableFeatures
from outgrow.engine.features.store import FeatureRequest, FeatureStore
from outgrow.engine.minibatch_loop import PrefetchConfig
from outgrow.engine.prefetch import prefetch_results
from outgrow.nn.layer import Features
from outgrow.ops.rng import fold_in
from outgrow.strategies.orchestrate.device_side import DeviceSide
from outgrow.strategies.orchestrate.host_side import HostSide, HotSlice, snapshot_parameters
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddingTable
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SampledBatch, SuperBatches


class SuperBatchLoop:
    """Trains one worker's share of the batches of an epoch. Final.

    Args:
        device: Computes batches.
        cold_store: Rows of cold nodes, on the device.
        host_side: Makes what computes hot nodes, for some batches and how they are drawn.
        loss: The worker's share of the loss, from logits ``[n, C]`` of the seeds of a draw.
        prefetch: How much is drawn before its use.
        latest_parameters: Whether all slices are given at once, and take the newest parameters when they are
            begun; else one with each batch, with the parameters that this begins with.

    Attributes:
        wait_seconds: Seconds for which the device has waited for the CPU; whoever reads them may set them to 0.
    """

    def __init__(
        self,
        device: DeviceSide,
        cold_store: FeatureStore,
        host_side: Callable[[HotColdSampler, SuperBatches], HostSide],
        loss: Callable[[Tensor, SampledBatch], Tensor],
        *,
        prefetch: PrefetchConfig,
        latest_parameters: bool,
    ) -> None:
        self.device, self.cold_store, self.host_side, self.loss = device, cold_store, host_side, loss
        self.prefetch, self.latest_parameters, self.wait_seconds = prefetch, latest_parameters, 0.0

    def steps(self, sampler: HotColdSampler, supers: Sequence[range]) -> Generator[tuple[float, int]]:
        """Losses and numbers of seeds, over all workers, of the batches of super-batches. All workers together.

        Args:
            sampler: How batches are drawn.
            supers: Their numbers; no node is hot in the first.
        """
        timeline = self.device.comm.timeline

        def sample_step(step: int) -> SampledBatch:
            with timeline.span("draw"):
                return sampler.sample_batch(step, all_cold=step in supers[0])

        every = range(supers[0].start, supers[-1].stop)
        drawn = prefetch_results(sample_step, every, threads=self.prefetch.threads, max_ahead=self.prefetch.batches)
        with (
            closing(SuperBatches(drawn, [len(each) for each in supers])) as batches,
            closing(self.host_side(sampler, batches)) as host,
            closing(self._wait_for_rows(batches)) as ready,
        ):
            for number, steps in enumerate(supers):
                hot = self._wait_for_host(host, len(supers[number - 1]), len(sampler.is_hot)) if number else None
                for step in steps:
                    if number + 1 < len(supers):
                        host.submit_slices(
                            self._make_slices(number + 1, steps, step), snapshot_parameters(self.device.model, step)
                        )
                    with timeline.span("wait for batches"):
                        batch = next(ready)
                    yield self._train_step(sampler, *batch, hot)

    def _wait_for_host(self, host: HostSide, num_slices: int, num_nodes: int) -> HotEmbeddingTable:
        """What the CPU has made; the device waits for it."""
        began = time.perf_counter()
        with self.device.comm.timeline.span("wait for the CPU"):
            table = HotEmbeddingTable([host.next_slice() for _ in range(num_slices)], num_nodes)
        self.wait_seconds += time.perf_counter() - began
        return table

    def _make_slices(self, number: int, previous_steps: range, step: int) -> list[HotSlice]:
        """The CPU's work for a super-batch that may begin before a step of the one before."""
        slices = [
            HotSlice(number, previous_steps.stop, part, len(previous_steps)) for part in range(len(previous_steps))
        ]
        if self.latest_parameters:
            return slices if step == previous_steps.start else []
        return [slices[step - previous_steps.start]]

    def _wait_for_rows(self, draws: Iterable[SampledBatch]) -> Generator[tuple[SampledBatch, Features]]:
        """Draws with the rows of their cold nodes; those of the next are under way before one is given."""

        def prepare(draw: SampledBatch) -> tuple[SampledBatch, FeatureRequest]:
            with self.device.comm.timeline.span("gather"):
                return draw, self.cold_store.prepare_request(draw.cold_block.src_nodes)

        def send(prepared: tuple[SampledBatch, FeatureRequest]) -> tuple[SampledBatch, AwaitableFeatures]:
            draw, request = prepared
            return draw, self.cold_store.send_request(request)

        with closing(prefetch_results(prepare, draws, threads=1, max_ahead=1)) as requests:
            for draw, pending in prefetch_results(send, requests, threads=0, max_ahead=1):
                yield draw, pending.wait()

    def _train_step(
        self, sampler: HotColdSampler, batch: SampledBatch, x: Features, hot: HotEmbeddingTable | None
    ) -> tuple[float, int]:
        comm, model, loss = self.device.comm, self.device.model, torch.zeros((), dtype=torch.float64)
        if len(batch.seeds):
            key = fold_in(sampler.sampler.sampling.seed, sampler.epoch, batch.step)
            with comm.timeline.span("forward"):
                found = self.loss(self.device.compute_logits(batch, x, hot, key), batch)
            with comm.timeline.span("backward"):
                torch.autograd.backward(found)
            loss += found.detach().cpu()
        comm.all_reduce_gradients(model)
        for block in (batch.cold_block, *batch.upper_blocks):
            count_sampled_layer(comm.ledger, block.edges)
        return comm.all_reduce(loss).item(), batch.num_seeds
