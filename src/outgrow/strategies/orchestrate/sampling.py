"""Sampled batches with hot and cold nodes, and their grouping into super-batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import count_accesses
from outgrow.engine.link_batches import Batch, LinkBatch
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.ops.rows.positions import find_positions

_BOTTOM, _ABOVE = slice(0, 1), slice(1, None)
_HOT = -3  # steps of batches are numbered from 0


def hot_step(first_step: int) -> int:
    """Return the step in the random key of hot nodes, for the super-batch that starts at ``first_step``."""
    return _HOT - first_step


class SampledBatch(NamedTuple):
    """The sampled neighbourhood of a worker's seeds, without the bottom layer of hot nodes.

    Attributes:
        step: Number of the batch in the epoch.
        seeds: ``[n]`` int64, the worker's own seeds.
        num_seeds: Number of seeds of the batch, over all workers.
        upper_blocks: A block for each layer but the bottom one.
        cold_block: The block of the bottom layer that the device computes.
        cold_positions: ``[c]`` int64, rows of its destinations among the sources of the layer above; None for
            all rows in order.
        hot_nodes: ``[h]`` int64, the other sources of the layer above.
        hot_positions: ``[h]`` int64, their rows.
        links: The links whose seeds these are; None for a batch of nodes.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    upper_blocks: list[Block]
    cold_block: Block
    cold_positions: Tensor | None
    hot_nodes: Tensor
    hot_positions: Tensor
    links: LinkBatch | None = None


class HotColdSampler(NamedTuple):
    """Samples the batches of an epoch.

    Attributes:
        sampler: Samples neighbourhoods.
        epoch: Number of the epoch.
        batches: The batch of each step.
        select_seeds: Returns the seeds of a batch that the worker computes.
        is_hot: ``[V]`` bool, whether each node is hot.
    """

    sampler: NeighborSampler
    epoch: int
    batches: Sequence[Batch]
    select_seeds: Callable[[Batch], Tensor]
    is_hot: Tensor

    def sample_batch(self, step: int, *, all_cold: bool) -> SampledBatch:
        """Sample the neighbourhood of a step's seeds; may run in any thread.

        Args:
            step: Number of the batch.
            all_cold: Whether no node is hot yet.
        """
        batch = self.batches[step]
        links = batch if isinstance(batch, LinkBatch) else None
        excluded = None if links is None else links.excluded
        seeds = self.select_seeds(batch)
        above = self.sampler.sample_blocks(seeds, self.epoch, step, _ABOVE)
        nodes = above[0].src_nodes
        # Nothing is ready for the first super-batch, so all of its nodes are cold.
        is_hot = torch.zeros(len(nodes), dtype=torch.bool) if all_cold else self.is_hot[nodes]
        if excluded is not None:
            # Results of hot nodes are those of several batches, which exclude other edges: ends of links do without.
            is_hot &= find_positions(excluded.pairs.ends, nodes) < 0
        hot_to = is_hot.nonzero()[:, 0]
        cold_to = (~is_hot).nonzero()[:, 0] if len(hot_to) else None
        cold = self.bottom_block(nodes if cold_to is None else nodes[cold_to], step)
        if excluded is not None:
            views = self.sampler.sampling.views
            above = excluded.remove_from_all(above, views[_ABOVE])
            cold = excluded.remove_from(cold, views[0])
        return SampledBatch(step, seeds, len(batch), above, cold, cold_to, nodes[hot_to], hot_to, links)

    def bottom_block(self, nodes: Tensor, step: int) -> Block:
        """Sample the block of the bottom layer around some nodes."""
        [block] = self.sampler.sample_blocks(nodes, self.epoch, step, _BOTTOM)
        return block


class SuperBatches:
    """Sampled batches, grouped into super-batches on first access. Final; safe for several threads.

    Args:
        batches: All sampled batches, in order.
        sizes: Number of batches of each super-batch.
    """

    def __init__(self, batches: Generator[SampledBatch], sizes: Sequence[int]) -> None:
        self._batches = batches
        self._sizes = sizes
        self._ready = dict[int, list[SampledBatch]]()
        self._num_started = 0
        self._lock = threading.Lock()

    def get_super_batch(self, number: int) -> list[SampledBatch]:
        """Return the batches of a super-batch; only the last three super-batches are kept."""
        with self._lock:
            while self._num_started <= number:
                self._ready[self._num_started] = [*islice(self._batches, self._sizes[self._num_started])]
                # The CPU is at most one super-batch ahead of training, so older ones are not needed again.
                self._ready.pop(self._num_started - 3, None)
                self._num_started += 1
            return self._ready[number]

    def __iter__(self) -> Iterator[SampledBatch]:
        """Yield the batches one by one."""
        for number in range(len(self._sizes)):
            yield from self.get_super_batch(number)

    def close(self) -> None:
        """Stop sampling."""
        with self._lock:
            self._batches.close()


def plan_super_batches(num_steps: int, size: int) -> list[range]:
    """Group the steps of an epoch into super-batches.

    Args:
        num_steps: Number of steps of the epoch.
        size: Steps of a super-batch; the last one may have fewer.
    """
    return [range(start, min(start + size, num_steps)) for start in range(0, num_steps, size)]


def count_bottom_nodes(samplers: Sequence[HotColdSampler]) -> Tensor:
    """Count the batches of some epochs in which the bottom layer computes each node, ``[V]`` int64."""
    above = (
        drawing.sampler.sample_blocks(drawing.select_seeds(batch), drawing.epoch, step, _ABOVE)
        for drawing in samplers
        for step, batch in enumerate(drawing.batches)
    )
    return count_accesses((blocks[0].src_nodes for blocks in above), samplers[0].sampler.sampling.num_nodes)
