"""The planner: find the best options of every strategy, which of them fit into memory, and which is fastest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.hardware.corrections import NO_CORRECTIONS, Corrections
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
from outgrow.strategies.tensor.memory import OVERLAPPING_CHUNKS
from outgrow.strategies.tensor.strategy import TensorParallel

_MIB, _GIB = 1 << 20, 1 << 30
_NO_BATCHES = "trains in mini-batches: give a batch size and fan-outs"
_NOWHERE_TO_MOVE = "one worker has nowhere to move a model: it trains as strategy sampled"
_LEAST_TOLERANCE, _OF_SPREAD = 0.02, 0.3
"""Least relative difference for which a strategy is preferred to a simpler one, and the share of the spread of
estimates that this difference is."""
_OF_INTERVAL = 0.8
"""Spread of the ratio of two strategies' estimates on one graph, which err alike in part, over that of one estimate:
see `benchmarks/results/planner_score.json`."""
ROOM = 0.95
"""Share of the memory that estimates may fill."""


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A strategy with one set of options on one layout.

    Attributes:
        name: Name of the strategy.
        workers: Number of workers.
        estimate: Its estimate; None if it cannot run at all.
        why_not: Reason why it cannot be chosen; empty if it can.
        seconds: Seconds of an epoch and of the evaluations for each; infinite without an estimate.
        compile_seconds: Seconds of compiling kernels before; None if not known.
    """

    name: str
    workers: int
    estimate: Estimate | None
    why_not: str = ""
    seconds: float = math.inf
    compile_seconds: float | None = None


def _know_nothing(strategy: Strategy, layout: WorkerLayout) -> float | None:
    return None


@dataclass(frozen=True, kw_only=True)
class PlannerQuery:
    """The input of the planner.

    Attributes:
        work: The graph and the model.
        profile: The machine.
        layouts: Numbers of workers and hosts to choose from.
        limit: Limit on the bytes in the DEVICE tier of a worker; None for all that the machine has.
        validate: Function that raises an `InputError` if a strategy cannot train the model on the graph.
        corrections: What runs on the machine have taught.
        allows_inexact: Whether strategies may be chosen that reuse results of earlier steps.
        compile_seconds: Function that returns the seconds of compiling kernels to expect; None if not known.
    """

    work: Workload
    profile: MachineProfile
    layouts: Sequence[WorkerLayout]
    limit: int | None
    validate: Callable[[Strategy], None]
    corrections: Corrections = NO_CORRECTIONS
    allows_inexact: bool = False
    compile_seconds: Callable[[Strategy, WorkerLayout], float | None] = _know_nothing

    @property
    def tolerance(self) -> float:
        """Relative difference of seconds for which a strategy is preferred to a simpler one."""
        return self.tolerance_of(self.corrections)

    @staticmethod
    def tolerance_of(corrections: Corrections) -> float:
        """Return the `tolerance` of a machine whose estimates are so sure."""
        return max(_LEAST_TOLERANCE, _OF_SPREAD * corrections.spread)

    @property
    def interval_of_ratios(self) -> float:
        """Factor by which the ratio of two strategies' seconds may be off: four of five are within it."""
        return float(self.corrections.interval_factor**_OF_INTERVAL)

    @property
    def memory_option(self) -> str | None:
        """The limit as strategies take it, such as ``"2048MiB"``; None for none."""
        if self.limit is None:
            return None
        return f"{self.limit // _MIB}MiB" if self.limit % _MIB == 0 else f"{self.limit}B"


