"""The estimate of a strategy, and the parts of an epoch that it is made of, in seconds."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from outgrow.core.ledger import Link
from outgrow.planning.batch_stats import NeighborhoodStats
from outgrow.planning.cost_model import CostModel, LayerSeconds, LayerWork, step_seconds
from outgrow.planning.hardware.corrections import Corrections, WorkKind
from outgrow.planning.traffic import Bytes, Traffic
from outgrow.planning.workload import WHOLE_LAYER, Workload
from outgrow.strategies.base import Strategy

_OPTIMIZER = 7
"""Reads and writes of a parameter in an optimizer step: Adam reads the gradient, and updates three tensors."""
_LOSS = 6
"""Reads and writes of a logit for the loss and its gradient."""
_SUMMED = 3
"""Messages of a step in which gradients and losses are summed."""


@dataclass(frozen=True, kw_only=True)
class EpochPart:
    """A part of an epoch of training, on one worker.

    Attributes:
        name: Name of the part, in words.
        seconds: Its duration when nothing else runs.
        hidden: Seconds of that which overlap with other parts.
        kind: What is done in it, by which it is corrected.
    """

    name: str
    seconds: float
    hidden: float = 0.0
    kind: WorkKind = WorkKind.COMPUTATION

    def scale(self, factor: float) -> EpochPart:
        """Return the part with so many times the seconds."""
        return replace(self, seconds=factor * self.seconds, hidden=factor * self.hidden)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The time, traffic and memory that training takes.

    Attributes:
        strategy: The strategy.
        traffic: Bytes that cross links.
        parts: Parts of an epoch, without evaluation.
        evaluation: Parts of an evaluation on validation nodes or links.
        peak_bytes: Peak bytes in the DEVICE tier of a worker.
        chunks: Number of chunks that `offload` chooses, 0 for the whole graph at once, or `tensor` within a limit of
            memory; None for other strategies.
    """

    strategy: Strategy
    traffic: Traffic
    parts: tuple[EpochPart, ...]
    peak_bytes: int
    chunks: int | None = None
    evaluation: tuple[EpochPart, ...] = ()

    @property
    def epoch_seconds(self) -> float:
        """Seconds of an epoch; time that overlaps with other parts counts once."""
        return sum(part.seconds - part.hidden for part in self.parts)

    @property
    def evaluation_seconds(self) -> float:
        """Seconds of an evaluation."""
        return sum(part.seconds - part.hidden for part in self.evaluation)

    def seconds_by_kind(self) -> dict[WorkKind, float]:
        """Return the seconds of an epoch by kind of work, without what is hidden."""
        return {kind: sum(part.seconds - part.hidden for part in self.parts if part.kind == kind) for kind in WorkKind}

    def correct(self, corrections: Corrections) -> Estimate:
        """Return the estimate as runs on the machine have taught to correct it."""
        parts, evaluation = (
            tuple(part.scale(corrections.factors[part.kind]) for part in each) for each in (self.parts, self.evaluation)
        )
        held = round(corrections.memory * self.peak_bytes)
        return replace(self, parts=parts, evaluation=evaluation, peak_bytes=held)


def full_graph_parts(
    work: Workload,
    costs: CostModel,
    nodes: float,
    edges: float,
    slices: int = 1,
    attention_share: float = 1.0,
    last_shares: tuple[float, float] = WHOLE_LAYER,
) -> list[EpochPart]:
    """Return the parts of a full-graph epoch: every layer forward and backward, the loss and an optimizer step.

    Args:
        work: The graph and the model.
        costs: The rates.
        nodes: Nodes of a worker.
        edges: Edges that it aggregates over.
        slices: Number of column slices that aggregation is divided into.
        attention_share: Share of the edges whose attention it computes, in layers that only propagate.
        last_shares: Shares of the nodes and of the edges that the last layer computes.
    """
    layers = [
        each._replace(attention_share=attention_share if layer.only_propagates else 1.0)
        if not layer.is_constant
        else LayerWork(0, 0, 0)
        for each, layer in zip(list_whole_layers(work, nodes, edges, slices), work.model.layers, strict=True)
    ]
    of_nodes, of_edges = last_shares
    last = layers[-1]
    layers[-1] = last._replace(destinations=of_nodes * last.destinations, edges=of_edges * last.edges)
    return [
        *layer_parts(step_seconds(work, costs, layers, cached_aggregate=True, slices=slices)),
        optimizer_part(work, costs, nodes, 1),
    ]


def list_whole_layers(work: Workload, nodes: float, edges: float, slices: int = 1) -> list[LayerWork]:
    """Return what a worker computes of each layer for all its nodes; arguments as those of `full_graph_parts`."""
    # A worker with a slice of the columns aggregates for the nodes of all workers, self-loops included.
    return [LayerWork(nodes, nodes, edges + layer.spec.self_loops * nodes * slices) for layer in work.model.layers]


LAYER_PARTS = ("products", "sums over neighbours", "attention", "activations, dropout, small steps")
"""Names of the parts of layers, in the order of `LayerSeconds`."""


