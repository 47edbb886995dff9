"""The loop over super-batches: sampling, embeddings on the CPU, gathering and training overlap."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterable
from contextlib import closing

import torch
from torch import Tensor

from outgrow.engine.batches import count_sampled_layer
from outgrow.engine.device_staging import Copied, copy_ahead
from outgrow.engine.features.assembly import AwaitableFeatures
from outgrow.engine.features.store import CachedFeatureStore, FeatureRequest
from outgrow.engine.minibatch_loop import PrefetchConfig
from outgrow.engine.prefetch import prefetch_results
from outgrow.nn.layer import Features
from outgrow.ops.rng import fold_in
from outgrow.strategies.orchestrate.device_side import DeviceSide
from outgrow.strategies.orchestrate.host_side import HostSide, HotSlice, snapshot_parameters
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddingTable
from outgrow.strategies.orchestrate.load_balancer import LoadBalancer, Stopwatch
from outgrow.strategies.orchestrate.parameter_history import EpochStart, ParameterHistory, ParameterVersion
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SampledBatch, SuperBatches


class SuperBatchLoop:
    """Trains one worker's share of the batches of an epoch. Final.

    Args:
        device: Computes batches.
        cold_store: Rows of cold nodes, on the device.
        host_side: Creates the computation of hot nodes, for a sampler and its batches.
        loss: Returns the worker's share of the loss, from logits ``[n, C]`` of the seeds of a batch.
        history: Receives the parameters at the start of each batch.
        balancer: Fixes the hot nodes of each super-batch, and is told what it took.
        prefetch: How far sampling runs ahead.
        latest_parameters: Whether all slices are submitted at once, and use the newest parameters when they
            are computed; else one with each batch, with the parameters at its start.

    Attributes:
        wait_seconds: Seconds in which the device waited for the CPU; the caller may reset them to 0.
    """

    def __init__(
        self,
        device: DeviceSide,
        cold_store: CachedFeatureStore,
        host_side: Callable[[HotColdSampler, SuperBatches], HostSide],
        loss: Callable[[Tensor, SampledBatch], Tensor],
        history: ParameterHistory,
        balancer: LoadBalancer,
        *,
        prefetch: PrefetchConfig,
        latest_parameters: bool,
    ) -> None:
        self.device = device
        self.cold_store = cold_store
        self.host_side = host_side
        self.loss = loss
        self.history = history
        self.balancer = balancer
        self.prefetch = prefetch
        self.latest_parameters = latest_parameters
        self.wait_seconds = 0.0

    def steps(self, sampler: HotColdSampler, start: EpochStart) -> Generator[tuple[float, int]]:
        """Yield the loss and the number of seeds, over all workers, of each batch. All workers together.

        Args:
            sampler: Samples the batches; the balancer says which nodes are hot.
            start: The super-batches, and with which parameters hot nodes of the first one are computed.
        """
        timeline, supers = self.device.comm.timeline, start.supers
        cold = range(0) if start.earlier is not None else supers[0]

        def sample_step(task: tuple[int, Tensor]) -> SampledBatch:
            step, is_hot = task
            with timeline.span("draw"):
                return sampler._replace(is_hot=is_hot).sample_batch(step, all_cold=step in cold)

        # Taken as batches begin to be sampled: all batches of a super-batch have the same hot nodes.
        every = ((step, self.balancer.fix_hot_nodes(number)) for number, steps in enumerate(supers) for step in steps)
        sampled = prefetch_results(sample_step, every, threads=self.prefetch.threads, max_ahead=self.prefetch.batches)
        with (
            closing(SuperBatches(sampled, [len(each) for each in supers])) as batches,
            closing(self.host_side(sampler, batches)) as host,
            closing(self._wait_for_rows(batch for batch in batches if batch.step >= start.first)) as ready,
        ):
            num_slices = self._submit_first(host, start)
            stopwatch = Stopwatch()
            for number, steps in enumerate(supers):
                before = self.wait_seconds
                hot = self._wait_for_host(host, num_slices, len(sampler.is_hot)) if num_slices else None
                # Nothing is trained while the CPU computes hot nodes of the first one of an epoch.
                if number:
                    previous = supers[number - 1]
                    self._rebalance(number, stopwatch, self.wait_seconds - before, previous, start.first)
                elif len(supers) > 1:
                    stopwatch.read_and_reset()
                num_slices = len(steps) if number + 1 < len(supers) else 0
                for step in steps:
                    version = self._version_at(step, start, steps, sampler)
                    if num_slices:
                        # Before the step, so that the CPU computes them while the device trains.
                        host.submit_slices(self._make_slices(number + 1, steps, step), version)
                    if step < start.first:
                        continue
                    with timeline.span("wait for batches"):
                        batch = next(ready)
                    trained = self._train_step(sampler, *batch, hot, version)
                    stopwatch.pause()
                    yield trained
                    stopwatch.resume()
            # All that the device waits for in such an epoch.
            if len(supers) == 1:
                self._rebalance(0, stopwatch, self.wait_seconds - before, supers[0], start.first)

    def _rebalance(self, number: int, stopwatch: Stopwatch, waited: float, trained: range, first: int) -> None:
        """Tell the balancer what a super-batch took, and cache what moves to the device. All workers together.

        Args:
            number: Number of the super-batch whose hot nodes the CPU has computed.
            stopwatch: Has the seconds of that.
            waited: Seconds of them in which the device waited.
            trained: Steps that were trained meanwhile.
            first: First step of the epoch that is trained.
        """
        seconds = stopwatch.read_and_reset()
        # Of a super-batch that was interrupted only a part is trained.
        if trained.start >= first:
            self.balancer.rebalance(number, seconds, waited, len(trained))
        if self.balancer.has_cache:
            self.cold_store.extend_cache(self.balancer.nodes_to_cache(), self.balancer.num_nodes)

    def _submit_first(self, host: HostSide, start: EpochStart) -> int:
        """Submit the hot nodes of the first super-batch, if some are known; return the number of slices."""
        earlier, steps = start.earlier or [], start.supers[0]
        if self.latest_parameters:
            earlier = [snapshot_parameters(self.device.model, start.first)] * len(earlier)
        for index, version in enumerate(earlier):
            host.submit_slices([HotSlice(0, steps.start, index, len(earlier))], version)
        return len(earlier)

    def _version_at(self, step: int, start: EpochStart, steps: range, sampler: HotColdSampler) -> ParameterVersion:
        """Return the parameters at the start of a batch, and note them."""
        # Batches of an interrupted super-batch that were trained before.
        if step < start.first:
            return start.begun[step - steps.start]
        version = snapshot_parameters(self.device.model, step)
        self.history.record(sampler.epoch, steps, len(sampler.batches), version)
        return version

    def _wait_for_host(self, host: HostSide, num_slices: int, num_nodes: int) -> HotEmbeddingTable:
        """Wait for the slices of the CPU and return their table."""
        began = time.perf_counter()
        with self.device.comm.timeline.span("wait for the CPU"):
            table = HotEmbeddingTable([host.next_slice() for _ in range(num_slices)], num_nodes)
        self.wait_seconds += time.perf_counter() - began
        return table

    def _make_slices(self, number: int, previous_steps: range, step: int) -> list[HotSlice]:
        """Return the slices of a super-batch that the CPU may start before a step of the previous one."""
        slices = [
            HotSlice(number, previous_steps.stop, part, len(previous_steps)) for part in range(len(previous_steps))
        ]
        # All at once: each takes the newest parameters when the CPU gets to it.
        if self.latest_parameters:
            return slices if step == previous_steps.start else []
        # Slice k takes the parameters of batch k, so that results do not depend on timing.
        return [slices[step - previous_steps.start]]

    def _wait_for_rows(self, draws: Iterable[SampledBatch]) -> Generator[tuple[SampledBatch, Features]]:
        """Yield batches with the features of their cold nodes, which are requested one batch ahead."""

        def prepare(draw: SampledBatch) -> tuple[SampledBatch, FeatureRequest]:
            with self.device.comm.timeline.span("gather"):
                return draw, self.cold_store.prepare_request(draw.cold_block.src_nodes)

        def send(prepared: tuple[SampledBatch, FeatureRequest]) -> tuple[SampledBatch, AwaitableFeatures]:
            draw, request = prepared
            return draw, self.cold_store.send_request(request)

        def copy(sent: tuple[SampledBatch, AwaitableFeatures]) -> Copied[tuple[SampledBatch, Features]]:
            draw, pending = sent
            device = self.device.comm.device
            cold, *above = (block.to(device) for block in (draw.cold_block, *draw.upper_blocks))
            rows = pending.wait()
            return (draw._replace(cold_block=cold, upper_blocks=above), rows), (cold, above, rows)

        # One thread gathers. Requests are sent by this thread alone, so in the same order on all workers.
        with closing(prefetch_results(prepare, draws, threads=1, max_ahead=1)) as requests:
            sent = prefetch_results(send, requests, threads=0, max_ahead=1)
            if self.device.comm.device.type == "cpu":
                yield from ((draw, pending.wait()) for draw, pending in sent)
            else:
                # Rows that are cached on the device are read where they are, and others copied, one batch ahead.
                yield from copy_ahead(sent, copy, self.device.comm, takes_items=False)

    def _train_step(
        self,
        sampler: HotColdSampler,
        batch: SampledBatch,
        x: Features,
        hot: HotEmbeddingTable | None,
        version: ParameterVersion,
    ) -> tuple[float, int]:
        comm = self.device.comm
        model = self.device.model
        loss = torch.zeros((), dtype=torch.float64)
        # Without seeds of links a worker still takes part in the exchanges of their loss.
        if len(batch.seeds) or batch.links is not None:
            key = fold_in(sampler.sampler.sampling.seed, sampler.epoch, batch.step)
            with comm.timeline.span("forward"):
                found = self.loss(self.device.compute_logits(batch, x, hot, key), batch)
            # Where all bottom nodes are hot and the layers above have no parameters, there is no gradient.
            if found.requires_grad:
                with comm.timeline.span("backward"):
                    torch.autograd.backward(found)
                self.device.add_hot_gradient(version)
            loss += found.detach().cpu()
        # Also without seeds, since all workers take part.
        comm.all_reduce_gradients(model)
        for block in (batch.cold_block, *batch.upper_blocks):
            count_sampled_layer(comm.ledger, block.edges)
        return comm.all_reduce(loss).item(), batch.num_seeds
