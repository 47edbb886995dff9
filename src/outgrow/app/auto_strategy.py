"""``strategy="auto"``: choice of a strategy by a plan, with one sentence on why."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple, NoReturn

from outgrow.app.compatibility import validate_strategy
from outgrow.app.memory_check import fit_prefetch, user_bytes, validate_memory
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import COUNTED_EDGES, PlanSite, query_for_graph
from outgrow.app.plan.table import explain_choice, numbered_fixes
from outgrow.app.runs.workers import Workers
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.core.errors import InputError
from outgrow.graph.graph import Graph
from outgrow.nn.edge_decoder import EdgeDecoder
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
    """Workers that a strategy is chosen for.

    Attributes:
        workers: Number of workers.
        hosts: Number of hosts.
        device: Device that workers compute on.
        memory: Memory limit of one worker, such as ``"2GiB"``; None for what the machine has.
    """

    workers: int
    hosts: int
    device: str
    memory: str | None = None

    @property
    def layout(self) -> WorkerLayout:
        """The numbers of workers and hosts, as the planner takes them."""
        return WorkerLayout(workers=self.workers, hosts=self.hosts)

    @staticmethod
    def from_workers(workers: Workers, memory: str | None = None) -> ClusterSpec:
        """Make the specification of these workers, on this host or on those of torchrun's group."""
        return ClusterSpec(workers.number, min(torchrun_num_nodes(), workers.number), workers.device, memory)


class StrategyChoice(NamedTuple):
    """Strategy to train with.

    Attributes:
        strategy: The strategy.
        reason: One sentence on why.
        rivals: Strategies that estimates cannot tell from it, which a run may try for some steps.
        epoch_seconds: Estimated seconds of an epoch; 0 where none were estimated.
    """

    strategy: Strategy
    reason: str
    rivals: tuple[Strategy, ...] = ()
    epoch_seconds: float = 0.0


def take_trial_option(choice: str | Strategy, options: dict[str, object]) -> bool:
    """Remove the option ``trial`` from others, and return it: whether ``auto`` may try strategies.

    Raises:
        InputError: It is no truth value, or the strategy is not left to ``auto``.
    """
    if "trial" not in options:
        return choice == "auto"
    tries = options.pop("trial")
    if not isinstance(tries, bool) or choice != "auto":
        raise InputError(
            "option trial cannot be used",
            needed="true or false, with strategy auto, which tries strategies that estimates cannot tell apart",
            got=f"{tries!r}, with strategy {choice if isinstance(choice, str) else choice.name}",
            repair="leave trial out, or leave the strategy to auto",
        )
    return tries


def select_strategy(
    choice: str | Strategy,
    options: Mapping[str, object],
    graph: Graph,
    model: Model,
    config: TrainConfig,
    cluster: ClusterSpec,
) -> StrategyChoice:
    """Return the strategy to train with, and why.

    Args:
        choice: ``"auto"``, a name, or a strategy.
        options: Options of the strategy, by name. With ``"auto"`` they decide which one: see
            `resolve_strategy`.
        graph: Graph to train on.
        model: Model to train.
        config: Options of the training loop, of which batches matter.
        cluster: Workers to train with.

    Raises:
        InputError: There is no such strategy or option, no strategy fits, or the chosen one cannot train this
            model or needs more memory than there is.
    """
    # Options belong to one strategy, so a plan that compares several could not use them.
    if choice != "auto" or options:
        chosen, reason = resolve_strategy(choice, options, batches=not config.batch_config.is_full_graph)
        validate_strategy(graph, model, chosen, config)
        chosen.validate_workers(cluster.workers, cluster.hosts)
        fitted = fit_prefetch(chosen, graph, model, config, layout=cluster.layout, device=cluster.device)
        validate_memory(fitted, graph, model, config, workers=cluster.workers, device=cluster.device)
        if fitted != chosen:
            reason += f", with prefetch={fitted.options()['prefetch']} to keep within {fitted.options()['memory']}"
        return StrategyChoice(fitted, reason)
    return plan_strategy(graph, model, config, cluster)


def select_from_cli(
    choice: str, options: Mapping[str, object], graph: Graph, model: Model, config: TrainConfig, workers: Workers
) -> StrategyChoice:
    """Select a strategy by options of the command line; ``memory`` alone becomes the limit of a plan."""
    memory = options.get("memory")
    # Several strategies can keep to a memory limit, so this option does not decide for one of them.
    strategy_options = {} if choice == "auto" and set(options) == {"memory"} else options
    cluster = ClusterSpec.from_workers(workers, None if memory is None else str(memory))
    return select_strategy(choice, strategy_options, graph, model, config, cluster)


