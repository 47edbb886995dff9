"""Queries to the planner, for a loaded graph or for one known only by its published sizes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from outgrow.app.compatibility import select_read_features, validate_fanout, validate_problem, validate_strategy
from outgrow.app.link_recipes import fit_to_links
from outgrow.app.link_task import validate_link_options
from outgrow.app.metric_checks import estimate_metric_bytes
from outgrow.app.model_registry import (
    AUTO,
    MODELS,
    build_model,
    choose_decoder,
    model_options,
    resolve_model_options,
)
from outgrow.app.node_task import make_node_task, task_of_nodes
from outgrow.app.plan.compilation import TrainedProblem, plan_with_compilation
from outgrow.app.plan.link_workload import make_known_links, make_link_workload
from outgrow.app.plan.machine_profiles import select_machine
from outgrow.app.recipes import choose_model, find_recipe, make_train_config, split_options
from outgrow.app.runs.config import absolute_source, build_seeded_model
from outgrow.app.targets import select_graph_targets
from outgrow.core.errors import InputError
from outgrow.core.memory_limits import parse_bytes
from outgrow.core.validation import validate_choice, validate_positive
from outgrow.engine.shard import model_topology
from outgrow.graph import datasets
from outgrow.graph.builders.validate import require_trainable
from outgrow.graph.graph import Graph, Split
from outgrow.graph.topology import Topology
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.model import Model
from outgrow.planning.dataset_sizes import DatasetSizes, count_resident_bytes, dataset_sizes
from outgrow.planning.graph_stats.analytic import AnalyticGraph
from outgrow.planning.graph_stats.counted import CountedGraph, sketch_graph
from outgrow.planning.graph_stats.known_graphs import known_graph, load_graph_facts
from outgrow.planning.hardware.corrections import NO_CORRECTIONS, Corrections
from outgrow.planning.hardware.profile import MachineProfile
from outgrow.planning.link_work import LinkWork
from outgrow.planning.model_sizes import model_sizes
from outgrow.planning.planner import Plan, PlannerQuery, make_plan
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload
from outgrow.runtime.system.device import DEVICES
from outgrow.runtime.system.environment import available_cores
from outgrow.training.config import TrainConfig
from outgrow.training.loop_options import open_option_names

COUNTED_EDGES = 1_000_000
"""Largest number of edges of a graph that is counted completely for several workers or in chunks."""
_MOST_EDGES_OF_CHUNKS = 50_000_000
"""The same for one worker without a limit, where counting chunks takes longer than anything else that is planned."""


class PlanSite(NamedTuple):
    """Machine to plan for.

    Attributes:
        profile: Profile of the machine.
        layouts: Layouts of workers to compare.
        limit: Memory limit of one worker, such as ``"2GiB"``; None for what the machine has.
        corrections: What runs on the machine have taught.
    """

    profile: MachineProfile
    layouts: Sequence[WorkerLayout]
    limit: str | None = None
    corrections: Corrections = NO_CORRECTIONS


def query_for_graph(graph: Graph, model: Model, config: TrainConfig, site: PlanSite) -> PlannerQuery:
    """Make the query for training a model on a loaded graph.

    Args:
        graph: Graph with features and labels.
        model: Model for this graph.
        config: Options of the training loop, of which batches and seed matter.
        site: Machine to plan for.

    Raises:
        InputError: The model predicts targets of edges, or its links cannot be split.
    """
    require_planned(model)
    # What is changed below no longer comes from a store, but what is trained does.
    store = graph.whole.store
    resident = 0 if store is not None else count_resident_bytes(graph)
    whole = graph = select_read_features(replace(graph, topology=model_topology(graph.topology, model)), model)
    links = None
    if model.decoder is not None:
        graph, links = make_link_workload(graph, model, config)
    # Partitions and chunks of a large graph take long to make: its degrees are counted, and a sample is cut.
    needs_parts = site.limit is not None or max(layout.workers for layout in site.layouts) > 1
    is_whole = config.batch_config.is_full_graph and graph.num_edges > _MOST_EDGES_OF_CHUNKS
    is_large = is_whole or (needs_parts and graph.num_edges > COUNTED_EDGES)
    sizes = replace(dataset_sizes(graph), resident_bytes=resident)
    if links is not None:
        sizes = links.adapt_sizes(sizes)
    stats = sketch_graph(graph, sizes, store=None if links else store) if is_large else CountedGraph(graph)
    return _make_query(stats, sizes, _Problem(whole, model, links), config, site)


def query_for_known_graph(
    workload: str, model: str, options: Mapping[str, object], config: TrainConfig, site: PlanSite
) -> PlannerQuery:
    """Make the query for training a model on a graph of which only the sizes are known.

    Args:
        workload: Name of the graph: see `outgrow.planning.graph_stats.known_graphs.list_known_graphs`.
        model: Name of the model.
        options: Options of the model.
        config: Options of the training loop, of which batches and seed matter.
        site: Machine to plan for.

    Raises:
        InputError: There is no such graph or model.
    """
    return query_for_graph_facts(load_graph_facts(workload), model, options, config, site)


def query_for_graph_facts(
    facts: Mapping[str, Any], model: str, options: Mapping[str, object], config: TrainConfig, site: PlanSite
) -> PlannerQuery:
    """Make the query of `query_for_known_graph` from the facts about a graph."""
    known = known_graph(facts)
    placeholder = placeholder_graph(facts)
    if options.get("decoder") == AUTO:
        options = {**options, "decoder": choose_decoder(placeholder)}
    built = build_model(model, placeholder, options)
    if not any(layer.conv.edge_dim for layer in built.layers_list()):
        known = known_graph({**facts, "edge_features": 0})
    validate_fanout(placeholder, built, config)
    links = None
    if built.decoder is not None:
        links = make_known_links(facts, placeholder, built, config)
        known.sizes = links.adapt_sizes(known.sizes)
    return _make_query(known, known.sizes, _Problem(placeholder, built, links), config, site)


def require_planned(model: Model) -> None:
    """Check that there are plans for what a model predicts: labels of nodes, or links.

    Raises:
        InputError: It predicts targets of edges.
    """
    if isinstance(model.decoder, EdgeDecoder):
        raise InputError(
            "targets of edges are not planned",
            needed="a model of nodes, or of links",
            got=f"a model with the decoder {type(model.decoder).__name__}",
            repair="train it: auto chooses strategy full, sampled for batches, or offload with memory",
        )


def validate_planned_problem(graph: Graph, model: Model, config: TrainConfig, given: Iterable[str] = ()) -> None:
    """Check that training a model on a loaded graph can be planned.

    Args:
        graph: The graph.
        model: The model.
        config: Options of the training loop.
        given: Names of options that were given.

    Raises:
        InputError: It cannot, as the graph, the model or an option cannot be used.
    """
    require_planned(model)
    if model.decoder is not None:
        validate_link_options(graph, config, given)
    validate_problem(graph, model, task_of_nodes(graph, model, config, plans=True))
    validate_fanout(graph, model, config)


def placeholder_graph(facts: Mapping[str, Any]) -> Graph:
    """Return a graph of one node with the widths of a known graph, to build a model for it."""
    # Only the length of the training split counts: `expand` gives it that length without memory.
    columns = facts.get("edge_features", 0)
    edges = torch.zeros(1, columns) if columns else None
    none = torch.empty(0, dtype=torch.int64)
    return Graph(
        name=facts["name"],
        # A graph that is planned with temporal draws has times.
        topology=Topology(
            indptr=torch.tensor([0, 1]),
            indices=torch.zeros(1, dtype=torch.int32),
            edge_features=edges,
            node_time=none.new_zeros(1),
        ),
        features=torch.zeros(1, facts["features"]),
        labels=torch.zeros(1, dtype=torch.int64),
        split=Split(train=none.new_zeros(1).expand(facts["train"]), val=none, test=none),
        num_classes=facts.get("classes", 2),
    )


def candidate_layouts(profile: MachineProfile, workers: int | None, num_nodes: int | None = None) -> list[WorkerLayout]:
    """Return the layouts of workers to compare.

    There is one if ``workers`` is given, else one for each power of two, up to all workers of the machine.

    Raises:
        InputError: There are fewer nodes, or fewer GPUs, than ``workers``.
    """
    most = min(profile.hosts * profile.workers, num_nodes or profile.hosts * profile.workers)
    if workers is not None and num_nodes is not None and workers > num_nodes:
        raise InputError(
            "the graph has fewer nodes than there are workers",
            needed=f"at most {num_nodes:,} workers",
            got=f"{workers:,} workers",
            repair="plan for fewer workers",
        )
    # Workers on CPUs share cores, so there may be more of them than were measured; a GPU has one worker.
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


class _Problem(NamedTuple):
    """What is trained: the whole graph, the model, and the links to train on; None for nodes."""

    graph: Graph
    model: Model
    links: LinkWork | None


def _make_query(
    stats: CountedGraph | AnalyticGraph, sizes: DatasetSizes, problem: _Problem, config: TrainConfig, site: PlanSite
) -> PlannerQuery:
    graph, model, links = problem
    hides = links is not None and links.options.steps.hide > 0
    work = Workload(
        graph=sizes,
        model=model_sizes(model, graph, hides_edges=hides),
        partitioning=stats,
        sampling=stats,
        batches=config.batch_config,
        seed=config.seed,
        evaluation=(config.evaluation.val, config.evaluation.test),
        evaluations_per_epoch=1 / config.eval_every,
        metric_bytes=estimate_metric_bytes(graph, model, config),
        links=links,
    )
    count = None if links is None else links.num_links
    # Bound here, since the planner (a lower layer) knows neither graphs nor models.
    require = partial(validate_strategy, graph, model, config=config, num_targets=count)
    return PlannerQuery(
        work=work,
        profile=site.profile,
        layouts=site.layouts,
        limit=None if site.limit is None else parse_bytes(site.limit),
        validate=require,
        corrections=site.corrections,
        allows_inexact=config.inexact,
    )


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
    of_links = "decoder" in request.options
    recipe = find_recipe(where, name, links=of_links, given=request.options)
    config = make_train_config(recipe, request.options, model_options(name))
    loop_options = open_option_names(config.optimizer, config.schedule)
    settings = {**recipe.model, **split_options(name, request.options, (), loop_options)[0]}
    machine = select_machine(
        request.hardware, WorkerLayout(workers=request.workers or available_cores()), request.device
    )
    profile, measured = machine.profile, machine.is_measured
    if request.graph is None:
        assert request.workload is not None
        if config.targets is not None:
            raise InputError(
                f"the node types of {request.workload} are not known",
                needed="a graph that is here, to plan for some of its types",
                got=f"targets {', '.join(config.target_weights or ())}",
                repair="leave --target out",
            )
        layouts = candidate_layouts(profile, request.workers)
        site = PlanSite(profile, layouts, request.memory, machine.corrections)
        return make_plan(query_for_known_graph(request.workload, name, settings, config, site)), measured
    # Everything above is checked before the graph is loaded, which may take minutes.
    graph = datasets.load_graph(absolute_source(request.graph), data_dir=request.data_dir)
    if of_links:
        config, settings = fit_to_links(graph, name, recipe, request.options, settings)
    else:
        require_trainable(graph)
        graph = select_graph_targets(graph, config)
    task = None if of_links else make_node_task(graph, config, plans=True)
    built = build_seeded_model(name, graph, resolve_model_options(name, graph, settings), config.seed, task)
    validate_problem(graph, built, task)
    validate_fanout(graph, built, config)
    layouts = candidate_layouts(profile, request.workers, graph.num_nodes)
    site = PlanSite(profile, layouts, request.memory, machine.corrections)
    query = query_for_graph(graph, built, config, site)
    return plan_with_compilation(query, TrainedProblem(graph, built, config), machine), measured
