"""How fast a worker computes, takes rows from memory and draws samples; all workers of a host at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from outgrow.graph.csc import Topology
from outgrow.graph.sampler import Sampler
from outgrow.ops.gather import take_rows
from outgrow.ops.weighted_sum import WeightedSum
from outgrow.planning.rates import ByWidth
from outgrow.runtime.device import Streams

FLOAT = 4
WIDTHS = (4, 16, 64, 256, 1024)
_NODES, _DEGREE, _TABLE_BYTES = 1 << 17, 8, 1 << 26
_PRODUCT_ROWS, _PRODUCT_VALUES, _COPIED, _SMALL_CALLS = 1 << 13, 1 << 22, 1 << 24, 200
_SEEDS, _FANOUT, _STEPS = 1024, (10, 10), 3
_SECONDS, _LEAST_TURNS = 0.2, 3


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one worker does, while all others of its host do the same. Units as in `Device` and `Host`."""

    product: ByWidth
    aggregate: ByWidth
    copy: float
    call_seconds: float
    gather: ByWidth
    sampled_edges: float


def best_seconds(work: Callable[[], object], finish: Callable[[], None] = lambda: None) -> float:
    """The least time that something took in some turns, after one that is not counted.

    Args:
        work: What to do.
        finish: Waits until what was begun on a device is done.
    """
    best, until = float("inf"), 0.0
    turn = 0
    while turn <= _LEAST_TURNS or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        finish()
        seconds = time.perf_counter() - began
        if turn:
            best = min(best, seconds)
        else:
            until = time.perf_counter() + _SECONDS
        turn += 1
    return max(best, 1e-9)


def speed_on(device: torch.device) -> Speed:
    """Measure this worker, some five seconds long once its kernels are compiled."""
    finish = Streams(device).finish
    values = torch.rand(_COPIED, device=device)
    other, one = torch.empty_like(values), torch.zeros(1, device=device)

    def small_calls() -> None:
        for _ in range(_SMALL_CALLS):
            one.add_(1)

    return Speed(
        product=ByWidth({width: _product_rate(width, device, finish) for width in WIDTHS}),
        aggregate=ByWidth({width: _aggregate_rate(width, device, finish) for width in WIDTHS}),
        copy=2 * values.nbytes / best_seconds(lambda: other.copy_(values), finish),
        call_seconds=best_seconds(small_calls, finish) / _SMALL_CALLS,
        gather=ByWidth({width: _gather_rate(width) for width in WIDTHS}),
        sampled_edges=_sampling_rate(),
    )


def _product_rate(width: int, device: torch.device, finish: Callable[[], None]) -> float:
    rows = torch.rand(max(_PRODUCT_ROWS, _PRODUCT_VALUES // width), width, device=device)
    weight = torch.rand(width, width, device=device)
    out = torch.empty_like(rows)
    return 2 * rows.numel() * width / best_seconds(lambda: torch.mm(rows, weight, out=out), finish)


def _aggregate_rate(width: int, device: torch.device, finish: Callable[[], None]) -> float:
    """A sum over random in-neighbours: a graph whose neighbours lie close together is summed faster."""
    topology = _random_topology(_nodes(width))
    block, add = topology.block.to(device), WeightedSum()
    rows = torch.rand(topology.num_nodes, 1, width, device=device)
    with torch.no_grad():
        seconds = best_seconds(lambda: add(block, rows, None, None), finish)
    return topology.num_edges * width * FLOAT / seconds


def _gather_rate(width: int) -> float:
    rows = torch.rand(_nodes(width), width)
    at = torch.randperm(len(rows))
    out = torch.empty_like(rows)
    return out.nbytes / best_seconds(lambda: take_rows(rows, at, out, None))


def _sampling_rate() -> float:
    sampler = Sampler([_random_topology(_NODES)] * len(_FANOUT), _FANOUT, 0)
    seeds = torch.randperm(_NODES)[:_SEEDS]

    def edges() -> int:
        drawn = (sampler.blocks(seeds, 1, step) for step in range(_STEPS))
        return sum(block.edges.num_edges for blocks in drawn for block in blocks)

    return edges() / best_seconds(edges)


def _nodes(width: int) -> int:
    """Rows of a table that is larger than caches, and small beside memory."""
    return min(_NODES, _TABLE_BYTES // (FLOAT * width))


@cache
def _random_topology(num_nodes: int) -> Topology:
    generator = torch.Generator().manual_seed(0)
    indices: Tensor = torch.randint(num_nodes, (num_nodes * _DEGREE,), generator=generator, dtype=torch.int32)
    return Topology(indptr=torch.arange(num_nodes + 1) * _DEGREE, indices=indices)
