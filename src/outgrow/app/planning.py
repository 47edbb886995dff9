"""Plans for a graph at hand, or for one that is known by name, on this machine or on another."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from outgrow.app.calibration import kept_for
from outgrow.app.fit import require_hops
from outgrow.app.models import build_model
from outgrow.core.errors import InputError
from outgrow.core.sizes import parse_bytes
from outgrow.graph.csc import Topology
from outgrow.graph.graph import Graph, Split
from outgrow.nn.model import Model
from outgrow.planning.named import facts_of, named
from outgrow.planning.planner import Plan, Question, plan
from outgrow.planning.profile import Profile, profile_of
from outgrow.planning.shapes import Counted
from outgrow.planning.sizes import graph_sizes, model_sizes
from outgrow.planning.sketch import sketched
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Workload
from outgrow.runtime.comm import Alone
from outgrow.runtime.device import device_of, memory_bytes
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig

TYPICAL = {"cpu": "2-core-cpu", "cuda": "4xV100"}
"""The machines that stand for this one until it is measured, by what workers compute on."""
COUNTED_EDGES = 1_000_000
"""Graphs with more are not counted whole, where that takes long: for several workers, or in chunks."""


def plan_for(
    graph: Graph, model: Model, config: TrainConfig, profile: Profile, places: Sequence[Place], limit: str | None
) -> Plan:
    """What training a model on a graph will take: see `question_for`."""
    return plan(question_for(graph, model, config, profile, places, limit))


def question_for(
    graph: Graph, model: Model, config: TrainConfig, profile: Profile, places: Sequence[Place], limit: str | None
) -> Question:
    """Of a graph at hand.

    Small graphs are counted whole; of larger ones, with several workers or a limit of memory, degrees are counted, and
    a part is cut.

    Args:
        graph: It has features and labels.
        model: For this graph.
        config: Its batches and seed are what matters.
        profile: Of the machine.
        places: Where workers may be.
        limit: Most memory of one worker, such as ``"2GiB"``; None for what the machine has.

    Raises:
        InputError: The model is one of links.
    """
    if model.decoder is not None:
        raise InputError(
            "models of links are not planned",
            needed="a model of nodes",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="train it: auto chooses strategy full, or offload with memory",
        )
    hard = limit is not None or max(place.workers for place in places) > 1
    known = sketched(graph) if hard and graph.num_edges > COUNTED_EDGES else Counted(graph)
    work = Workload(
        graph=graph_sizes(graph),
        model=model_sizes(model, graph),
        shape=known,
        sampling=known,
        batches=config.batches,
        seed=config.seed,
    )
    return _question(work, profile, places, limit, partial(_require, graph, model, config))


def plan_for_named(
    workload: str,
    model: str,
    options: Mapping[str, object],
    config: TrainConfig,
    profile: Profile,
    places: Sequence[Place],
    limit: str | None,
) -> Plan:
    """What training a model will take on a graph that is not here.

    Args:
        workload: Name of the graph: see `outgrow.planning.named.graphs`.
        model: Name of the model.
        options: Of the model.
        config: Its batches and seed are what matters.
        profile: Of the machine.
        places: Where workers may be.
        limit: Most memory of one worker, such as ``"2GiB"``; None for what the machine has.

    Raises:
        InputError: No such graph or model.
    """
    facts = facts_of(workload)
    known, stand_in = named(facts), stand_in_for(facts)
    built = build_model(model, stand_in, options)
    require_hops(stand_in, built, config)
    sizes = model_sizes(built, stand_in)
    work = Workload(
        graph=known.sizes, model=sizes, shape=known, sampling=known, batches=config.batches, seed=config.seed
    )
    return plan(_question(work, profile, places, limit, partial(_require, stand_in, built, config)))


def stand_in_for(facts: Mapping[str, Any]) -> Graph:
    """A graph of one node, of which a model can be built that is as wide."""
    none = torch.empty(0, dtype=torch.int64)
    return Graph(
        name=facts["name"],
        topology=Topology(indptr=torch.tensor([0, 1]), indices=torch.zeros(1, dtype=torch.int32)),
        features=torch.zeros(1, facts["features"]),
        labels=torch.zeros(1, dtype=torch.int64),
        split=Split(train=none.new_zeros(1).expand(facts["train"]), val=none, test=none),
        num_classes=facts.get("classes", 2),
    )


def machine_for(hardware: str | None, place: Place, device: str) -> tuple[Profile, bool]:
    """The profile of a machine by name or file, or of this one; and whether the latter was measured.

    Until this machine is measured, a typical one of its kind with its memory stands for it.

    Args:
        hardware: A name or a file; None for this machine.
        place: How many workers there will be, on how many hosts.
        device: What they compute on: see `device_of`.

    Raises:
        InputError: No such machine, a broken file, or no such device here.
    """
    if hardware is not None:
        return profile_of(hardware), True
    where = device_of(device, Alone())
    kept = kept_for(place.workers, place.hosts, where.type)
    memory = memory_bytes(where)
    if kept is not None:
        return replace(kept, device=replace(kept.device, memory_bytes=memory)), True
    typical = profile_of(TYPICAL[where.type])
    here = replace(typical.device, memory_bytes=memory)
    return replace(typical, name="this machine, not measured", device=here), False


def places_of(profile: Profile, workers: int | None, num_nodes: int | None = None) -> list[Place]:
    """Where workers may be: so many, or one up to all of the machine, and no more than nodes.

    Raises:
        InputError: There are fewer nodes than workers that are asked for.
    """
    most = min(profile.hosts * profile.workers, num_nodes or profile.hosts * profile.workers)
    if workers is not None and num_nodes is not None and workers > num_nodes:
        raise InputError(
            "the graph has fewer nodes than there are workers",
            needed=f"at most {num_nodes:,} workers",
            got=f"{workers:,} workers",
            repair="plan for fewer workers",
        )
    if workers is not None and not profile.device.shared and workers > profile.hosts * profile.workers:
        raise InputError(
            f"{profile.name} has fewer devices than there are workers",
            needed=f"at most {profile.hosts * profile.workers} workers",
            got=f"{workers} workers",
            repair="plan for fewer workers, or for another machine",
        )
    counts = [workers] if workers is not None else [2**power for power in range(most.bit_length()) if 2**power < most]
    return [
        Place(workers=count, hosts=min(profile.hosts, -(-count // profile.workers)))
        for count in (counts if workers is not None else [*counts, most])
    ]


def _question(
    work: Workload,
    profile: Profile,
    places: Sequence[Place],
    limit: str | None,
    require: Callable[[Strategy], None],
) -> Question:
    most = None if limit is None else parse_bytes(limit)
    return Question(work=work, profile=profile, places=places, limit=most, require=require)


def _require(graph: Graph, model: Model, config: TrainConfig, strategy: Strategy) -> None:
    strategy.require(graph, config.batches)
    strategy.require_model(model)
