"""What was asked of ``outgrow plan``, and the answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from outgrow.app.fit import require_hops, require_problem
from outgrow.app.models import MODELS, model_options
from outgrow.app.plan import place_of, seeded_model
from outgrow.app.planning import machine_for, places_of, plan_for, plan_for_named
from outgrow.app.recipes import default_model, recipe_of
from outgrow.core.errors import InputError
from outgrow.core.nearest import pick
from outgrow.core.option_types import require_positive
from outgrow.graph import datasets
from outgrow.graph.validate import require_trainable
from outgrow.planning.planner import Plan
from outgrow.planning.traffic import Place
from outgrow.runtime.device import DEVICES
from outgrow.runtime.threads import cores
from outgrow.training.config import TrainConfig

_TRAINING = tuple(field.name for field in fields(TrainConfig))


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

    graph: str | None
    workload: str | None
    model: str | None
    options: Mapping[str, object]
    workers: int | None
    memory: str | None
    hardware: str | None
    device: str
    data_dir: Path | None


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
    known = {**dict.fromkeys(_TRAINING, True), **dict.fromkeys(model_options(name), False)}
    trains = {option: pick("option", option, known) for option in request.options}
    training = {**recipe.train, **{option: request.options[option] for option, is_ in trains.items() if is_}}
    settings = {**recipe.model, **{option: request.options[option] for option, is_ in trains.items() if not is_}}
    config = TrainConfig().with_options(**{option: each for option, each in training.items() if option in _TRAINING})
    if "decoder" in settings:
        raise InputError(
            "models of links are not planned",
            needed="a model of nodes",
            got=f"decoder {settings['decoder']}",
            repair="leave decoder out; train chooses strategy full for links",
        )
    profile, measured = machine_for(request.hardware, Place(workers=request.workers or cores()), request.device)
    if request.graph is None:
        assert request.workload is not None
        places = places_of(profile, request.workers)
        found = plan_for_named(request.workload, name, settings, config, profile, places, request.memory)
        return found, measured
    graph = datasets.load(place_of(request.graph), data_dir=request.data_dir)
    require_trainable(graph)
    built = seeded_model(name, graph, settings, config.seed)
    require_problem(graph, built)
    require_hops(graph, built, config)
    places = places_of(profile, request.workers, graph.num_nodes)
    return plan_for(graph, built, config, profile, places, request.memory), measured