def minibatch_parts(
    work: Workload, costs: CostModel, neighborhood: NeighborhoodStats, full: float, steps: int
) -> list[EpochPart]:
    """Return the parts of an epoch of mini-batches, computed by the slowest worker."""
    # Gradients are summed in every step, so all workers wait for the one with the most edges.
    slowest = int(neighborhood.edges.sum(1).argmax())
    rows, edges = neighborhood.rows[slowest].tolist(), neighborhood.edges[slowest].tolist()
    layers = [LayerWork(rows[i], rows[i + 1], edges[i]) for i in range(len(edges))]
    # Batches differ in their nodes, so no aggregate of raw features can be kept from one to the next.
    found = layer_parts(step_seconds(work, costs, layers, cached_aggregate=False), full)
    # Each sampled block is a new CSC matrix, whose edge weights and transpose are computed first.
    # So are sparse rows of features, whose columns take the gradient of the first matrix.
    entries = rows[0] * work.graph.row_entries * (work.graph.sparse and work.model.reads_features)
    found.append(EpochPart(name="new edges", seconds=full * costs.new_edge_seconds(sum(edges) + entries)))
    return [*found, optimizer_part(work, costs, rows[-1], steps)]


def layer_parts(layers: Sequence[LayerSeconds], steps: float = 1) -> list[EpochPart]:
    """Return the parts of ``steps`` steps by type of work, added up over the layers; empty parts are left out."""
    found = [
        EpochPart(name=name, seconds=steps * sum(each))
        for name, each in zip(LAYER_PARTS, zip(*layers, strict=True), strict=True)
    ]
    return [part for part in found if part.seconds]


def optimizer_part(work: Workload, costs: CostModel, rows: float, steps: float) -> EpochPart:
    """Return the part of the loss and the optimizer's steps, and of beginning a step."""
    # Both are element-wise, so only the bytes that they read and write count.
    numbers = work.model.parameters[1] + work.model.embedding_numbers / costs.layout.workers
    seconds = costs.memory_pass_seconds(_OPTIMIZER * numbers)
    seconds += costs.memory_pass_seconds(_LOSS * rows * work.graph.classes) + costs.step_overhead_seconds(1)
    return EpochPart(name="loss and optimizer", seconds=steps * seconds)


def transfer_parts(costs: CostModel, epoch: Bytes, exchanges: float, steps: int = 1) -> list[EpochPart]:
    """Return a part for each link: the bytes of an epoch, in so many exchanges, and the all-reduces of each step."""
    messages = exchanges + _SUMMED * steps
    return [
        EpochPart(name=name_link(link), seconds=took, kind=WorkKind.TRANSFER)
        for link, took in costs.transfer_seconds(epoch, messages).items()
    ]


def name_link(link: Link) -> str:
    """Return the name of the part in which bytes cross a link: ``"host to device"``."""
    return link.value.replace("_", " ")


def overlapped_part(
    costs: CostModel, name: str, seconds: float, busy: float, kind: WorkKind = WorkKind.PREPARATION
) -> EpochPart:
    """Return a part that overlaps with ``busy`` seconds of computation."""
    # On a CPU the background thread takes a core away from the computation for as long as it works:
    # that much of its time is not hidden.
    share = 1 - 1 / costs.cores_per_worker if costs.shares_device else 1.0
    return EpochPart(name=name, seconds=seconds, hidden=min(share * seconds, busy), kind=kind)


def batch_prep_parts(
    work: Workload,
    costs: CostModel,
    edges: float,
    rows: float,
    busy: float,
    threads: tuple[int | None, int | None],
    *,
    copies_ahead: bool,
) -> list[EpochPart]:
    """Return the parts of sampling batches and gathering their features while earlier batches are computed.

    Args:
        work: The graph and the model.
        costs: The rates.
        edges: Sampled edges.
        rows: Feature rows that are gathered and copied to the device.
        busy: Seconds of computation.
        threads: Threads of a worker that sample, and that gather; None for half as many as compute.
        copies_ahead: Whether rows are copied to the device meanwhile, too.
    """
    sampling = costs.sampling_seconds(edges, threads[0])
    gathering = costs.gather_seconds(rows, work.graph.row_bytes, threads[1])
    found = [
        overlapped_part(costs, "neighbours drawn", sampling, busy),
        overlapped_part(costs, "features gathered", gathering, busy),
    ]
    return found + feature_copy_parts(work, costs, rows, busy if copies_ahead else 0.0)


def feature_copy_parts(work: Workload, costs: CostModel, rows: float, busy: float) -> list[EpochPart]:
    """Return the part of copying feature rows to a device with its own memory, while ``busy`` seconds are computed."""
    if costs.shares_device:
        return []
    # A copy engine moves the rows, so none of the time is taken from the computation.
    seconds = costs.profile.links[Link.HOST_TO_DEVICE].transfer_seconds(rows * work.graph.row_bytes)
    return [overlapped_part(costs, "features to the device", seconds, busy, WorkKind.TRANSFER)]
