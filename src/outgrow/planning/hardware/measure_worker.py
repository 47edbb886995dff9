"""How fast a worker computes, takes rows from memory and draws samples; all workers of a host at the same time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.graph.topology import Topology
from outgrow.ops.rows.gather import take_rows
from outgrow.planning.hardware.measure_layers import FLOAT, WIDTHS, LayerSpeed, layer_speed_on
from outgrow.planning.hardware.measure_training import epoch_seconds_on
from outgrow.planning.hardware.profile import ByWidth
from outgrow.planning.hardware.timing import best_seconds
from outgrow.runtime.system.device import Streams

_NODES, _DEGREE, _TABLE_BYTES = 1 << 17, 8, 1 << 26
_PRODUCT_ROWS, _PRODUCT_VALUES, _COPIED = 1 << 13, 1 << 22, 1 << 24
_SEEDS, _FANOUT, _STEPS = 1024, (10, 10), 3


@dataclass(frozen=True, kw_only=True)
class Speed:
    """What one worker does, while all others of its host do the same; units as in `Device` and `Host`.

    Attributes:
        product: See `Device`.
        layers: See `Device`.
        copy: See `Device`.
        gather: See `Host`.
        sampled_edges: See `Host`.
        epoch_seconds: See `outgrow.planning.hardware.measure_training`.
    """

    product: ByWidth
    layers: LayerSpeed
    copy: float
    gather: ByWidth
    sampled_edges: float
    epoch_seconds: float


def speed_on(device: torch.device) -> Speed:
    """Measure this worker, some five seconds long once its kernels are compiled."""
    finish = Streams(device).finish
    values = torch.rand(_COPIED, device=device)
    other = torch.empty_like(values)
    return Speed(
        product=ByWidth({width: _product_rate(width, device, finish) for width in WIDTHS}),
        layers=layer_speed_on(device),
        copy=2 * values.nbytes / best_seconds(lambda: other.copy_(values), finish),
        gather=ByWidth({width: _gather_rate(width) for width in WIDTHS}),
        sampled_edges=_sampling_rate(),
        epoch_seconds=epoch_seconds_on(device),
    )


def _product_rate(width: int, device: torch.device, finish: Callable[[], None]) -> float:
    rows = torch.rand(max(_PRODUCT_ROWS, _PRODUCT_VALUES // width), width, device=device)
    weight = torch.rand(width, width, device=device)
    out = torch.empty_like(rows)
    return 2 * rows.numel() * width / best_seconds(lambda: torch.mm(rows, weight, out=out), finish)


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
