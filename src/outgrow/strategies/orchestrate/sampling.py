"""What is drawn of the batches of an epoch, and how these are put together to super-batches."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import by_batches
from outgrow.graph.sampling.neighbor_sampler import Sampler

_BOTTOM, _ABOVE = slice(0, 1), slice(1, None)
_HOT = -3  # steps of batches are numbered from 0


def hot_step(first_step: int) -> int:
    """The step by which hot nodes draw that the super-batch from step ``first_step`` on will use."""
    return _HOT - first_step


class Draw(NamedTuple):
    """The sampled neighbourhood of a worker's seeds, of which hot nodes have none in the bottom layer.

    Attributes:
        step: Number of the batch in the epoch.
        seeds: ``[n]`` int64, the worker's own.
        num_seeds: Number of seeds of the batch, over all workers.
        above: A block for each layer but the bottom one.
        cold: The block of the bottom layer: what the device computes.
        cold_to: ``[c]`` int64, rows of its destinations among the sources of the layer above; None for all in order.
        hot: ``[h]`` int64, the other sources of the layer above.
        hot_to: ``[h]`` int64, their rows.
    """

    step: int
    seeds: Tensor
    num_seeds: int
    above: list[Block]
    cold: Block
    cold_to: Tensor | None
    hot: Tensor
    hot_to: Tensor


class Drawing(NamedTuple):
    """How batches of an epoch are drawn.

    Attributes:
        sampler: Draws neighbourhoods.
        epoch: Number of the epoch.
        batches: Seeds of each step, over all workers.
        mine: Those of some seeds that the worker computes.
        is_hot: ``[V]`` bool.
    """

    sampler: Sampler
    epoch: int
    batches: Sequence[Tensor]
    mine: Callable[[Tensor], Tensor]
    is_hot: Tensor

    def draw(self, step: int, *, all_cold: bool) -> Draw:
        """The neighbourhood of a step's seeds; may run in any thread.

        Args:
            step: Number of the batch.
            all_cold: Whether no node is hot yet.
        """
        seeds = self.mine(self.batches[step])
        above = self.sampler.blocks(seeds, self.epoch, step, _ABOVE)
        nodes = above[0].src_nodes
        hot_to = nodes[:0] if all_cold else self.is_hot[nodes].nonzero()[:, 0]
        cold_to = None
        if len(hot_to):
            cold_to = (~self.is_hot[nodes]).nonzero()[:, 0]
        cold = self.bottom(nodes if cold_to is None else nodes[cold_to], step)
        return Draw(step, seeds, len(self.batches[step]), above, cold, cold_to, nodes[hot_to], hot_to)

    def bottom(self, nodes: Tensor, step: int) -> Block:
        """The block of the bottom layer around some nodes."""
        [block] = self.sampler.blocks(nodes, self.epoch, step, _BOTTOM)
        return block


class SuperBatches:
    """The draws of consecutive batches, made ready by whoever asks first. Final; several threads may ask.

    Args:
        draws: Of all batches, in order.
        sizes: How many batches each super-batch has.
    """

    def __init__(self, draws: Generator[Draw], sizes: Sequence[int]) -> None:
        self._draws, self._sizes = draws, sizes
        self._ready = dict[int, list[Draw]]()
        self._begun, self._lock = 0, threading.Lock()

    def at(self, number: int) -> list[Draw]:
        """The draws of a super-batch, of which the last three are kept."""
        with self._lock:
            while self._begun <= number:
                self._ready[self._begun] = [*islice(self._draws, self._sizes[self._begun])]
                self._ready.pop(self._begun - 3, None)
                self._begun += 1
            return self._ready[number]

    def __iter__(self) -> Iterator[Draw]:
        """The draws one by one."""
        for number in range(len(self._sizes)):
            yield from self.at(number)

    def close(self) -> None:
        """End what draws."""
        with self._lock:
            self._draws.close()


def super_batches(first: int, last: int, size: int, restart: int | None) -> list[list[range]]:
    """The steps of an epoch from ``first`` to ``last - 1`` as super-batches, in parts that know nothing of each other.

    Args:
        first: The first step; a part begins with it.
        last: The end.
        size: Steps of a super-batch; the last of a part may have fewer.
        restart: After how many steps of the epoch another part begins; None for never.
    """
    found = []
    while first < last:
        end = last if restart is None else min(last, (first // restart + 1) * restart)
        found.append([range(start, min(start + size, end)) for start in range(first, end, size)])
        first = end
    return found


def bottom_counts(drawings: Sequence[Drawing]) -> Tensor:
    """``[V]`` int64: in how many batches of some epochs the bottom layer computes each node for this worker."""
    above = (
        drawing.sampler.blocks(drawing.mine(seeds), drawing.epoch, step, _ABOVE)
        for drawing in drawings
        for step, seeds in enumerate(drawing.batches)
    )
    return by_batches((blocks[0].src_nodes for blocks in above), drawings[0].sampler.draws.num_nodes)
