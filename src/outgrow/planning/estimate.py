"""The estimate of a strategy, and the parts of an epoch that it is made of, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from outgrow.core.ledger import Link
from outgrow.planning.cost_model import CostModel, LayerSeconds, LayerWork, step_seconds
from outgrow.planning.traffic import Bytes, Traffic
from outgrow.planning.workload import NeighborhoodStats, Workload
from outgrow.strategies.base import Strategy

_OPTIMIZER = 7
"""How often a parameter is read or written when the optimizer steps."""
_LOSS = 6
_SUMMED = 3
"""Messages of a step in which gradients and losses are summed."""


@dataclass(frozen=True, kw_only=True)
class EpochPart:
    """A part of an epoch of training, on one worker.

    Attributes:
        name: What it is, in words.
        seconds: How long it takes alone.
        hidden: How much of that passes while something else is done.
    """

    name: str
    seconds: float
    hidden: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """What training takes.

    Attributes:
        strategy: How it is trained.
        traffic: Bytes that cross links.
        parts: Of an epoch, without evaluation.
        peak_bytes: The most that the DEVICE tier of a worker holds.
        chunks: In how many chunks `offload` trains that chooses by itself, 0 for all at once; None of others.
    """

    strategy: Strategy
    traffic: Traffic
    parts: tuple[EpochPart, ...]
    peak_bytes: int
    chunks: int | None = None

    @property
    def epoch_seconds(self) -> float:
        """Of an epoch."""
        return sum(part.seconds - part.hidden for part in self.parts)


def full_graph_parts(
    work: Workload, costs: CostModel, nodes: float, edges: float, slices: int = 1, attention_share: float = 1.0
) -> list[EpochPart]:
    """Every layer once, forward and backward; the loss, and a step of the optimizer.

    Args:
        work: What is trained.
        costs: How fast.
        nodes: Of a worker.
        edges: Over which it sums.
        slices: Into how many slices the columns of these sums are dealt out.
        attention_share: Share of the edges whose attention it computes, in layers that only propagate.
    """
    seen = nodes * slices
    layers = [
        LayerWork(nodes, nodes, edges + layer.spec.self_loops * seen, attention_share if layer.only_propagates else 1.0)
        for layer in work.model.layers
    ]
    return [
        *layer_parts(step_seconds(work, costs, layers, cached_aggregate=True, slices=slices)),
        optimizer_part(work, costs, nodes, 1),
    ]


def minibatch_parts(
    work: Workload, costs: CostModel, neighborhood: NeighborhoodStats, full: float, steps: int
) -> list[EpochPart]:
    """Every layer over the neighbourhoods of a worker's seeds, for each batch; the slowest worker counts."""
    slowest = int(neighborhood.edges.sum(1).argmax())
    rows, edges = neighborhood.rows[slowest], neighborhood.edges[slowest]
    layers = [LayerWork(rows[i], rows[i + 1], edges[i]) for i in range(len(edges))]
    found = layer_parts(step_seconds(work, costs, layers, cached_aggregate=False), full)
    found.append(EpochPart(name="new edges", seconds=full * costs.new_edge_seconds(float(edges.sum()))))
    return [*found, optimizer_part(work, costs, float(rows[-1]), steps)]


def layer_parts(layers: Sequence[LayerSeconds], steps: float = 1) -> list[EpochPart]:
    """What layers take in so many steps, by what is done."""
    names = ("products", "sums over neighbours", "attention", "activations, dropout, small steps")
    found = [
        EpochPart(name=name, seconds=steps * sum(each))
        for name, each in zip(names, zip(*layers, strict=True), strict=True)
    ]
    return [part for part in found if part.seconds]


def optimizer_part(work: Workload, costs: CostModel, rows: float, steps: float) -> EpochPart:
    """The loss, and the optimizer's step."""
    numbers = work.model.parameters[1]
    seconds = costs.memory_pass_seconds(_OPTIMIZER * numbers)
    seconds += costs.memory_pass_seconds(_LOSS * rows * work.graph.classes)
    return EpochPart(name="loss and optimizer", seconds=steps * seconds)


def transfer_parts(costs: CostModel, epoch: Bytes, exchanges: float, steps: int = 1) -> list[EpochPart]:
    """What crosses links in an epoch, in so many exchanges between workers and the sums of each step."""
    messages = exchanges + _SUMMED * steps
    return [
        EpochPart(name=link.value.replace("_", " "), seconds=took)
        for link, took in costs.transfer_seconds(epoch, messages).items()
    ]


def overlapped_part(costs: CostModel, name: str, seconds: float, busy: float) -> EpochPart:
    """What is done beside the computation: at its cost, where both need the same cores."""
    if costs.shares_device:
        return EpochPart(name=name, seconds=seconds, hidden=min(seconds * (1 - 1 / costs.cores_per_worker), busy))
    return EpochPart(name=name, seconds=seconds, hidden=min(seconds, busy))


def batch_prep_parts(
    work: Workload, costs: CostModel, edges: float, rows: float, busy: float, threads: tuple[int | None, int | None]
) -> list[EpochPart]:
    """Batches of an epoch that are drawn, and whose features are gathered, while those before are computed.

    Args:
        work: What is trained.
        costs: How fast.
        edges: That are drawn.
        rows: Of features that are gathered, and come to the device.
        busy: Seconds of the computation.
        threads: Of a worker, that draw and that gather; None for half as many as compute.
    """
    drawing, gathering = (
        costs.sampling_seconds(edges, threads[0]),
        costs.gather_seconds(rows, work.graph.row_bytes, threads[1]),
    )
    found = [
        overlapped_part(costs, "neighbours drawn", drawing, busy),
        overlapped_part(costs, "features gathered", gathering, busy),
    ]
    return found + feature_copy_parts(work, costs, rows, busy)


def feature_copy_parts(work: Workload, costs: CostModel, rows: float, busy: float) -> list[EpochPart]:
    """Rows of features that come to a device with memory of its own, while batches before are computed."""
    if costs.shares_device:
        return []
    seconds = costs.profile.links[Link.HOST_TO_DEVICE].transfer_seconds(rows * work.graph.row_bytes)
    return [EpochPart(name="features to the device", seconds=seconds, hidden=min(seconds, busy))]
