"""What links cost beside the layers: scores of pairs and of candidates, rows that workers fetch, and their ranking.

The factors below were fitted to measured runs; see `outgrow.planning.peak_memory`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from outgrow.core.ledger import Kind
from outgrow.planning.batch_stats import LinkStepStats
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate
from outgrow.planning.hardware.corrections import WorkKind
from outgrow.planning.traffic import ID_BYTES, Bytes, Traffic, WorkerLayout, add_bytes, round_rows
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.tensor.strategy import TensorParallel

_DEGREE_BYTES = 8
"""Bytes of an in-degree."""
_OF_PAIR, _OF_ROW, _OF_SCORE = 2, 1, 4
"""How often a number is processed, as by an activation and its gradient: each column of a pair of nodes, each column
of a row that is read, and each score of a candidate."""
_OF_SEARCH = 180
"""Likewise of a pair of a batch, whose rows are searched for among those of the seeds."""


def add_link_costs(found: Estimate, work: Workload, costs: CostModel) -> Estimate:
    """Return the estimate of training on nodes as one on links: in steps, with scores, exchanges and rankings."""
    strategy = found.strategy
    workers = costs.layout.workers
    if isinstance(strategy, TensorParallel):
        stats = work.link_step_stats("", workers, strategy.owned_chunks)
    else:
        stats = work.link_step_stats(strategy.partition, workers)
    assert stats is not None
    # A strategy of batches has counted its steps; on the whole graph every step is a pass over all layers.
    passes = 1 if strategy.uses_minibatches else stats.steps
    traffic = link_traffic(strategy, work, stats, costs.layout)
    epoch: Bytes = Counter({key: passes * count for key, count in found.traffic.epoch.items()})
    whole = replace(found.traffic, epoch=epoch) + traffic
    parts = [each.scale(passes) for each in found.parts]
    parts += link_parts(work, costs, stats, traffic)
    evaluation = (*found.evaluation, *_ranking_parts(work, costs, found))
    return replace(found, traffic=whole, parts=tuple(parts), evaluation=evaluation)


def _ranking_parts(work: Workload, costs: CostModel, found: Estimate) -> list[EpochPart]:
    """Return the part of ranking validation links, whose queries the workers share out."""
    links = work.links
    assert links is not None
    queries = sum(count * times for count, times in links.val_queries) / costs.layout.workers
    if not (found.evaluation and queries):
        return []
    candidates = float(links.num_candidates or work.graph.nodes)
    if links.ranks_by_products:
        seconds = costs.matmul_seconds(queries, candidates * links.columns, min(links.columns, candidates))
    else:
        seconds = costs.epilogue_seconds(queries * candidates * links.columns)
    return [EpochPart(name="ranking of links", seconds=seconds + costs.epilogue_seconds(queries * candidates))]


def link_traffic(strategy: Strategy, work: Workload, stats: LinkStepStats, layout: WorkerLayout) -> Traffic:
    """Return the traffic of steps and rankings: rows of ends that others own, and rows of queries.

    Args:
        strategy: The strategy.
        work: The graph, the model and the links.
        stats: Statistics of the steps.
        layout: The workers.
    """
    links = work.links
    assert links is not None
    traffic = Traffic()
    row_bytes = links.columns * work.model.number_bytes
    fetched = layout.sum_by_link(round_rows(stats.fetched_rows * stats.num_full_steps))
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        add_bytes(traffic.epoch, kind, fetched, row_bytes)
    if not strategy.uses_minibatches:
        # A worker knows its own links; of a batch all workers know all.
        add_bytes(traffic.epoch, Kind.IDS, fetched, ID_BYTES)
    if links.options.steps.hide:
        _add_degrees(traffic.epoch, strategy, work, layout, stats.steps)
    # The rows of queries are summed over the workers, all but the owner's zero; test links are ranked in the end.
    for into, queries in ((traffic.evaluation, links.val_queries), (traffic.once, links.test_queries)):
        for count, times in queries:
            add_bytes(into, Kind.ACTIVATIONS, layout.all_reduce_bytes(count * row_bytes), times)
    return traffic


def _add_degrees(epoch: Bytes, strategy: Strategy, work: Workload, layout: WorkerLayout, steps: int) -> None:
    """Add the in-degrees of nodes without hidden edges, which their owners tell in each step, in each view."""
    views = len(set(work.model.views))
    if isinstance(strategy, Full):
        halo = work.partitioning.partition_stats(strategy.partition, layout.workers).halo
        add_bytes(epoch, Kind.TOPOLOGY, layout.sum_by_link(halo), _DEGREE_BYTES * views * steps)
    elif isinstance(strategy, Offload):
        summed = layout.all_reduce_bytes(_DEGREE_BYTES * work.graph.nodes)
        add_bytes(epoch, Kind.TOPOLOGY, summed, views * steps)


def link_parts(work: Workload, costs: CostModel, stats: LinkStepStats, traffic: Traffic) -> list[EpochPart]:
    """Return the parts of an epoch beside the layers, of the worker with the most links."""
    links = work.links
    assert links is not None
    columns = links.columns
    pairs = float(stats.links.max()) * links.num_pairs
    rows = float(stats.read_rows.max() + stats.fetched_rows.sum(1).max())
    scores = float(stats.queries.max()) * stats.candidates
    numbers = columns * (_OF_PAIR * pairs + _OF_ROW * rows) + _OF_SCORE * scores
    numbers += 0 if work.batches.is_full_graph else _OF_SEARCH * pairs
    seconds = costs.epilogue_seconds(numbers)
    # Scores, and the gradients of queries and of candidates.
    width = min(columns, max(1.0, stats.candidates))
    seconds += 3 * costs.matmul_seconds(float(stats.queries.max()), stats.candidates * columns, width)
    found = [EpochPart(name="scores of links", seconds=stats.num_full_steps * seconds)]
    sent = costs.transfer_seconds(traffic.epoch, 2.0 * stats.steps)
    return found + [
        EpochPart(name=f"rows of links, {link.value}", seconds=took, kind=WorkKind.TRANSFER)
        for link, took in sent.items()
    ]
