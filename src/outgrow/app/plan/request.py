"""Requests of ``outgrow plan``, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outgrow.app.compatibility import validate_fanout, validate_problem
from outgrow.app.model_registry import MODELS
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.plan.question import (
    PlanSite,
    candidate_layouts,
    query_for_graph,
    query_for_known_graph,
    raise_links_unplanned,
)
from outgrow.app.recipes import choose_model, find_recipe
from outgrow.app.runs.config import absolute_source, build_seeded_model
from outgrow.app.runs.new_run import make_train_config, split_options
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.graph import datasets
from outgrow.graph.builders.validate import require_trainable
from outgrow.planning.planner import Plan, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.runtime.system.device import DEVICES
from outgrow.runtime.system.environment import available_cores


@dataclass(frozen=True, kw_only=True)
class PlanRequest:
    """Request for a plan; None stands for the default of a run.

    Attributes:
        graph: Graph to load; None if ``workload`` is given.
        workload: Name of a graph of which only the sizes are known.
        model: Name of the model.
        options: Options of the model and of the training loop.
        workers: Number of workers; None for the best number.
        memory: Memory limit of a worker.
        hardware: Name or file of another machine's profile.
        device: Device that workers compute on here.
        data_dir: Folder to look in first for a data set's files.
    """

    graph: str | None = None
    workload: str | None = None
    model: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)
    workers: int | None = None
    memory: str | None = None
    hardware: str | None = None
    device: str = "auto"
    data_dir: Path | None = None


def answer_request(request: PlanRequest) -> tuple[Plan, bool]:
    """Return the plan, and whether its machine was measured.

    Raises:
        InputError: The request cannot be answered as it stands.
    """
    validate_positive("plan", workers=request.workers)
    validate_choice("device", request.device, dict.fromkeys(DEVICES))
    where = request.graph or request.workload or ""
    name = request.model or choose_model(where)
    validate_choice("model", name, MODELS)
    recipe = find_recipe(where, name)
    config = make_train_config(recipe, request.options)
    settings = {**recipe.model, **split_options(name, request.options)[0]}
    if "decoder" in settings:
        raise_links_unplanned(settings["decoder"])
    profile, measured = select_machine(
        request.hardware, WorkerLayout(workers=request.workers or available_cores()), request.device
    )
    if request.graph is None:
        assert request.workload is not None
        site = PlanSite(profile, candidate_layouts(profile, request.workers), request.memory)
        return make_plan(query_for_known_graph(request.workload, name, settings, config, site)), measured
    # Everything above is checked before the graph is loaded, which may take minutes.
    graph = datasets.load_graph(absolute_source(request.graph), data_dir=request.data_dir)
    require_trainable(graph)
    built = build_seeded_model(name, graph, settings, config.seed)
    validate_problem(graph, built)
    validate_fanout(graph, built, config)
    site = PlanSite(profile, candidate_layouts(profile, request.workers, graph.num_nodes), request.memory)
    return make_plan(query_for_graph(graph, built, config, site)), measured
