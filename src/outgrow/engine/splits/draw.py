"""A worker's part of a mini-batch, drawn by all workers together."""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.graph.split_sampler import SplitHop, SplitSampler, Wish
from outgrow.runtime.comm import Comm
from outgrow.runtime.voyage import Route


def drawn(sampler: SplitSampler, line: Comm, seeds: Tensor, epoch: int, step: int) -> list[SplitHop]:
    """A worker's part of a batch, one for each layer. All workers together, in the same order.

    For each hop a count of 8 bytes for each other worker, and 8 bytes for each node that is passed on (``ids``).

    Args:
        sampler: Draws for the worker's own nodes.
        line: A line to the other workers that nobody else uses.
        seeds: ``[n]`` int64, own seeds of the step.
        epoch: Part of the key.
        step: Part of the key.
    """
    talk = sampler.hops(seeds, epoch, step)
    wish = next(talk)
    while True:
        try:
            wish = talk.send(_passed_on(wish, line))
        except StopIteration as end:
            hops: list[SplitHop] = end.value
            return hops


def _passed_on(wish: Wish, line: Comm) -> Wish:
    """What the others want of this worker, told by each of them."""
    sizes = line.swapped(torch.tensor(wish.sizes), Kind.IDS)
    route = Route(wish.sizes, tuple(sizes.tolist()))
    return Wish(line.rows(wish.nodes, route, Kind.IDS).wait(), route.receive)
