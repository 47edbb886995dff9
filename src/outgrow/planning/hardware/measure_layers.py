"""How fast a worker computes what layers consist of, forward and backward, as training does."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.nn.zoo import GAT, GCN
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.epilogue import DropoutSpec
from outgrow.ops.epilogue import epilogue as finished
from outgrow.planning.hardware.profile import DEGREE, FAR_BYTES, NEAR_BYTES, RateByWidth
from outgrow.runtime.system.device import DeviceStreams

FLOAT = 4
WIDTHS = (4, 16, 64, 256, 1024)
_SUMMED_BYTES, _LARGEST = 1 << 27, 1 << 22
_HEADS, _HEAD_WIDTH, _NODES = 8, 8, 1 << 15
_SCORED_EDGES, _DEGREES = 1 << 19, (4, 16, 64, 256)
_FINISHED, _FINISHED_WIDTH = 1 << 22, 64
_TINY, _LAYERS = 64, 4
_SECONDS, _LEAST_TURNS = 0.1, 3


class LayerSpeed(NamedTuple):
    """What one worker does. Units as in `DeviceProfile`."""

    near: RateByWidth
    far: RateByWidth
    finish: float
    score: RateByWidth
    fresh: float
    layer_seconds: float


def measure_layer_speed(device: torch.device) -> LayerSpeed:
    """Measure this worker."""
    finish = DeviceStreams(device).synchronize

    def measure_sums(table_bytes: int) -> RateByWidth:
        return RateByWidth({width: _aggregation_rate(width, table_bytes, device, finish) for width in WIDTHS})

    return LayerSpeed(
        near=measure_sums(NEAR_BYTES),
        far=measure_sums(FAR_BYTES),
        finish=_epilogue_rate(device, finish),
        score=RateByWidth({degree: _attention_rate(degree, device, finish) for degree in _DEGREES}),
        fresh=_new_edge_rate(device, finish),
        layer_seconds=_tiny_step_seconds(device, finish) / _LAYERS,
    )


def _aggregation_rate(width: int, table_bytes: int, device: torch.device, synchronize: Callable[[], None]) -> float:
    """Bytes of rows that weighted sums over random in-neighbours read in a second, forward and backward."""
    nodes = max(DEGREE, min(table_bytes // (FLOAT * width), _LARGEST))
    destinations = min(nodes, _SUMMED_BYTES // (FLOAT * width * DEGREE))
    block, add = _random_block(nodes, destinations).to(device), WeightedSum()
    rows = torch.rand(nodes, 1, width, device=device, requires_grad=True)
    weight = torch.rand(block.edges.num_edges, 1, device=device)
    gradient = torch.rand(destinations, 1, width, device=device)

    def run_sum() -> None:
        add(block, rows, None, weight).backward(gradient)  # type: ignore[no-untyped-call]
        rows.grad = None

    return 2 * block.edges.num_edges * width * FLOAT / best_seconds(run_sum, synchronize)


def _epilogue_rate(device: torch.device, synchronize: Callable[[], None]) -> float:
    """Numbers that get a bias, an activation and dropout, and their gradients, in a second."""
    rows = _FINISHED // _FINISHED_WIDTH
    made = torch.rand(rows, _FINISHED_WIDTH, device=device, requires_grad=True)
    bias, nodes = torch.rand(_FINISHED_WIDTH, device=device), torch.arange(rows, device=device)
    gradient = torch.rand(rows, _FINISHED_WIDTH, device=device)

    def run_epilogue() -> None:
        out = finished(made, bias_F=bias, activation=torch.relu, drop=DropoutSpec(nodes, 1, 0.5))
        out.backward(gradient)  # type: ignore[no-untyped-call]
        made.grad = None

    return made.numel() / best_seconds(run_epilogue, synchronize)


def _attention_rate(degree: int, device: torch.device, synchronize: Callable[[], None]) -> float:
    """Scores of edges, of all heads, that attention takes beyond a sum of the same columns, in a second."""
    width = _HEADS * _HEAD_WIDTH
    nodes = _SCORED_EDGES // degree
    block = _random_block(nodes, nodes, degree).to(device)
    attending = GAT(width, width, width, layers=2, heads=_HEADS).to(device)
    summing = GCN(width, width, width, layers=2).to(device)
    seconds = [_time_layer(model, block, width, synchronize) for model in (attending, summing)]
    return block.edges.num_edges * _HEADS / max(seconds[0] - seconds[1], 1e-9)


def _time_layer(model: Model, block: Block, width: int, synchronize: Callable[[], None]) -> float:
    """Measure the first layer of a model, forward and backward."""
    layer = model.layers_list()[0]
    x = torch.rand(block.edges.num_dst, width, device=block.edges.indices.device, requires_grad=True)

    def run_layer() -> None:
        out: Tensor = layer(block.with_rng_key(1), x, x)
        out.sum().backward()  # type: ignore[no-untyped-call]

    return best_seconds(run_layer, synchronize)


def _new_edge_rate(device: torch.device, synchronize: Callable[[], None]) -> float:
    """Edges that are seen for the first time, and made ready for sums both ways, in a second."""
    block, add = _random_block(_NODES, _NODES).to(device), WeightedSum()
    rows = torch.rand(_NODES, 1, WIDTHS[0], device=device, requires_grad=True)
    gradient = torch.rand(_NODES, 1, WIDTHS[0], device=device)

    def make_run(of: Callable[[], Block]) -> Callable[[], None]:
        return lambda: add(of(), rows, None, None).backward(gradient)  # type: ignore[no-untyped-call]

    warm, fresh = make_run(lambda: block), make_run(lambda: replace(block, edges=replace(block.edges, cache={})))
    return block.edges.num_edges / max(best_seconds(fresh, synchronize) - best_seconds(warm, synchronize), 1e-9)


def _tiny_step_seconds(device: torch.device, synchronize: Callable[[], None]) -> float:
    """A step of training that computes next to nothing."""
    model = GCN(8, 8, 8, layers=_LAYERS, dropout=0.5).to(device)
    block = _random_block(_TINY, _TINY).to(device)
    x = torch.rand(_TINY, 8, device=device)

    def run_step() -> None:
        model([block] * _LAYERS, x, 1).sum().backward()
        model.zero_grad()

    return typical_seconds(run_step, synchronize)


@cache
def _random_block(nodes: int, destinations: int, degree: int = DEGREE) -> Block:
    """In-edges of the first nodes, from any."""
    generator = torch.Generator().manual_seed(0)
    indices = torch.randint(nodes, (destinations * degree,), generator=generator, dtype=torch.int32)
    indptr = torch.arange(nodes + 1).clamp(max=destinations) * degree
    return Topology(indptr=indptr, indices=indices).block.slice_destinations(0, destinations)


def _do_nothing() -> None:
    pass


def best_seconds(work: Callable[[], object], synchronize: Callable[[], None] = _do_nothing) -> float:
    """The least time that something took in some turns, after one that is not counted.

    Args:
        work: What to do.
        synchronize: Waits until what was begun on a device is done.
    """
    return max(min(_measure_turns(work, synchronize)), 1e-9)


def typical_seconds(work: Callable[[], object], synchronize: Callable[[], None] = _do_nothing) -> float:
    """The median; see `best_seconds`."""
    return max(statistics.median(_measure_turns(work, synchronize)), 1e-9)


def _measure_turns(work: Callable[[], object], synchronize: Callable[[], None]) -> list[float]:
    took: list[float] = []
    until = float("inf")
    while len(took) <= _LEAST_TURNS or time.perf_counter() < until:
        began = time.perf_counter()
        work()
        synchronize()
        took.append(time.perf_counter() - began)
        if len(took) == 1:
            until = time.perf_counter() + _SECONDS
    return took[1:]
