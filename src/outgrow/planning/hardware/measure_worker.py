"""How fast a worker computes, takes rows from memory and draws samples; all workers of a host at the same time."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from itertools import count

import torch
from torch import Tensor

from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.ops.rows.gather import gather_rows
from outgrow.planning.hardware.measure_layers import (
    FLOAT,
    WIDTHS,
    LayerSpeed,
    best_seconds,
    measure_layer_speed,
    typical_seconds,
)
from outgrow.planning.hardware.measure_training import measure_epoch_seconds, measure_step_overhead
from outgrow.planning.hardware.profile import RateByWidth
from outgrow.runtime.system.device import DeviceStreams
from outgrow.runtime.system.process_memory import LARGE_BYTES, return_freed_memory

_NODES, _SAMPLED_NODES, _DEGREE, _TABLE_BYTES = 1 << 17, 1 << 20, 8, 1 << 26
_PRODUCT_ROWS, _PRODUCT_VALUES, _COPIED = 1 << 13, 1 << 22, 1 << 24
_SEEDS, _FANOUT = 1024, (10, 10)


@dataclass(frozen=True, kw_only=True)
class WorkerSpeed:
    """What one worker does, while all others of its host do the same; units as in `DeviceProfile` and `HostProfile`.

    Attributes:
        product: See `DeviceProfile`.
        layers: See `LayerSpeed`.
        copy: See `DeviceProfile`.
        gather: See `HostProfile`.
        sampled_edges: See `HostProfile`.
        step_overhead_seconds: See `DeviceProfile`.
        epoch_seconds: See `outgrow.planning.hardware.measure_training`.
    """

    product: RateByWidth
    layers: LayerSpeed
    copy: float
    gather: RateByWidth
    sampled_edges: float
    step_overhead_seconds: float
    epoch_seconds: float


def measure_worker(device: torch.device) -> WorkerSpeed:
    """Measure this worker, some five seconds long once its kernels are compiled."""
    finish = DeviceStreams(device).synchronize
    # As in training: how new memory is got takes a part of the time.
    return_freed_memory(LARGE_BYTES)
    layers = measure_layer_speed(device)
    values = torch.rand(_COPIED, device=device)
    other = torch.empty_like(values)
    return WorkerSpeed(
        product=RateByWidth({width: _matmul_rate(width, device, finish) for width in WIDTHS}),
        layers=layers,
        copy=2 * values.nbytes / best_seconds(lambda: other.copy_(values), finish),
        gather=RateByWidth({width: _gather_rate(width) for width in WIDTHS}),
        sampled_edges=_sampling_rate(),
        step_overhead_seconds=measure_step_overhead(device, layers.layer_seconds),
        epoch_seconds=measure_epoch_seconds(device),
    )


def _matmul_rate(width: int, device: torch.device, synchronize: Callable[[], None]) -> float:
    """Operations per second of a product of rows with a matrix and of both its gradients, all into new memory."""
    rows = torch.rand(max(_PRODUCT_ROWS, _PRODUCT_VALUES // width), width, device=device, requires_grad=True)
    weight = torch.rand(width, width, device=device, requires_grad=True)
    gradient = torch.rand_like(rows)

    def run_product() -> None:
        (rows @ weight).backward(gradient)  # type: ignore[no-untyped-call]
        rows.grad = weight.grad = None

    return 3 * 2 * rows.numel() * width / best_seconds(run_product, synchronize)


def _gather_rate(width: int) -> float:
    rows = torch.rand(_table_rows(width), width)
    at = torch.randperm(len(rows))
    out = torch.empty_like(rows)
    return out.nbytes / best_seconds(lambda: gather_rows(rows, at, out, None))


def _sampling_rate() -> float:
    """Edges of batches that one thread draws in a second, each of other nodes than the last, from a large graph."""
    sampler = NeighborSampler([_random_topology(_SAMPLED_NODES)] * len(_FANOUT), _FANOUT, 0)
    order = torch.randperm(_SAMPLED_NODES)
    steps = count()
    drawn: list[int] = []

    def sample_edges() -> None:
        step = next(steps)
        seeds = order[step * _SEEDS : (step + 1) * _SEEDS]
        drawn.append(sum(block.edges.num_edges for block in sampler.sample_blocks(seeds, 1, step)))

    seconds = typical_seconds(sample_edges)
    return statistics.median(drawn) / seconds


def _table_rows(width: int) -> int:
    """Rows of a table that is larger than caches, and small beside memory."""
    return min(_NODES, _TABLE_BYTES // (FLOAT * width))


@cache
def _random_topology(num_nodes: int) -> Topology:
    generator = torch.Generator().manual_seed(0)
    indices: Tensor = torch.randint(num_nodes, (num_nodes * _DEGREE,), generator=generator, dtype=torch.int32)
    return Topology(indptr=torch.arange(num_nodes + 1) * _DEGREE, indices=indices)