def plan_strategy(graph: Graph, model: Model, config: TrainConfig, cluster: ClusterSpec) -> StrategyChoice:
    """Return the strategy with the shortest epoch of those that train the same and fit, and why.

    For one worker only memory decides: nothing moves between workers, so no strategy can save traffic. With
    ``config.inexact`` strategies that do not train the same are among them, and are compared on one worker too.

    Raises:
        InputError: No strategy fits; the message numbers possible fixes.
    """
    if isinstance(model.decoder, EdgeDecoder):
        usual = _default_strategy(config, cluster)
        return StrategyChoice(usual, f"strategy {usual.name}: targets of edges are not planned")
    if graph.part is not None:
        usual = _default_if_fits(graph, model, config, cluster)
        return StrategyChoice(
            usual, f"strategy {usual.name}: the graph is partitioned already, and no other is planned"
        )
    # A plan within a limit would search for chunks, which takes long on a large graph and decides nothing.
    if cluster.workers == 1 and cluster.memory is not None and graph.num_edges > COUNTED_EDGES:
        usual = _default_if_fits(graph, model, config, cluster)
        reason = f"strategy {usual.name}: memory is limited, and one worker has no traffic to save"
        return StrategyChoice(usual, reason)
    layout = cluster.layout
    machine = select_machine(None, layout, cluster.device)
    profile = machine.profile
    unknown = missing_bandwidth(layout, profile)
    # Strategies differ mainly in traffic, which cannot be costed over a link of unknown speed.
    if unknown is not None:
        usual = _default_if_fits(graph, model, config, cluster)
        return StrategyChoice(usual, f"strategy {usual.name}: {unknown}")
    query = query_for_graph(graph, model, config, PlanSite(profile, [layout], cluster.memory, machine.corrections))
    # One worker trains in this process, next to the user's own data.
    if cluster.workers == 1 and profile.device.is_shared:
        query = _reserve_memory(user_bytes(query.work, cost_model_for(query, layout)), query)
    # The default fits nearly always; estimating it alone saves a plan of all strategies.
    if cluster.workers == 1 and cluster.memory is None and not config.inexact:
        usual = _default_strategy(config, cluster)
        costs = cost_model_for(query, layout)
        estimate = estimate_strategy(usual, query.work, costs)
        if fits_in(estimate, costs):
            return StrategyChoice(usual, _fits_reason(estimate, costs.memory))
    found = make_plan(query)
    best = found.chosen_candidate
    if best is None or best.estimate is None:
        _raise_nothing_fits(found, cluster)
    strategy = best.estimate.strategy
    if cluster.workers == 1 and strategy.is_exact(config.batch_config):
        return StrategyChoice(strategy, _fits_reason(best.estimate, found.memory))
    reason = explain_choice(found)
    if not machine.is_measured:
        reason += ", on a typical machine: outgrow calibrate measures this one"
    # Steps of a trial are steps of the run: all that are tried must train the same.
    tried = (each.estimate.strategy for each in found.rivals if each.estimate is not None)
    rivals = tuple(
        each for each in tried if each.is_exact(config.batch_config) and strategy.is_exact(config.batch_config)
    )
    return StrategyChoice(strategy, reason, rivals, best.seconds)


def _fits_reason(estimate: Estimate, memory: int) -> str:
    held = f"{estimate.peak_bytes / _GIB:,.2f} GiB of {memory / _GIB:,.2f} estimated"
    return f"strategy {estimate.strategy.name}: it fits into memory, {held}"


def _default_strategy(config: TrainConfig, cluster: ClusterSpec) -> Strategy:
    """Return the strategy to train with if none are compared."""
    if not config.batch_config.is_full_graph:
        return Sampled(memory=cluster.memory)
    return Full() if cluster.memory is None else Offload(memory=cluster.memory)


def _default_if_fits(graph: Graph, model: Model, config: TrainConfig, cluster: ClusterSpec) -> Strategy:
    usual = _default_strategy(config, cluster)
    usual = fit_prefetch(usual, graph, model, config, layout=cluster.layout, device=cluster.device)
    validate_memory(usual, graph, model, config, workers=cluster.workers, device=cluster.device)
    return usual


def _reserve_memory(reserved_bytes: int, query: PlannerQuery) -> PlannerQuery:
    """Return the query for a machine with ``reserved_bytes`` less memory."""
    device = query.profile.device
    left = replace(device, memory_bytes=max(0, device.memory_bytes - reserved_bytes))
    return replace(query, profile=replace(query.profile, device=left))


def _raise_nothing_fits(plan: Plan, cluster: ClusterSpec) -> NoReturn:
    """Raise an `InputError` that says what each strategy would need, and what would help.

    Raises:
        InputError: Always.
    """
    # A strategy without an estimate cannot train this model at all: it is named only if there are no others.
    needs = [f"{each.name}: {each.why_not}" for each in plan.candidates if each.estimate is not None]
    raise InputError(
        "no strategy can train this model on this graph here",
        needed="; ".join(needs or [f"{each.name}: {each.why_not}" for each in plan.candidates]),
        got=f"{plan.memory / _GIB:,.2f} GiB for each of {cluster.workers} workers",
        repair=f"one of: {numbered_fixes(plan.query)}",
    )
