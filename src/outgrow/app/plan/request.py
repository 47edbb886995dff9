"""What was asked of ``outgrow plan``, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from outgrow.app.compatibility import require_hops, require_problem
from outgrow.app.model_registry import MODELS
from outgrow.app.plan.machine_profiles import machine_for
from outgrow.app.plan.question import Site, places_of, question_for, question_for_named, refuse_links
from outgrow.app.recipes import default_model, recipe_of
from outgrow.app.runs.config import place_of, seeded_model
from outgrow.app.runs.new_run import config_of, sorted_options
from outgrow.core.validation import pick, require_positive
from outgrow.graph import datasets
from outgrow.graph.builders.validate import require_trainable
from outgrow.planning.planner import Plan, plan
from outgrow.planning.traffic import Place
from outgrow.runtime.system.device import DEVICES
from outgrow.runtime.system.environment import cores


@dataclass(frozen=True, kw_only=True)
class Request:
    """What is asked for; None is what a run would take.

    Attributes:
        graph: A graph at hand; None for one by name.
        workload: The name of a graph that is not here.
        model: Name of the model.
        options: Of the model and of the loop.
        workers: How many; None for the best number.
        memory: Most memory of a worker.
        hardware: Another machine.
        device: What workers compute on here.
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


def answered(request: Request) -> tuple[Plan, bool]:
    """The plan; and whether this machine was measured, if it is for this one.

    Raises:
        InputError: Something that was asked for cannot be used.
    """
    require_positive("plan", workers=request.workers)
    pick("device", request.device, dict.fromkeys(DEVICES))
    where = request.graph or request.workload or ""
    name = request.model or default_model(where)
    pick("model", name, MODELS)
    recipe = recipe_of(where, name)
    config, settings = config_of(recipe, request.options), {**recipe.model, **sorted_options(name, request.options)[0]}
    if "decoder" in settings:
        refuse_links(settings["decoder"])
    profile, measured = machine_for(request.hardware, Place(workers=request.workers or cores()), request.device)
    if request.graph is None:
        assert request.workload is not None
        site = Site(profile, places_of(profile, request.workers), request.memory)
        return plan(question_for_named(request.workload, name, settings, config, site)), measured
    graph = datasets.load(place_of(request.graph), data_dir=request.data_dir)
    require_trainable(graph)
    built = seeded_model(name, graph, settings, config.seed)
    require_problem(graph, built)
    require_hops(graph, built, config)
    site = Site(profile, places_of(profile, request.workers, graph.num_nodes), request.memory)
    return plan(question_for(graph, built, config, site)), measured
