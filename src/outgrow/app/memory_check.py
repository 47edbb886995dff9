"""Check that a host has the memory for a strategy that the user chose, made before anything starts."""

from __future__ import annotations

from dataclasses import replace

from outgrow.app.console import format_memory
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.app.plan.table import numbered_fixes
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes
from outgrow.graph.graph import Graph
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.model import Model
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimators.registry import KNOWN, estimate_strategy
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.link_memory import whole_graph_link_bytes
from outgrow.planning.peak_memory import base_bytes, process_bytes, training_bytes
from outgrow.planning.planner import cost_model_for, fits_in
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.system.device import choose_device
from outgrow.runtime.system.environment import torchrun_world_size
from outgrow.runtime.system.process_memory import resident_bytes
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

_TRUST = 0.85
"""Fraction of its estimate that a run may really need: one that may fit is not refused."""
_AT_MOST = 3
"""Upper bound of a strategy's memory, as a multiple of whole layers of all nodes."""
_ANY_MACHINE, _ANY_GPU = "2-core-cpu", "V100"
"""Profiles to estimate with; their speed does not matter here."""


def validate_memory(
    strategy: Strategy, graph: Graph, model: Model, config: TrainConfig, *, workers: int, device: str
) -> None:
    """Check that this host, or its container, has enough memory to train with a strategy.

    Not checked, since there is no estimate: GPUs, workers started by torchrun, targets of edges, and
    strategies that are not Outgrow's.

    Args:
        strategy: Chosen strategy.
        graph: Graph to train on.
        model: Model to train.
        config: Options of the training loop, of which batches matter.
        workers: Number of workers, all on this host.
        device: Device that workers compute on: see `choose_device`.

    Raises:
        InputError: The workers would need more memory than is available.
    """
    unknown = isinstance(model.decoder, EdgeDecoder) or not isinstance(strategy, KNOWN)
    if unknown or torchrun_world_size() or choose_device(device, SingleProcessComm()).type != "cpu":
        return
    # Estimates include the whole process: a single worker is this one, whose memory is already taken.
    room = available_bytes() + (resident_bytes() if workers == 1 else 0)
    profile = find_profile(_ANY_MACHINE)
    layout = WorkerLayout(workers=workers, hosts=1)
    here = replace(profile, device=replace(profile.device, memory_bytes=room))
    query = query_for_graph(graph, model, config, PlanSite(here, [layout]))
    costs = cost_model_for(query, layout)
    if workers == 1:
        other = user_bytes(query.work, costs)
        room = room - other
        costs = replace(costs, memory=costs.memory - other)
    # The bound takes little time, while estimates of some strategies partition or sample the graph.
    if workers * _upper_bound_bytes(query.work, costs) <= room:
        return
    if strategy.memory_limit is None or strategy.uses_minibatches:
        each = estimate_strategy(strategy, query.work, costs).peak_bytes
    else:
        # A strategy fills its limit, unless the whole graph needs less. The search for chunks, which would
        # tell exactly, takes memory itself.
        each = min(strategy.memory_limit, process_bytes(costs) + round(_full_graph_bytes(query.work)))
    if _TRUST * workers * each > room:
        per_worker = f", {format_memory(each)} for each of {workers} workers" if workers > 1 else ""
        raise InputError(
            f"strategy {strategy.name} needs more memory than there is",
            needed=format_memory(workers * each) + per_worker,
            got=f"{format_memory(room)} that this host, or its container, has left",
            repair="choose another strategy (auto takes one that fits, offload keeps to --memory), fewer workers, or "
            "mini-batches: `outgrow plan` lists what each takes; a run may change its strategy with --resume",
        )


def fit_prefetch(
    strategy: Strategy, graph: Graph, model: Model, config: TrainConfig, *, layout: WorkerLayout, device: str
) -> Strategy:
    """Return a strategy of mini-batches with as many batches ahead as its limit of memory permits.

    Other strategies, and those without a limit, are returned as they are.

    Args:
        strategy: Chosen strategy.
        graph: Graph to train on.
        model: Model to train.
        config: Options of the training loop, of which batches and evaluations matter.
        layout: Number of workers and hosts.
        device: Device that workers compute on: see `choose_device`.

    Raises:
        InputError: One batch at a time does not fit, as is estimated; the message numbers possible fixes.
    """
    limit = strategy.memory_limit
    unknown = isinstance(model.decoder, EdgeDecoder) or not isinstance(strategy, KNOWN)
    if limit is None or not strategy.uses_minibatches or unknown:
        return strategy
    on_cpu = choose_device(device, SingleProcessComm()).type == "cpu"
    profile = find_profile(_ANY_MACHINE if on_cpu else _ANY_GPU)
    query = query_for_graph(graph, model, config, PlanSite(profile, [layout], f"{limit}B"))
    costs = cost_model_for(query, layout)
    least = 0
    for each in _with_fewer_ahead(strategy):
        estimate = estimate_strategy(each, query.work, costs)
        if fits_in(estimate, costs):
            return each
        least = estimate.peak_bytes
    raise InputError(
        f"strategy {strategy.name} needs more memory than its limit",
        needed=f"{format_memory(least)} for each worker, one batch at a time, as is estimated",
        got=f"{format_memory(limit)}",
        repair=f"one of: {numbered_fixes(query)}",
    )


def _with_fewer_ahead(strategy: Strategy) -> list[Strategy]:
    """Return the strategy with fewer and fewer batches ahead, down to the fewest, if it has such an option."""
    ahead = strategy.options().get("prefetch")
    if not isinstance(ahead, int):
        return [strategy]
    return [replace(strategy, prefetch=count) for count in range(ahead, strategy.fewest_prefetched - 1, -1)]  # type: ignore[type-var]


def user_bytes(work: Workload, costs: CostModel) -> int:
    """Return the bytes of the user's own data in this process, the only worker."""
    # Whatever is resident beyond the interpreter, the libraries and the graph, which every run holds.
    return max(0, resident_bytes() - base_bytes(work, costs))


def _full_graph_bytes(work: Workload, slices: int = 1) -> float:
    """Return the bytes to train whole layers of all nodes on one worker, without its process."""
    nodes, edges = work.graph.nodes, work.graph.edges + work.graph.nodes
    return training_bytes(work, nodes, nodes, edges, slices)


def _upper_bound_bytes(work: Workload, costs: CostModel) -> float:
    """Return an upper bound of the bytes of any strategy: in constant time for nodes; of links some steps are drawn."""
    rows = work.graph.nodes * (work.graph.row_bytes + work.input_row_bytes)
    of_links = whole_graph_link_bytes(work, costs, work.link_step_stats("", 1))
    return process_bytes(costs) + _AT_MOST * (_full_graph_bytes(work, slices=2) + rows + of_links)
