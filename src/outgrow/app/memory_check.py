"""Whether a host has the memory that a strategy needs: asked before anything is started, where a user chose it."""

from __future__ import annotations

from dataclasses import replace

from outgrow.app.console import format_memory
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import available_bytes, parse_bytes
from outgrow.graph.graph import Graph
from outgrow.nn.model import Model
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimators.registry import KNOWN, estimate_strategy
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.peak_memory import base_bytes, process_bytes, training_bytes
from outgrow.planning.planner import cost_model_for
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.system.device import choose_device
from outgrow.runtime.system.environment import torchrun_world_size
from outgrow.runtime.system.process_memory import resident_bytes
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

_TRUST = 0.85
"""Runs may hold so much less than is estimated: what may fit is not refused."""
_AT_MOST = 3
"""No strategy holds more than so often what whole layers of all nodes take."""
_ANY_MACHINE = "2-core-cpu"
"""How fast it is does not matter here."""


def validate_memory(
    strategy: Strategy, graph: Graph, model: Model, config: TrainConfig, *, workers: int, device: str
) -> None:
    """Refuse what this host has too little memory for, control groups (containers) included.

    Nothing is asked of GPUs, of workers that something else has started, of models of links and of strategies that are
    not Outgrow's: of these nothing is estimated.

    Args:
        strategy: Which was chosen.
        graph: What is trained on.
        model: What is trained.
        config: In what batches.
        workers: How many workers, all on this host.
        device: What they compute on: see `choose_device`.

    Raises:
        InputError: They would need more than there is.
    """
    unknown = model.decoder is not None or not isinstance(strategy, KNOWN)
    if unknown or torchrun_world_size() or choose_device(device, SingleProcessComm()).type != "cpu":
        return
    room = available_bytes() + (resident_bytes() if workers == 1 else 0)
    profile, place = find_profile(_ANY_MACHINE), WorkerLayout(workers=workers, hosts=1)
    memory = strategy.options().get("memory")
    here = replace(profile, device=replace(profile.device, memory_bytes=room))
    asked = query_for_graph(graph, model, config, PlanSite(here, [place]))
    pace = cost_model_for(asked, place)
    if workers == 1:
        other = user_bytes(asked.work, pace)
        room, pace = room - other, replace(pace, memory=pace.memory - other)
    if workers * _upper_bound_bytes(asked.work, pace) <= room:
        return
    if memory is None:
        each = estimate_strategy(strategy, asked.work, pace).peak_bytes
    else:  # a limit is filled, if it is there or not; to look for chunks would take memory itself
        each = min(parse_bytes(str(memory)), process_bytes(pace) + round(_full_graph_bytes(asked.work)))
    if _TRUST * workers * each > room:
        of_each = f", {format_memory(each)} for each of {workers} workers" if workers > 1 else ""
        raise InputError(
            f"strategy {strategy.name} needs more memory than there is",
            needed=format_memory(workers * each) + of_each,
            got=f"{format_memory(room)} that this host, or its container, has left",
            repair="choose another strategy (auto takes one that fits, offload keeps to --memory), fewer workers, or "
            "mini-batches: `outgrow plan` lists what each takes; with --resume too the strategy may be another",
        )


def user_bytes(work: Workload, costs: CostModel) -> int:
    """What this process, the only worker, holds besides what a run holds from its start: the user's own data."""
    return max(0, resident_bytes() - base_bytes(work, costs))


def _full_graph_bytes(work: Workload, slices: int = 1) -> float:
    """Of all nodes on one worker, whole layers at once, besides its process."""
    nodes, edges = work.graph.nodes, work.graph.edges + work.graph.nodes
    return training_bytes(work, nodes, nodes, edges, slices)


def _upper_bound_bytes(work: Workload, costs: CostModel) -> float:
    """More than any strategy needs, estimated in no time."""
    rows = work.graph.nodes * (work.graph.row_bytes + work.input_row_bytes)
    return process_bytes(costs) + _AT_MOST * (_full_graph_bytes(work, slices=2) + rows)
