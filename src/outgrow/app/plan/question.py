"""What is asked of the planner: of a graph at hand, or of one that is known by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn

import torch

from outgrow.app.compatibility import validate_fanout, validate_strategy
from outgrow.app.model_registry import build_model
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes
from outgrow.graph.graph import Graph, Split
from outgrow.graph.topology import Topology
from outgrow.nn.model import Model
from outgrow.planning.graph_stats.analytic import AnalyticGraph
from outgrow.planning.graph_stats.counted import CountedGraph, sketch_graph
from outgrow.planning.graph_stats.known_graphs import known_graph, load_graph_facts
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.planner import PlannerQuery
from outgrow.planning.sizes import DatasetSizes, dataset_sizes, model_sizes
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.training.config import TrainConfig

COUNTED_EDGES = 1_000_000
"""Graphs with more are not counted whole, where that takes long: for several workers, or in chunks."""


class PlanSite(NamedTuple):
    """Where one may train.

    Attributes:
        profile: Of the machine.
        layouts: Where workers may be.
        limit: Most memory of one worker, such as ``"2GiB"``; None for what the machine has.
    """

    profile: MachineProfile
    layouts: Sequence[WorkerLayout]
    limit: str | None = None


def query_for_graph(graph: Graph, model: Model, config: TrainConfig, site: PlanSite) -> PlannerQuery:
    """What training a model on a graph at hand will take.

    Small graphs are counted whole; of larger ones, with several workers or a limit of memory, degrees are counted, and
    a part is cut.

    Args:
        graph: It has features and labels.
        model: For this graph.
        config: Its batches and seed are what matters.
        site: Where one may train.

    Raises:
        InputError: The model is one of links.
    """
    if model.decoder is not None:
        raise_links_unplanned(type(model.decoder).__name__)
    hard = site.limit is not None or max(place.workers for place in site.layouts) > 1
    known = sketch_graph(graph) if hard and graph.num_edges > COUNTED_EDGES else CountedGraph(graph)
    return _make_query(known, dataset_sizes(graph), graph, model, config, site)


def query_for_known_graph(
    workload: str, model: str, options: Mapping[str, object], config: TrainConfig, site: PlanSite
) -> PlannerQuery:
    """What training a model will take on a graph that is not here.

    Args:
        workload: Name of the graph: see `outgrow.planning.graph_stats.known_graphs.list_known_graphs`.
        model: Name of the model.
        options: Of the model.
        config: Its batches and seed are what matters.
        site: Where one may train.

    Raises:
        InputError: No such graph or model.
    """
    facts = load_graph_facts(workload)
    known, stand_in = known_graph(facts), placeholder_graph(facts)
    built = build_model(model, stand_in, options)
    validate_fanout(stand_in, built, config)
    return _make_query(known, known.sizes, stand_in, built, config, site)


def raise_links_unplanned(decoder: object) -> NoReturn:
    """Models of links are not planned."""
    raise InputError(
        "models of links are not planned",
        needed="a model of nodes",
        got=f"a model with the decoder {decoder}",
        repair="train it: auto chooses strategy full, or offload with memory",
    )


def placeholder_graph(facts: Mapping[str, Any]) -> Graph:
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


def candidate_layouts(profile: MachineProfile, workers: int | None, num_nodes: int | None = None) -> list[WorkerLayout]:
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
    if workers is not None and not profile.device.is_shared and workers > profile.hosts * profile.workers:
        raise InputError(
            f"{profile.name} has fewer devices than there are workers",
            needed=f"at most {profile.hosts * profile.workers} workers",
            got=f"{workers} workers",
            repair="plan for fewer workers, or for another machine",
        )
    counts = [workers] if workers is not None else [2**power for power in range(most.bit_length()) if 2**power < most]
    return [
        WorkerLayout(workers=count, hosts=min(profile.hosts, -(-count // profile.workers)))
        for count in (counts if workers is not None else [*counts, most])
    ]


def _make_query(
    stats: CountedGraph | AnalyticGraph,
    sizes: DatasetSizes,
    graph: Graph,
    model: Model,
    config: TrainConfig,
    site: PlanSite,
) -> PlannerQuery:
    work = Workload(
        graph=sizes,
        model=model_sizes(model, graph),
        partitioning=stats,
        sampling=stats,
        batches=config.batch_config,
        seed=config.seed,
    )
    limit = None if site.limit is None else parse_bytes(site.limit)
    require = partial(validate_strategy, graph, model, config=config)
    return PlannerQuery(work=work, profile=site.profile, layouts=site.layouts, limit=limit, validate=require)