@dataclass(frozen=True, kw_only=True)
class Plan:
    """The result of the planner: an estimate of training by every strategy.

    Attributes:
        query: The input.
        memory: Limit on the bytes in the DEVICE tier of a worker, on the layout where it is least.
        candidates: The best candidate of every strategy; those that can be chosen come first, the fastest before all.
        variants: Other candidates of the first one's strategy, whose options change what an epoch computes or sends.
    """

    query: PlannerQuery
    memory: int
    candidates: tuple[Candidate, ...]
    variants: tuple[Candidate, ...] = ()

    @property
    def chosen_candidate(self) -> Candidate | None:
        """The candidate to choose; None if there is none."""
        first = self.candidates[0]
        return None if first.why_not else first

    @property
    def rivals(self) -> tuple[Candidate, ...]:
        """Other candidates that can be chosen and that estimates cannot tell from the chosen one, the fastest first."""
        chosen = self.chosen_candidate
        if chosen is None:
            return ()
        most = self.query.interval_of_ratios * chosen.seconds
        others = (
            each
            for each in (*self.candidates[1:], *self.variants)
            if not each.why_not and each.workers == chosen.workers and each.seconds <= most
        )
        return tuple(sorted(others, key=lambda each: each.seconds))

    @property
    def runner_up(self) -> Candidate | None:
        """The second candidate that can be chosen; None if there is none."""
        later = self.candidates[1:2]
        return later[0] if later and not later[0].why_not else None


def make_plan(query: PlannerQuery) -> Plan:
    """Choose the best options of every strategy, and rank the strategies, by the seconds of an epoch."""
    # Options of one strategy err alike, so that small differences count.
    ranked = [_rank_candidates([*each], _LEAST_TOLERANCE) for each in _candidates_by_strategy(query)]
    candidates = _rank_candidates([each[0] for each in ranked], query.tolerance)
    best, *others = next(each for each in ranked if each[0] is candidates[0])
    # Fewer batches ahead are for less memory: they are no faster.
    variants = tuple(each for each in others if _batches_ahead(each) == _batches_ahead(best))
    memory = min(cost_model_for(query, layout).memory for layout in query.layouts)
    return Plan(query=query, memory=memory, candidates=tuple(candidates), variants=variants)


def _batches_ahead(candidate: Candidate) -> object:
    return None if candidate.estimate is None else candidate.estimate.strategy.options().get("prefetch")


def _rank_candidates(candidates: Sequence[Candidate], tolerance: float) -> list[Candidate]:
    """Sort candidates: those that can be chosen first, then by seconds; among equals the one given first wins."""

    def rank_key(each: Candidate) -> tuple[bool, bool, float]:
        return bool(each.why_not), each.estimate is None, each.seconds

    # Simple strategies are given first: a more complex one must be faster by more than estimates may err.
    ordered = sorted(candidates, key=rank_key)
    *kind, least = rank_key(ordered[0])
    first = next(
        each for each in candidates if [*rank_key(each)[:2]] == kind and each.seconds <= (1 + tolerance) * least
    )
    return [first, *(each for each in ordered if each is not first)]


def _candidates_by_strategy(query: PlannerQuery) -> Iterator[Iterator[Candidate]]:
    for strategies in _strategy_variants(query):
        yield (_make_candidate(strategy, layout, query) for layout in query.layouts for strategy in strategies)


def _strategy_variants(query: PlannerQuery) -> list[list[Strategy]]:
    """Return the options of every strategy that are tried."""
    limit = query.memory_option
    several = max(layout.workers for layout in query.layouts) > 1
    # A single host has no rows of others to cache.
    caches = (0.0, 0.05, 0.2) if max(layout.hosts for layout in query.layouts) > 1 else (0.0,)
    # Where host and device are one memory, a cache of own rows saves nothing.
    own_memory = any(not cost_model_for(query, layout).shares_device for layout in query.layouts)
    # Within a limit as few more chunks as fit.
    overlapping = OVERLAPPING_CHUNKS if limit is None and not own_memory else None
    own_caches = (0.0, 0.05, 0.25) if own_memory else (0.0,)
    # Fewer batches ahead are no faster, but need less memory.
    prefetches = (4,) if limit is None else (4, 2, 1, 0)
    return [
        [Full()],
        [Offload(memory=limit)],
        [TensorParallel(memory=limit, chunks=chunks) for chunks in ((overlapping, 1) if several else (overlapping,))],
        [Sampled(cache=cache, prefetch=ahead, memory=limit) for ahead in prefetches for cache in caches],
        [
            SplitParallel(cache=cache, prefetch=ahead, memory=limit)
            for ahead in prefetches
            if ahead
            for cache in own_caches
        ],
        # Where models stay, `migrate` trains as `sampled` does, which is listed.
        [
            Migrate(move_model=True, cache=cache, prefetch=ahead, memory=limit)
            for ahead in prefetches
            for cache in caches
        ],
        [Orchestrate(hot_ratio=ratio, memory=limit) for ratio in (0.1, 0.2, 0.3)],
    ]


