"""The choice: the best options of every strategy, which of them fit, and which is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.traffic import WorkerLayout
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
class PlannerQuery:
    """What a plan is asked for.

    Attributes:
        work: What is trained.
        profile: On what machine.
        layouts: On how many workers of how many hosts; the best is taken.
        limit: The most bytes that the DEVICE tier of a worker may hold; None for what the machine has.
        validate: Raises an `InputError` if a strategy cannot train the model on the graph.
    """

    work: Workload
    profile: MachineProfile
    layouts: Sequence[WorkerLayout]
    limit: int | None
    validate: Callable[[Strategy], None]


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What training a model on a graph will take, by every strategy.

    Attributes:
        query: What it was asked for.
        memory: The most bytes that the DEVICE tier of a worker may hold, on as many workers as were asked for.
        candidates: The best of every strategy: those that can be chosen first, the fastest of them first.
    """

    query: PlannerQuery
    memory: int
    candidates: tuple[Candidate, ...]

    @property
    def chosen_candidate(self) -> Candidate | None:
        """The fastest that can be chosen; None if none can."""
        first = self.candidates[0]
        return None if first.why_not else first

    @property
    def runner_up(self) -> Candidate | None:
        """The next one that can be chosen."""
        later = self.candidates[1:2]
        return later[0] if later and not later[0].why_not else None


def make_plan(query: PlannerQuery) -> Plan:
    """The best of every strategy, by seconds of an epoch."""
    candidates = _rank_candidates([_rank_candidates([*each])[0] for each in _candidates_by_strategy(query)])
    memory = min(cost_model_for(query, place).memory for place in query.layouts)
    return Plan(query=query, memory=memory, candidates=tuple(candidates))


def _rank_candidates(candidates: Sequence[Candidate]) -> list[Candidate]:
    """Those that can be chosen first, then by seconds; the first given that is as good as the best before all."""

    def rank_key(each: Candidate) -> tuple[bool, bool, float]:
        seconds = float("inf") if each.estimate is None else each.estimate.epoch_seconds
        return bool(each.why_not), each.estimate is None, seconds

    ordered = sorted(candidates, key=rank_key)
    *kind, least = rank_key(ordered[0])
    first = next(
        each for each in candidates if [*rank_key(each)[:2]] == kind and rank_key(each)[2] <= (1 + NOISE) * least
    )
    return [first, *(each for each in ordered if each is not first)]


def _candidates_by_strategy(query: PlannerQuery) -> Iterator[Iterator[Candidate]]:
    for strategies in _strategy_variants(query):
        yield (_make_candidate(strategy, place, query) for place in query.layouts for strategy in strategies)


def _strategy_variants(query: PlannerQuery) -> list[list[Strategy]]:
    """The options of every strategy that are tried."""
    limit = None if query.limit is None else _format_limit(query.limit)
    several = max(place.workers for place in query.layouts) > 1
    caches = (0.0, 0.05, 0.2) if several else (0.0,)
    travels = (False, True) if several else (False,)
    return [
        [Full()],
        [Offload(memory=limit)],
        [TensorParallel(memory=limit, chunks=chunks) for chunks in ((4, 1) if several else (4,))],
        [Sampled(cache=cache) for cache in caches],
        [SplitParallel()],
        [Migrate(move_model=travel) for travel in travels],
        [Orchestrate(hot_ratio=ratio) for ratio in (0.1, 0.2, 0.3)],
    ]


def _format_limit(num_bytes: int) -> str:
    return f"{num_bytes // _MIB}MiB" if num_bytes % _MIB == 0 else f"{num_bytes}B"


def _make_candidate(strategy: Strategy, layout: WorkerLayout, query: PlannerQuery) -> Candidate:
    name, pace = strategy.name, cost_model_for(query, layout)
    if strategy.uses_minibatches and query.work.batches.is_full_graph:
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=_NO_BATCHES)
    try:
        query.validate(strategy)
    except InputError as error:
        return Candidate(
            name=name, workers=layout.workers, estimate=None, why_not=f"{error.what}: needs {error.needed}"
        )
    unknown = missing_bandwidth(layout, query.profile)
    if unknown is not None:
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=unknown)
    found = estimate_strategy(strategy, query.work, pace)
    return Candidate(
        name=name, workers=layout.workers, estimate=found, why_not=_rejection_reason(strategy, found, pace, query)
    )


def _rejection_reason(strategy: Strategy, estimate: Estimate, costs: CostModel, query: PlannerQuery) -> str:
    if not fits_in(estimate, costs):
        return f"needs {estimate.peak_bytes / _GIB:,.2f} GiB for each worker, of {costs.memory / _GIB:,.2f}"
    if query.limit is None and estimate.chunks == 0:
        return "all at once fits into memory, as strategy full trains"
    if query.limit is not None and "memory" not in strategy.options():
        return "keeps to no limit of memory"
    if query.limit is not None and isinstance(strategy, TensorParallel) and not costs.shares_device:
        return "keeps to a limit of memory on CPUs only"
    if not strategy.is_exact(query.work.batches):
        return "reuses what is some steps old: only if it is asked for"
    return ""


def fits_in(estimate: Estimate, costs: CostModel) -> bool:
    """Whether a worker's memory holds what was estimated; those that keep to a limit may fill it."""
    limited = "memory" in estimate.strategy.options()
    return estimate.peak_bytes <= (1.0 if limited else ROOM) * costs.memory


def missing_bandwidth(layout: WorkerLayout, profile: MachineProfile) -> str | None:
    """That nothing is known of a link between the workers, and what measures it; None if all are known."""
    links = {layout.link_between(0, other) for other in range(1, layout.workers)}
    unknown = next((link for link in Link if link in links and link not in profile.links), None)
    if unknown is None:
        return None
    how = f"outgrow calibrate --workers {layout.workers}" if unknown == Link.PEER else "torchrun with calibrate"
    return f"nothing is known of the link {unknown.value} of {profile.name}: {how} measures that of this one"


def cost_model_for(query: PlannerQuery, layout: WorkerLayout) -> CostModel:
    """Of workers at one of the places."""
    return CostModel.from_profile(query.profile, layout, query.work.model.number_bytes, query.limit)
