"""Link prediction of a run: training problem and evaluation of a model with a decoder, on a worker."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from torch import Tensor

from outgrow.app.link_task import find_link_relations, make_link_split, node_type_offsets, ranks_self
from outgrow.engine.link_options import LinkOptions
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard
from outgrow.graph.graph import Graph
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.link_split import LinkSplit
from outgrow.graph.store.reader import find_feature_file
from outgrow.graph.topology import Topology
from outgrow.inference.link_ranking import KnownLinks, LinkRanker
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.model import Model
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.link_evaluation import LinkEvaluation
from outgrow.training.link_training import GIVEN_OR_ALL, NONE, TARGET, count_drawn_candidates, make_link_options
from outgrow.training.loop_options import make_row_optimizer
from outgrow.training.monitor import Monitor, choose_link_monitor


def open_link_problem(
    graph: Graph, model: Model, strategy: Strategy, config: TrainConfig, comm: Comm
) -> tuple[Problem, LinkEvaluation]:
    """Shard the graph without the links that are held out; return the problem and its evaluation."""
    split = make_link_split(graph, config)
    # Held-out links are no edges of the training graph: message passing must not see the answers.
    given = remove_held_out_links(graph, split)
    options = find_link_options(graph, config, in_batches=True) if strategy.uses_minibatches else None
    share = strategy.shard_graph(given, comm, model, config.batch_config, links=options)
    problem = make_link_problem(graph, model, config, share, strategy)
    problem = replace(problem, find_feature_file=partial(find_feature_file, graph))
    monitor = choose_link_monitor(config.monitor, config.monitor_mode)
    limit = problem.memory_limit
    return problem, make_link_evaluation(graph, model, split, share, config, monitor, memory_limit=limit)


def is_exact(strategy: Strategy, config: TrainConfig, model: Model) -> bool:
    """Whether a strategy computes the gradient of the reference, also where batches exclude edges from messages."""
    of_links = isinstance(model.decoder, Decoder) and config.exclude != NONE
    # Of targets of edges nothing is excluded unless it is asked for.
    of_targets = isinstance(model.decoder, EdgeDecoder) and config.exclude == TARGET
    excludes = strategy.uses_minibatches and (of_links or of_targets)
    return (strategy.is_exact_without_edges if excludes else strategy.is_exact)(config.batch_config)


def find_link_options(graph: Graph, config: TrainConfig, *, in_batches: bool) -> LinkOptions:
    """Return how links are trained on, in batches or in steps over the whole graph.

    Raises:
        InputError: There is no relation of a name.
    """
    relations, itself = find_link_relations(graph, config), ranks_self(graph, config)
    return make_link_options(config, node_type_offsets(graph), relations, ranks_self=itself, in_batches=in_batches)


def make_link_problem(
    graph: Graph, model: Model, config: TrainConfig, share: GraphShard, strategy: Strategy
) -> Problem:
    """Make the training problem on a shard of the graph without held-out links."""
    assert graph.features is not None
    in_batches, topology = strategy.uses_minibatches, share.topology
    options = find_link_options(graph, config, in_batches=in_batches)
    count = len(LinkNumbers(topology, options.relations)) if in_batches else _count_edges(topology, options.relations)
    return Problem(
        shard=share,
        features=graph.features,
        targets=LinkTargets(options=options, num_targets=count),
        model=model,
        seed=config.seed,
        embedding_optimizer=make_row_optimizer(config, batches=in_batches),
        batches=config.batch_config,
        checkpoint_steps=config.checkpoint_steps,
        memory_limit=strategy.memory_limit if in_batches else None,
    )


def _count_edges(topology: Topology, relations: Tensor | None) -> int:
    if relations is None:
        return topology.num_edges
    assert topology.relation is not None
    return sum(int((topology.relation == each).sum()) for each in relations.tolist())


def make_link_evaluation(
    graph: Graph,
    model: Model,
    split: LinkSplit,
    share: GraphShard,
    config: TrainConfig,
    monitor: Monitor | None = None,
    *,
    memory_limit: int | None = None,
) -> LinkEvaluation:
    """Make the evaluation of a model on held-out links."""
    assert isinstance(model.decoder, Decoder)
    # Without relations, a link and its reverse count as the same.
    directed = graph.topology.relation is not None
    # Known links are left out of each ranking (filtered MRR).
    answers = KnownLinks(split.find_known_answers(), graph.num_nodes, directed=directed)
    # Published figures of given links are by a ranking in which the queried node takes part.
    rank_self = ranks_self(graph, config)
    ends = node_type_offsets(graph)
    ranking = partial(LinkRanker, share, model.decoder, known_links=answers, ends=ends, rank_self=rank_self)
    drawn = count_drawn_candidates(config)
    given = split.candidates if config.ranking_candidates == GIVEN_OR_ALL else (None, None)
    val, test = (
        ranking(links=links, candidates=candidates, num_drawn=drawn)
        for links, candidates in zip((split.val, split.test), given, strict=True)
    )
    return LinkEvaluation(val, test, monitor, memory_limit=memory_limit)


def remove_held_out_links(graph: Graph, split: LinkSplit) -> Graph:
    """Return the graph to train on, without the links held out by ``split``."""
    if split.topology is graph.topology:
        return graph
    return replace(graph, topology=split.topology)