def _make_candidate(strategy: Strategy, layout: WorkerLayout, query: PlannerQuery) -> Candidate:
    name = strategy.name
    costs = cost_model_for(query, layout)
    if strategy.uses_minibatches and query.work.batches.is_full_graph:
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=_NO_BATCHES)
    if isinstance(strategy, Migrate) and layout.workers == 1:
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=_NOWHERE_TO_MOVE)
    try:
        query.validate(strategy)
    except InputError as error:
        why_not = f"{error.what.removeprefix(f'strategy {name} ')}: needs {error.needed}"
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=why_not)
    unknown = missing_bandwidth(layout, query.profile)
    if unknown is not None:
        return Candidate(name=name, workers=layout.workers, estimate=None, why_not=unknown)
    found = estimate_strategy(strategy, query.work, costs)
    return Candidate(
        name=name,
        workers=layout.workers,
        estimate=found,
        why_not=_rejection_reason(strategy, found, costs, query),
        seconds=found.epoch_seconds + query.work.evaluations_per_epoch * found.evaluation_seconds,
        compile_seconds=query.compile_seconds(strategy, layout),
    )


def _rejection_reason(strategy: Strategy, estimate: Estimate, costs: CostModel, query: PlannerQuery) -> str:
    if not fits_in(estimate, costs):
        return f"needs {estimate.peak_bytes / _GIB:,.2f} GiB for each worker, of {costs.memory / _GIB:,.2f}"
    if query.limit is None and estimate.chunks == 0:
        return "all at once fits into memory, as strategy full trains"
    if query.limit is not None and "memory" not in strategy.options():
        return "keeps to no limit of memory"
    if not (query.allows_inexact or strategy.is_exact(query.work.batches)):
        return "reuses what is some steps old: only with --set inexact=true"
    return ""


def fits_in(estimate: Estimate, costs: CostModel) -> bool:
    """Whether the estimate fits into a worker's memory."""
    # Strategies in chunks enforce a limit themselves and may use all of it; others need a margin for estimation errors.
    limited = "memory" in estimate.strategy.options() and not estimate.strategy.uses_minibatches
    return estimate.peak_bytes <= (1.0 if limited else ROOM) * costs.memory


def missing_bandwidth(layout: WorkerLayout, profile: MachineProfile) -> str | None:
    """Return a message if the profile has no rate of a link between the workers; None if it has all."""
    # Workers are numbered by host, so the pairs with worker 0 cross every link that exists.
    links = {layout.link_between(0, other) for other in range(1, layout.workers)}
    unknown = next((link for link in Link if link in links and link not in profile.links), None)
    if unknown is None:
        return None
    how = f"outgrow calibrate --workers {layout.workers}" if unknown == Link.PEER else "torchrun with calibrate"
    return f"nothing is known of the link {unknown.value} of {profile.name}: {how} measures that of this one"


def cost_model_for(query: PlannerQuery, layout: WorkerLayout) -> CostModel:
    """Return the cost model for one of the layouts."""
    found = CostModel.from_profile(query.profile, layout, query.work.model.number_bytes, query.limit)
    return replace(found, corrections=query.corrections)
