"""Seconds of an evaluation on validation nodes: all layers forward, of all nodes or of the scored nodes' neighbourhood.

What evaluations compute is decided as in `outgrow.planning.evaluation_memory`. Ranking the links that are held out is
counted by `outgrow.planning.link_costs`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from outgrow.inference.modes import NONE, SAMPLED
from outgrow.planning.batch_stats import ScoredNeighborhood
from outgrow.planning.cost_model import FORWARD_SHARE, CostModel, LayerWork, step_seconds
from outgrow.planning.estimate import (
    EpochPart,
    Estimate,
    layer_parts,
    list_whole_layers,
    name_link,
    overlapped_part,
    transfer_parts,
)
from outgrow.planning.estimators.full import choose_first_aggregate
from outgrow.planning.evaluation_memory import WHOLE_LAYERS, evaluated_neighborhoods
from outgrow.planning.hardware.corrections import WorkKind
from outgrow.planning.needed_rows import NeededShares, evaluated_shares
from outgrow.planning.peak_memory import whole_layers_fit
from outgrow.planning.workload import PartitionStats, Workload
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.tensor.memory import OVERLAPPING_CHUNKS
from outgrow.strategies.tensor.strategy import TensorParallel


def evaluation_parts(found: Estimate, work: Workload, costs: CostModel) -> tuple[EpochPart, ...]:
    """Return the parts of an evaluation after an epoch of a strategy; none if validation nodes are not evaluated.

    Args:
        found: The estimate of training, whose traffic is known.
        work: The graph and the model.
        costs: The rates.
    """
    strategy = found.strategy
    if work.evaluation[0] == NONE:
        return ()
    if isinstance(strategy, TensorParallel):
        return _sliced_parts(strategy, found, work, costs)
    if not strategy.uses_minibatches:
        if isinstance(strategy, Full):
            work = choose_first_aggregate(strategy, work, costs)
        chunks = found.chunks if isinstance(strategy, Offload) else 0
        cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
        shares = () if chunks else evaluated_shares(work, costs.layout.workers)
        return _whole_parts(cut, found, work, costs, chunks=chunks or 0, shares=shares)
    cut = work.partitioning.partition_stats(
        strategy.partition, costs.layout.workers, work.sampling_spec(strategy.partition)
    )
    if work.batches.is_temporal or work.evaluation[0] == SAMPLED:
        return _batch_parts(found, work)
    whole_fits = whole_layers_fit(work, costs, cut)
    [needed, *_] = evaluated_neighborhoods(work, whole_fits=whole_fits)
    if needed is WHOLE_LAYERS:
        return _whole_parts(cut, found, work, costs, chunks=0)
    return _neighborhood_parts(needed, work, costs)


def _whole_parts(
    cut: PartitionStats,
    found: Estimate,
    work: Workload,
    costs: CostModel,
    *,
    chunks: int,
    shares: Sequence[NeededShares] = (),
) -> tuple[EpochPart, ...]:
    """Return the parts of whole layers, by the worker with the most edges; in chunks while rows are loaded."""
    slowest = int(cut.edges.argmax())
    nodes, edges = float(cut.nodes[slowest]), float(cut.edges[slowest])
    parts = _forward_parts(work, costs, nodes, edges, shares=shares)
    layers = len(work.model.layers)
    if not chunks:
        return (*parts, *transfer_parts(costs, found.traffic.evaluation, layers - work.model.source_is_features, 0))
    parts.append(EpochPart(name="small steps of chunks", seconds=costs.layer_overhead_seconds(layers * (chunks - 1))))
    busy = sum(part.seconds for part in parts)
    moved = costs.transfer_seconds(found.traffic.evaluation, layers * chunks)
    parts += [overlapped_part(costs, name_link(link), took, busy, WorkKind.TRANSFER) for link, took in moved.items()]
    return tuple(parts)


def _sliced_parts(strategy: TensorParallel, found: Estimate, work: Workload, costs: CostModel) -> tuple[EpochPart, ...]:
    """Return the parts of `tensor`: own nodes, and a slice of the columns over all edges."""
    work, workers = replace(work, model=work.model.keep_columns_apart()), costs.layout.workers
    looped = work.model.layers[0].spec.self_loops
    nodes = float(work.partitioning.owner_stats(strategy.owned_chunks, workers, self_loops=looped).nodes.max())
    parts = _forward_parts(work, costs, nodes, work.graph.edges, workers)
    # A split and a gather in each layer.
    exchanges = 2 * len(work.model.layers) * (found.chunks or strategy.chunks or OVERLAPPING_CHUNKS)
    return (*parts, *transfer_parts(costs, found.traffic.evaluation, exchanges, 0))


def _forward_parts(
    work: Workload,
    costs: CostModel,
    nodes: float,
    edges: float,
    slices: int = 1,
    shares: Sequence[NeededShares] = (),
) -> list[EpochPart]:
    """Return the parts of the layers forward; of shares of their rows and edges, all if none are given."""
    whole = list_whole_layers(work, nodes, edges, slices)
    layers = [
        LayerWork(part.sources * every.sources, part.rows * every.destinations, part.edges * every.edges)
        for part, every in zip(shares or [NeededShares()] * len(whole), whole, strict=True)
    ]
    return layer_parts(step_seconds(work, costs, layers, cached_aggregate=True, slices=slices, backward=False))


def _neighborhood_parts(needed: ScoredNeighborhood, work: Workload, costs: CostModel) -> tuple[EpochPart, ...]:
    """Return the parts of the neighbourhood of the scored nodes in chunks: rows are gathered, then computed."""
    share = 1 / costs.layout.workers
    rows, edges = (needed.rows * share).tolist(), (needed.edges * share).tolist()
    sources = [min(each, float(work.graph.nodes)) for each in edges]
    layers = [LayerWork(*sizes) for sizes in zip(sources, rows, edges, strict=True)]
    parts = layer_parts(step_seconds(work, costs, layers, cached_aggregate=False, backward=False))
    gathered = costs.gather_seconds(sources[0], work.graph.row_bytes)
    gathered += sum(
        costs.gather_seconds(count, layer.spec.in_features * work.model.number_bytes)
        for count, layer in zip(sources[1:], work.model.layers[1:], strict=True)
    )
    busy = sum(part.seconds for part in parts)
    return (*parts, overlapped_part(costs, "features gathered", gathered, busy))


def _batch_parts(found: Estimate, work: Workload) -> tuple[EpochPart, ...]:
    """Return the parts of batches of validation nodes, as those of training but forward alone."""
    # Of an unknown number of nodes, as many as are trained on.
    batches = (work.graph.val or work.graph.train) / max(1, work.graph.train)
    return tuple(part.scale(batches * FORWARD_SHARE) for part in found.parts)
