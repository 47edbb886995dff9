"""The choice: the best options of every strategy, which of them fit, and which is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.planning.cost_model import Pace
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate
from outgrow.planning.hardware.profile import Profile
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Workload
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.migrate.strategy import Migrate
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.strategies.split.strategy import SplitParallel
from outgrow.strategies.tensor.strategy import TensorParallel

_MIB, _GIB = 1 << 20, 1 << 30
_NO_BATCHES = "trains in mini-batches: give a batch size and fan-outs"
NOISE = 0.02
"""Seconds that differ by less are taken for the same."""
ROOM = 0.95
"""Share of the memory that estimates may fill."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy with the best options that were found for it.

    Attributes:
        name: Of the strategy.
        workers: On how many workers.
        estimate: What it takes; None if it cannot run at all.
        why_not: Why it cannot be chosen; empty if it can.
    """

    name: str
    workers: int
    estimate: Estimate | None
    why_not: str = ""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What a plan is asked for.

    Attributes:
        work: What is trained.
        profile: On what machine.
        places: On how many workers of how many hosts; the best is taken.
        limit: The most bytes that the DEVICE tier of a worker may hold; None for what the machine has.
        require: Raises an `InputError` if a strategy cannot train the model on the graph.
    """

    work: Workload
    profile: Profile
    places: Sequence[Place]
    limit: int | None
    require: Callable[[Strategy], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What training a model on a graph will take, by every strategy.

    Attributes:
        asked: What it was asked for.
        memory: The most bytes that the DEVICE tier of a worker may hold, on as many workers as were asked for.
        candidates: The best of every strategy: those that can be chosen first, the fastest of them first.
    """

    asked: Question
    memory: int
    candidates: tuple[Candidate, ...]

    @property
    def chosen(self) -> Candidate | None:
        """The fastest that can be chosen; None if none can."""
        first = self.candidates[0]
        return None if first.why_not else first

    @property
    def second(self) -> Candidate | None:
        """The next one that can be chosen."""
        later = self.candidates[1:2]
        return later[0] if later and not later[0].why_not else None


def plan(asked: Question) -> Plan:
    """The best of every strategy, by seconds of an epoch."""
    candidates = _in_order([_in_order([*each])[0] for each in _by_strategy(asked)])
    memory = min(pace_of(asked, place).memory for place in asked.places)
    return Plan(asked=asked, memory=memory, candidates=tuple(candidates))


def _in_order(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can be chosen first, then by seconds; the first given that is as good as the best before all."""

    def rank(each: Candidate) -> tuple[bool, bool, float]:
        seconds = float("inf") if each.estimate is None else each.estimate.seconds
        return bool(each.why_not), each.estimate is None, seconds

    ordered = sorted(candidates, key=rank)
    *kind, least = rank(ordered[0])
    first = next(each for each in candidates if [*rank(each)[:2]] == kind and rank(each)[2] <= (1 + NOISE) * least)
    return [first, *(each for each in ordered if each is not first)]


def _by_strategy(asked: Question) -> Iterator[Iterator[Candidate]]:
    for strategies in _variants(asked):
        yield (_candidate(strategy, place, asked) for place in asked.places for strategy in strategies)


def _variants(asked: Question) -> list[list[Strategy]]:
    """The options of every strategy that are tried."""
    limit = None if asked.limit is None else _spelled(asked.limit)
    several = max(place.workers for place in asked.places) > 1
    caches = (0.0, 0.05, 0.2) if several else (0.0,)
    travels = (False, True) if several else (False,)
    return [
        [Full()],
        [Offload(memory=limit)],
        [TensorParallel(memory=limit, chunks=chunks) for chunks in ((4, 1) if several else (4,))],
        [Sampled(cache=cache) for cache in caches],
        [SplitParallel()],
        [Migrate(travel=travel) for travel in travels],
        [Orchestrate(hot_ratio=ratio) for ratio in (0.1, 0.2, 0.3)],
    ]


def _spelled(num_bytes: int) -> str:
    return f"{num_bytes // _MIB}MiB" if num_bytes % _MIB == 0 else f"{num_bytes}B"


def _candidate(strategy: Strategy, place: Place, asked: Question) -> Candidate:
    name, pace = strategy.name, pace_of(asked, place)
    if strategy.takes_batches and asked.work.batches.everything:
        return Candidate(name=name, workers=place.workers, estimate=None, why_not=_NO_BATCHES)
    try:
        asked.require(strategy)
    except InputError as error:
        return Candidate(name=name, workers=place.workers, estimate=None, why_not=f"{error.what}: needs {error.needed}")
    unknown = unmeasured(place, asked.profile)
    if unknown is not None:
        return Candidate(name=name, workers=place.workers, estimate=None, why_not=unknown)
    found = estimate(strategy, asked.work, pace)
    return Candidate(name=name, workers=place.workers, estimate=found, why_not=_why_not(strategy, found, pace, asked))


def _why_not(strategy: Strategy, found: Estimate, pace: Pace, asked: Question) -> str:
    if not fits(found, pace):
        return f"needs {found.peak_bytes / _GIB:,.2f} GiB for each worker, of {pace.memory / _GIB:,.2f}"
    if asked.limit is None and found.chunks == 0:
        return "all at once fits into memory, as strategy full trains"
    if asked.limit is not None and "memory" not in strategy.options():
        return "keeps to no limit of memory"
    if asked.limit is not None and isinstance(strategy, TensorParallel) and not pace.shared:
        return "keeps to a limit of memory on CPUs only"
    if not strategy.is_exact(asked.work.batches):
        return "reuses what is some steps old: only if it is asked for"
    return ""


def fits(found: Estimate, pace: Pace) -> bool:
    """Whether a worker's memory holds what was estimated; those that keep to a limit may fill it."""
    limited = "memory" in found.strategy.options()
    return found.peak_bytes <= (1.0 if limited else ROOM) * pace.memory


def unmeasured(place: Place, profile: Profile) -> str | None:
    """That nothing is known of a link between the workers, and what measures it; None if all are known."""
    links = {place.link(0, other) for other in range(1, place.workers)}
    unknown = next((link for link in Link if link in links and link not in profile.links), None)
    if unknown is None:
        return None
    how = f"outgrow calibrate --workers {place.workers}" if unknown == Link.PEER else "torchrun with calibrate"
    return f"nothing is known of the link {unknown.value} of {profile.name}: {how} measures that of this one"


def pace_of(asked: Question, place: Place) -> Pace:
    """Of workers at one of the places."""
    return Pace.of(asked.profile, place, asked.work.model.number_bytes, asked.limit)
