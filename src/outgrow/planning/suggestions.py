"""What could be changed so that a model can be trained, in numbers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from outgrow.engine.batches import Batches
from outgrow.planning.estimators.offload_chunks import finest, held_bytes
from outgrow.planning.peak_memory import batches_bytes_of
from outgrow.planning.planner import ROOM, Question, pace_of, unmeasured
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled

_MIB = 1 << 20
_MOST_WORKERS, _FANOUT, _BATCH = 1024, 10, 1024


def fixes(asked: Question) -> list[str]:
    """What would do, one by one; each was estimated."""
    whole = asked.work.batches.everything
    if asked.limit is not None and not whole:
        return ["no --memory: mini-batches keep to no limit", *_offload_instead(asked)]
    found = [*(_more_memory(asked) if whole else _smaller_batches(asked)), *_more_workers(asked)]
    return [*found, *(_batches_instead(asked) if whole and asked.limit is None else [])]


def _more_memory(asked: Question) -> Iterator[str]:
    place = asked.places[-1]
    pace = pace_of(asked, place)
    count = finest(asked.work, place)
    needed = held_bytes(Offload(chunks=count), asked.work, pace)
    least = -(-needed // _MIB)
    if asked.limit is not None and needed <= pace_of(replace(asked, limit=None), place).memory:
        yield f"--memory {least}MiB, for strategy offload in {count:,} chunks"
    else:
        yield f"{least:,} MiB of memory for each worker, for strategy offload in {count:,} chunks"


def _smaller_batches(asked: Question) -> Iterator[str]:
    size = (asked.work.batches.size or asked.work.graph.train) // 2
    while size >= 1:
        work = replace(asked.work, batches=replace(asked.work.batches, size=size))
        if _fits(Sampled(), work, asked, asked.places[-1]):
            yield f"--batch-size {size}, for strategy sampled"
            return
        size //= 2


def _more_workers(asked: Question) -> Iterator[str]:
    """As many on each host as the machine has."""
    strategy: Strategy = Offload() if asked.work.batches.everything else Sampled()
    profile = asked.profile
    count = 2 * max(place.workers for place in asked.places)
    while count <= min(_MOST_WORKERS, asked.work.graph.nodes):
        place = Place(workers=count, hosts=-(-count // profile.workers))
        if unmeasured(place, profile) is None and _fits(strategy, asked.work, asked, place):
            yield f"{count} workers on {place.hosts} hosts like this one, for strategy {strategy.name}"
            return
        count *= 2


def _batches_instead(asked: Question) -> Iterator[str]:
    layers = len(asked.work.model.layers)
    size = min(_BATCH, asked.work.graph.train)
    work = replace(asked.work, batches=Batches(size=size, fanout=(_FANOUT,) * layers))
    if _fits(Sampled(), work, asked, asked.places[-1]):
        yield f"--batch-size {size} --fanout {','.join([str(_FANOUT)] * layers)}: mini-batches, by strategy sampled"


def _offload_instead(asked: Question) -> Iterator[str]:
    work = replace(asked.work, batches=Batches())
    if _fits(Offload(), work, asked, asked.places[-1]):
        yield "no --batch-size and --fanout: all nodes at once, by strategy offload"


def _fits(strategy: Strategy, work: Workload, asked: Question, place: Place) -> bool:
    """Of `offload` in the smallest chunks."""
    pace = pace_of(asked, place)
    if isinstance(strategy, Offload):
        return held_bytes(replace(strategy, chunks=finest(work, place)), work, pace) <= pace.memory
    assert isinstance(strategy, Sampled)
    drawn = work.sampling.drawn(work.drawing(strategy.partition), place.workers)
    cut = work.shape.cut(strategy.partition, place.workers)
    return batches_bytes_of(work, pace, cut, drawn) <= ROOM * pace.memory
