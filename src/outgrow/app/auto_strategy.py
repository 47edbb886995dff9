"""``strategy="auto"``: the strategy that a plan chooses, and one sentence on why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn

from outgrow.app.compatibility import validate_strategy
from outgrow.app.memory_check import user_bytes, validate_memory
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import COUNTED_EDGES, PlanSite, query_for_graph
from outgrow.app.plan.table import explain_choice, numbered_fixes
from outgrow.app.runs.workers import Workers
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.planning.estimate import Estimate
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.planner import Plan, PlannerQuery, cost_model_for, fits_in, make_plan, missing_bandwidth
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.system.environment import torchrun_num_nodes
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.offload.strategy import Offload
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig

_GIB = 1 << 30


class ClusterSpec(NamedTuple):
    """Who trains.

    Attributes:
        workers: How many.
        hosts: On how many hosts.
        device: What they compute on.
        memory: Most memory of one worker, such as ``"2GiB"``; None for what the machine has.
    """

    workers: int
    hosts: int
    device: str
    memory: str | None = None

    @staticmethod
    def from_workers(workers: Workers, memory: str | None = None) -> ClusterSpec:
        """These workers, on this host or on those of their group."""
        return ClusterSpec(workers.number, min(torchrun_num_nodes(), workers.number), workers.device, memory)


def select_strategy(
    choice: str | Strategy,
    options: Mapping[str, object],
    graph: Graph,
    model: Model,
    config: TrainConfig,
    cluster: ClusterSpec,
) -> tuple[Strategy, str]:
    """The strategy that is meant, and one sentence on why.

    Args:
        choice: ``"auto"``, a name, or a strategy.
        options: Of the strategy, by name. With ``"auto"`` they say which is meant: see `resolve_strategy`.
        graph: What is trained on.
        model: What is trained.
        config: In what batches.
        cluster: Who trains.

    Raises:
        InputError: No such strategy, an option that it does not take, or none fits; or the one that is meant cannot
            train this, or needs more memory than there is.
    """
    if choice != "auto" or options:
        meant, reason = resolve_strategy(choice, options, batches=not config.batch_config.is_full_graph)
        validate_strategy(graph, model, meant, config)
        validate_memory(meant, graph, model, config, workers=cluster.workers, device=cluster.device)
        return meant, reason
    return plan_strategy(graph, model, config, cluster)


def select_from_cli(
    choice: str, options: Mapping[str, object], graph: Graph, model: Model, config: TrainConfig, workers: Workers
) -> tuple[Strategy, str]:
    """`select_strategy` what was typed: with a limit of memory alone, the choice is left to a plan that keeps to it."""
    memory = options.get("memory")
    ways = {} if choice == "auto" and set(options) == {"memory"} else options
    crew = ClusterSpec.from_workers(workers, None if memory is None else str(memory))
    return select_strategy(choice, ways, graph, model, config, crew)


def plan_strategy(graph: Graph, model: Model, config: TrainConfig, cluster: ClusterSpec) -> tuple[Strategy, str]:
    """The strategy with the shortest epoch, of those that train the same and fit; and one sentence on why.

    Of one worker memory decides alone: nothing that is done to move less is worth it where nothing moves.

    Raises:
        InputError: None fits; with numbered fixes.
    """
    if model.decoder is not None:
        usual = _default_strategy(config, cluster)
        return usual, f"strategy {usual.name}: models of links are not planned"
    if cluster.workers == 1 and cluster.memory is not None and graph.num_edges > COUNTED_EDGES:
        usual = _default_if_fits(graph, model, config, cluster)
        return usual, f"strategy {usual.name}: memory is limited, and nothing travels between workers"
    place = WorkerLayout(workers=cluster.workers, hosts=cluster.hosts)
    profile, measured = select_machine(None, place, cluster.device)
    unknown = missing_bandwidth(place, profile)
    if unknown is not None:
        usual = _default_if_fits(graph, model, config, cluster)
        return usual, f"strategy {usual.name}: {unknown}"
    asked = query_for_graph(graph, model, config, PlanSite(profile, [place], cluster.memory))
    if cluster.workers == 1 and profile.device.is_shared:
        asked = _reserve_memory(user_bytes(asked.work, cost_model_for(asked, place)), asked)
    if cluster.workers == 1 and cluster.memory is None:
        usual, pace = _default_strategy(config, cluster), cost_model_for(asked, place)
        alone = estimate_strategy(usual, asked.work, pace)
        if fits_in(alone, pace):
            return usual, _fits_reason(alone, pace.memory)
    found = make_plan(asked)
    best = found.chosen_candidate
    if best is None or best.estimate is None:
        _raise_nothing_fits(found, cluster)
    strategy = best.estimate.strategy
    if cluster.workers == 1:
        return strategy, _fits_reason(best.estimate, found.memory)
    told = explain_choice(found)
    return strategy, told if measured else f"{told}, on a typical machine: outgrow calibrate measures this one"


def _fits_reason(estimate: Estimate, memory: int) -> str:
    held = f"{estimate.peak_bytes / _GIB:,.2f} GiB of {memory / _GIB:,.2f} estimated"
    return f"strategy {estimate.strategy.name}: it fits into memory, {held}"


def _default_strategy(config: TrainConfig, cluster: ClusterSpec) -> Strategy:
    """What is trained by where nothing is compared."""
    if not config.batch_config.is_full_graph:
        return Sampled()
    return Full() if cluster.memory is None else Offload(memory=cluster.memory)


def _default_if_fits(graph: Graph, model: Model, config: TrainConfig, cluster: ClusterSpec) -> Strategy:
    usual = _default_strategy(config, cluster)
    validate_memory(usual, graph, model, config, workers=cluster.workers, device=cluster.device)
    return usual


def _reserve_memory(reserved_bytes: int, query: PlannerQuery) -> PlannerQuery:
    """On a machine of which so much memory is taken."""
    device = query.profile.device
    left = replace(device, memory_bytes=max(0, device.memory_bytes - reserved_bytes))
    return replace(query, profile=replace(query.profile, device=left))


def _raise_nothing_fits(plan: Plan, cluster: ClusterSpec) -> NoReturn:
    """No strategy can train this: say what each would need, and what would do."""
    needs = [f"{each.name}: {each.why_not}" for each in plan.candidates if each.estimate is not None]
    raise InputError(
        "no strategy can train this model on this graph here",
        needed="; ".join(needs or [f"{each.name}: {each.why_not}" for each in plan.candidates]),
        got=f"{plan.memory / _GIB:,.2f} GiB for each of {cluster.workers} workers",
        repair=f"one of: {numbered_fixes(plan)}",
    )
