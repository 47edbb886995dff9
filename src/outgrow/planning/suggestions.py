"""Suggestions, in numbers, of changes that would let a model be trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outgrow.engine.batches import BatchConfig
from outgrow.inference.modes import NONE, SAMPLED
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimators.offload import max_chunks, offload_peak_bytes
from outgrow.planning.estimators.sampled import cached_sampling_spec, data_parallel_peak_bytes
from outgrow.planning.planner import ROOM, PlannerQuery, cost_model_for, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled

_MIB = 1 << 20
_GROWTH = 1.05
_MOST_WORKERS, _FANOUT, _BATCH = 1024, 10, 1024


def suggest_fixes(query: PlannerQuery) -> list[str]:
    """Return changes each of which would be enough by itself; all of them were estimated."""
    whole = query.work.batches.is_full_graph
    suggest = _suggest_memory if whole else _suggest_minibatch_options
    found = [*suggest(query), *_suggest_workers(query)]
    return [*found, *(_suggest_minibatches(query) if whole else _suggest_offload(query))]


def _suggest_memory(query: PlannerQuery) -> Iterator[str]:
    layout = query.layouts[-1]
    costs = cost_model_for(query, layout)
    # `offload` in the smallest chunks needs least memory of all strategies.
    count = max_chunks(query.work, layout)
    needed = offload_peak_bytes(Offload(chunks=count), query.work, costs)
    least = -(-needed // _MIB)
    # The user can raise a limit of their own, but not the memory of the machine.
    if query.limit is not None and needed <= cost_model_for(replace(query, limit=None), layout).memory:
        yield f"--memory {least}MiB, for strategy offload in {count:,} chunks"
    else:
        yield f"{least:,} MiB of memory for each worker, for strategy offload in {count:,} chunks"


def _suggest_minibatch_options(query: PlannerQuery) -> Iterator[str]:
    """Suggest smaller batches, fewer of them ahead, approximate evaluations, or as much memory as batches need."""
    yield from _suggest_batch_size(query)
    yield from _suggest_fanout(query)
    layout = query.layouts[-1]
    if _strategy_fits(Sampled(prefetch=0, memory=query.memory_option), query.work, query, layout):
        yield "--set prefetch=0, for strategy sampled"
    plain = Sampled(memory=query.memory_option)
    for mode, effect in ((SAMPLED, "scores are approximate"), (NONE, "there are no scores")):
        if _strategy_fits(plain, replace(query.work, evaluation=(mode, mode)), query, layout):
            yield f"--set eval={mode}, for strategy sampled: {effect}"
    least = _least_memory(query, layout)
    if query.limit is not None and least <= cost_model_for(replace(query, limit=None), layout).memory:
        yield f"--memory {least // _MIB}MiB, for strategy sampled"
    else:
        yield f"{least // _MIB:,} MiB of memory for each worker, for strategy sampled"


def _least_memory(query: PlannerQuery, layout: WorkerLayout) -> int:
    """Return about the least memory for mini-batches, none ahead where memory is limited; in bytes, whole MiB."""
    costs = cost_model_for(query, layout)
    strategy = Sampled() if query.limit is None else Sampled(prefetch=0, memory=query.memory_option)
    unevaluated = replace(query.work, evaluation=(NONE, NONE))
    memory = _sampled_bytes(strategy, unevaluated, costs, layout) / ROOM
    # The share that evaluations take grows with the memory, but more slowly.
    while _sampled_bytes(strategy, query.work, replace(costs, memory=int(memory)), layout) > ROOM * memory:
        memory *= _GROWTH
    return -(-int(memory) // _MIB) * _MIB


def _suggest_batch_size(query: PlannerQuery) -> Iterator[str]:
    size = (query.work.batches.size or query.work.graph.train) // 2
    while size >= 1:
        work = replace(query.work, batches=replace(query.work.batches, size=size))
        if _strategy_fits(Sampled(memory=query.memory_option), work, query, query.layouts[-1]):
            yield f"--batch-size {size}, for strategy sampled"
            return
        size //= 2


def _suggest_fanout(query: PlannerQuery) -> Iterator[str]:
    """Suggest the largest of smaller and smaller fan-outs that fits."""
    batches, layers = query.work.batches, len(query.work.model.layers)
    fanout = [hop if isinstance(hop, int) else max(hop) for hop in batches.fanout_per_hop(layers)]
    # All neighbours are as many as the usual fan-out, or more.
    fanout = [2 * _FANOUT if hop < 0 else hop for hop in fanout]
    while max(fanout) > 1:
        fanout = [max(1, hop // 2) for hop in fanout]
        work = replace(query.work, batches=replace(batches, fanout=tuple(fanout)))
        if _strategy_fits(Sampled(memory=query.memory_option), work, query, query.layouts[-1]):
            yield f"--fanout {','.join(map(str, fanout))}, for strategy sampled"
            return


def _suggest_workers(query: PlannerQuery) -> Iterator[str]:
    """Suggest more workers, as many on each host as the machine has."""
    strategy: Strategy = Offload() if query.work.batches.is_full_graph else Sampled(memory=query.memory_option)
    profile = query.profile
    count = 2 * max(layout.workers for layout in query.layouts)
    while count <= min(_MOST_WORKERS, query.work.graph.nodes):
        layout = WorkerLayout(workers=count, hosts=-(-count // profile.workers))
        if missing_bandwidth(layout, profile) is None and _strategy_fits(strategy, query.work, query, layout):
            plural = "s" * (layout.hosts > 1)
            yield f"{count} workers on {layout.hosts} host{plural} like this one, for strategy {strategy.name}"
            return
        count *= 2


def _suggest_minibatches(query: PlannerQuery) -> Iterator[str]:
    layers = len(query.work.model.layers)
    size = min(_BATCH, query.work.graph.train)
    work = replace(query.work, batches=BatchConfig(size=size, fanout=(_FANOUT,) * layers))
    if _strategy_fits(Sampled(memory=query.memory_option), work, query, query.layouts[-1]):
        yield f"--batch-size {size} --fanout {','.join([str(_FANOUT)] * layers)}: mini-batches, by strategy sampled"


def _suggest_offload(query: PlannerQuery) -> Iterator[str]:
    work = replace(query.work, batches=BatchConfig())
    if _strategy_fits(Offload(), work, query, query.layouts[-1]):
        yield "no --batch-size and --fanout: all nodes at once, by strategy offload"


def _strategy_fits(strategy: Strategy, work: Workload, query: PlannerQuery, layout: WorkerLayout) -> bool:
    """Whether a strategy fits into memory, `offload` in the smallest chunks."""
    costs = cost_model_for(query, layout)
    if isinstance(strategy, Offload):
        return offload_peak_bytes(replace(strategy, chunks=max_chunks(work, layout)), work, costs) <= costs.memory
    assert isinstance(strategy, Sampled)
    return _sampled_bytes(strategy, work, costs, layout) <= ROOM * costs.memory


def _sampled_bytes(strategy: Sampled, work: Workload, costs: CostModel, layout: WorkerLayout) -> int:
    stats = work.sampling.batch_stats(cached_sampling_spec(strategy, work, layout), layout.workers)
    return data_parallel_peak_bytes(strategy, work, costs, stats)
