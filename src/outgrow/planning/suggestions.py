"""What could be changed so that a model can be trained, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outgrow.engine.batches import BatchConfig
from outgrow.planning.estimators.offload import max_chunks, offload_peak_bytes
from outgrow.planning.peak_memory import minibatch_peak_bytes
from outgrow.planning.planner import ROOM, PlannerQuery, cost_model_for, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled

_MIB = 1 << 20
_MOST_WORKERS, _FANOUT, _BATCH = 1024, 10, 1024


def suggest_fixes(query: PlannerQuery) -> list[str]:
    """What would do, one by one; each was estimated."""
    whole = query.work.batches.is_full_graph
    if query.limit is not None and not whole:
        return ["no --memory: mini-batches keep to no limit", *_suggest_offload(query)]
    found = [*(_suggest_memory(query) if whole else _suggest_batch_size(query)), *_suggest_workers(query)]
    return [*found, *(_suggest_minibatches(query) if whole and query.limit is None else [])]


def _suggest_memory(query: PlannerQuery) -> Iterator[str]:
    place = query.layouts[-1]
    pace = cost_model_for(query, place)
    count = max_chunks(query.work, place)
    needed = offload_peak_bytes(Offload(chunks=count), query.work, pace)
    least = -(-needed // _MIB)
    if query.limit is not None and needed <= cost_model_for(replace(query, limit=None), place).memory:
        yield f"--memory {least}MiB, for strategy offload in {count:,} chunks"
    else:
        yield f"{least:,} MiB of memory for each worker, for strategy offload in {count:,} chunks"


def _suggest_batch_size(query: PlannerQuery) -> Iterator[str]:
    size = (query.work.batches.size or query.work.graph.train) // 2
    while size >= 1:
        work = replace(query.work, batches=replace(query.work.batches, size=size))
        if _strategy_fits(Sampled(), work, query, query.layouts[-1]):
            yield f"--batch-size {size}, for strategy sampled"
            return
        size //= 2


def _suggest_workers(query: PlannerQuery) -> Iterator[str]:
    """As many on each host as the machine has."""
    strategy: Strategy = Offload() if query.work.batches.is_full_graph else Sampled()
    profile = query.profile
    count = 2 * max(place.workers for place in query.layouts)
    while count <= min(_MOST_WORKERS, query.work.graph.nodes):
        place = WorkerLayout(workers=count, hosts=-(-count // profile.workers))
        if missing_bandwidth(place, profile) is None and _strategy_fits(strategy, query.work, query, place):
            yield f"{count} workers on {place.hosts} hosts like this one, for strategy {strategy.name}"
            return
        count *= 2


def _suggest_minibatches(query: PlannerQuery) -> Iterator[str]:
    layers = len(query.work.model.layers)
    size = min(_BATCH, query.work.graph.train)
    work = replace(query.work, batches=BatchConfig(size=size, fanout=(_FANOUT,) * layers))
    if _strategy_fits(Sampled(), work, query, query.layouts[-1]):
        yield f"--batch-size {size} --fanout {','.join([str(_FANOUT)] * layers)}: mini-batches, by strategy sampled"


def _suggest_offload(query: PlannerQuery) -> Iterator[str]:
    work = replace(query.work, batches=BatchConfig())
    if _strategy_fits(Offload(), work, query, query.layouts[-1]):
        yield "no --batch-size and --fanout: all nodes at once, by strategy offload"


def _strategy_fits(strategy: Strategy, work: Workload, query: PlannerQuery, layout: WorkerLayout) -> bool:
    """Of `offload` in the smallest chunks."""
    pace = cost_model_for(query, layout)
    if isinstance(strategy, Offload):
        return offload_peak_bytes(replace(strategy, chunks=max_chunks(work, layout)), work, pace) <= pace.memory
    assert isinstance(strategy, Sampled)
    drawn = work.sampling.batch_stats(work.sampling_spec(strategy.partition), layout.workers)
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers)
    return minibatch_peak_bytes(work, pace, cut, drawn) <= ROOM * pace.memory
