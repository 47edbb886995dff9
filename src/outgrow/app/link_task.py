"""Link prediction: split of the links, training problem and evaluation of a model with a decoder."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields, replace
from functools import partial

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.validation import validate_choice
from outgrow.engine.link_options import DEGREE, SHARED, LinkOptions
from outgrow.engine.link_ranking import KnownLinks, LinkRanker
from outgrow.engine.objective import LinkTargets
from outgrow.engine.shard import GraphShard
from outgrow.graph.builders.validate import LEARNED_VECTORS, validate_held_out_links
from outgrow.graph.graph import Graph
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.link_split import LinkSplit, mark_train_links, split_links, take_held_out_links
from outgrow.graph.link_triples import iterate_in_links, mark_relations
from outgrow.graph.store.reader import find_feature_file
from outgrow.graph.topology import Topology
from outgrow.nn.decoder import Decoder
from outgrow.nn.model import Model
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.base import Problem, Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.link_evaluation import LinkEvaluation
from outgrow.training.link_training import GIVEN_OR_ALL, count_drawn_candidates, make_link_options
from outgrow.training.loop_options import make_row_optimizer
from outgrow.training.monitor import Monitor, choose_link_monitor

SPLIT_OPTIONS = ("val_links", "test_links", "split_seed")
"""Options of a split that is drawn."""


def make_link_split(graph: Graph, config: TrainConfig) -> LinkSplit:
    """Split the links of a graph into those to train on, to validate on and to test on.

    Links that the graph comes with are taken as they are; of other graphs they are drawn.

    Raises:
        InputError: There are too few edges.
    """
    relations = find_link_relations(graph, config)
    if graph.held_out_links is not None:
        return take_held_out_links(graph.topology, graph.held_out_links, relations)
    return split_links(
        graph.topology, val=config.val_links, test=config.test_links, seed=config.split_seed, relations=relations
    )


def find_link_relations(graph: Graph, config: TrainConfig) -> Tensor | None:
    """Return ``[n]`` int64: the numbers of the relations whose links are predicted; None for all edges.

    Raises:
        InputError: There is no relation of a name.
    """
    if not config.link_relations:
        return None
    known = {name: number for number, name in enumerate(graph.relation_names)}
    if not known:
        raise InputError(
            f"the edges of {graph.name!r} have no relations",
            needed="edges with relations, to predict the links of some",
            got=f"link_relations {', '.join(config.link_relations)}",
            repair="leave --link-relations (link_relations) out",
        )
    return torch.tensor([validate_choice("relation of links", name, known) for name in config.link_relations])


def validate_link_options(graph: Graph, config: TrainConfig, given: Iterable[str] = ()) -> None:
    """Check that nothing asks for a split of links that the graph comes with, or for more negatives than nodes.

    Args:
        graph: The graph.
        config: Options of the loop.
        given: Names of options that were given.

    Raises:
        InputError: An option of the split is given, or is not at its default; a relation does not exist; or a type of
            nodes that links have as ends is smaller than the negatives drawn of it.
    """
    find_link_relations(graph, config)
    _validate_negatives(graph, config)
    if graph.held_out_links is None:
        return
    default = {each.name: each.default for each in fields(TrainConfig) if each.name in SPLIT_OPTIONS}
    asked = {*given} & {*SPLIT_OPTIONS} | {name for name in SPLIT_OPTIONS if getattr(config, name) != default[name]}
    if asked:
        val, test = (len(part) for part in graph.held_out_links)
        raise InputError(
            f"the links of {graph.name!r} are split already",
            needed="no options of a split",
            got=", ".join(f"{name}={getattr(config, name)}" for name in SPLIT_OPTIONS if name in asked)
            + f", and a graph that comes with {val:,} links to validate on and {test:,} to test on",
            repair="leave these options out; to draw another split, give all links as the edges of one graph",
        )


def _validate_negatives(graph: Graph, config: TrainConfig) -> None:
    if config.negative_sampling not in (SHARED, DEGREE):
        return
    # Each is drawn once at most.
    name, size = find_smallest_end_type(graph)
    if config.negatives > size:
        raise InputError(
            "more negatives are asked for than there are nodes",
            needed=f"at most {size:,}, the number of {name}",
            got=f"negatives {config.negatives:,}, negative_sampling {config.negative_sampling}",
            repair="give fewer negatives, or negative_sampling all or uniform",
        )


def find_smallest_end_type(graph: Graph) -> tuple[str, int]:
    """Return name and number of nodes of the smallest node type that is an end of edges."""
    ends = node_type_offsets(graph).tolist()
    names = [each.name for each in graph.node_types] or ["nodes"]
    ranges = sorted(zip(names, ends, ends[1:], strict=False), key=lambda each: each[2] - each[1])
    # The smallest first, so that few types are looked at; without edges there are no ends.
    found = (each for each in ranges if _has_edges(graph.topology, each[1], each[2]))
    name, first, last = next(found, ("nodes", 0, graph.num_nodes))
    return name, last - first


def _has_edges(topology: Topology, first: int, last: int) -> bool:
    """Whether some nodes are ends of edges."""
    if int(topology.indptr[last]) > int(topology.indptr[first]):
        return True
    return bool(((topology.indices >= first) & (topology.indices < last)).any())


def _ranks_self(graph: Graph, config: TrainConfig) -> bool:
    return graph.held_out_links is not None if config.rank_self is None else config.rank_self


def has_validation_links(graph: Graph, config: TrainConfig) -> bool:
    """Return whether there are links to validate on, or will be."""
    if graph.held_out_links is None:
        return config.val_links > 0
    return bool(mark_relations(graph.held_out_links.val, find_link_relations(graph, config)).any())


def find_link_options(graph: Graph, config: TrainConfig, strategy: Strategy) -> LinkOptions:
    """Return how links are trained on.

    Raises:
        InputError: There is no relation of a name.
    """
    relations = find_link_relations(graph, config)
    itself, in_batches = _ranks_self(graph, config), strategy.uses_minibatches
    return make_link_options(config, node_type_offsets(graph), relations, ranks_self=itself, in_batches=in_batches)


def count_training_links(graph: Graph, config: TrainConfig) -> int:
    """Return the number of links to train on, as `make_link_split` leaves them."""
    relations = find_link_relations(graph, config)
    if graph.held_out_links is not None:
        return len(LinkNumbers(graph.topology, relations))
    val, test, seed = config.val_links, config.test_links, config.split_seed
    chunks = (links.select_links(mark_relations(links, relations)) for links, _ in iterate_in_links(graph.topology))
    return sum(int(mark_train_links(links, val=val, test=test, seed=seed).sum()) for links in chunks)


def count_targets(graph: Graph, model: Model, config: TrainConfig) -> int:
    """Return the number of nodes to train on, of targets that were selected; of links, if they are drawn in batches."""
    if model.decoder is None:
        return len(graph.split.train)
    return 0 if config.batch_config.is_full_graph else count_training_links(graph, config)


def make_link_problem(
    graph: Graph, model: Model, config: TrainConfig, share: GraphShard, strategy: Strategy
) -> Problem:
    """Make the training problem on a shard of the graph without held-out links."""
    assert graph.features is not None
    options = find_link_options(graph, config, strategy)
    in_batches, topology = strategy.uses_minibatches, share.topology
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


def make_link_training(
    graph: Graph, model: Model, config: TrainConfig, strategy: Strategy, comm: Comm
) -> tuple[Problem, LinkEvaluation]:
    """Shard the graph without held-out links; return the training problem and the evaluation. All workers together."""
    split = make_link_split(graph, config)
    # Held-out links are no edges of the training graph: message passing must not see the answers.
    given = remove_held_out_links(graph, split)
    options = find_link_options(graph, config, strategy) if strategy.uses_minibatches else None
    share = strategy.shard_graph(given, comm, model, config.batch_config, links=options)
    problem = make_link_problem(graph, model, config, share, strategy)
    problem = replace(problem, find_feature_file=partial(find_feature_file, graph))
    monitor = choose_link_monitor(config.monitor, config.monitor_mode)
    return problem, make_link_evaluation(graph, model, split, share, config, monitor, memory_limit=problem.memory_limit)


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
    rank_self = _ranks_self(graph, config)
    ends = node_type_offsets(graph)
    ranking = partial(LinkRanker, share, model.decoder, known_links=answers, ends=ends, rank_self=rank_self)
    drawn = count_drawn_candidates(config)
    given = split.candidates if config.ranking_candidates == GIVEN_OR_ALL else (None, None)
    val, test = (
        ranking(links=links, candidates=candidates, num_drawn=drawn)
        for links, candidates in zip((split.val, split.test), given, strict=True)
    )
    return LinkEvaluation(val, test, monitor, memory_limit=memory_limit)


def ranks_all_nodes(graph: Graph, config: TrainConfig) -> bool:
    """Whether links are ranked among all nodes of a type, not among candidates that are given or drawn."""
    if count_drawn_candidates(config) is not None:
        return False
    held = graph.held_out_links
    if held is None or config.ranking_candidates != GIVEN_OR_ALL:
        return True
    return any(part is None or None in (part.head, part.tail) for part in held.candidates)


def node_type_offsets(graph: Graph) -> Tensor:
    """Return ``[T + 1]`` int64: the first node of each type, and the number of nodes."""
    first = [each.first for each in graph.node_types] or [0]
    return torch.tensor([*first, graph.num_nodes])


def validate_link_problem(graph: Graph, model: Model) -> None:
    """Check that a link model can be trained on a graph.

    Raises:
        InputError: The graph has no features, no edges, no relations that the decoder needs, or more of them
            than the decoder has parameters for.
    """
    decoder = model.decoder
    assert decoder is not None
    validate_link_graph(graph)
    if decoder.num_relations and (graph.topology.relation is None or graph.num_relations > decoder.num_relations):
        raise InputError(
            f"the decoder does not fit the edges of {graph.name!r}",
            needed=f"edges of at most {decoder.num_relations} relations, at least 1",
            got=f"{graph.num_relations} relations",
            repair="build it with graph.num_relations, or use og.nn.Dot(), which needs none",
        )
    if decoder.num_relations:
        validate_relations(graph.topology.block.edges, decoder.num_relations)


def validate_link_graph(graph: Graph, *, needs_features: bool = True) -> None:
    """Check that a graph has what every link model needs.

    Args:
        graph: The graph.
        needs_features: Whether the model reads features, if the graph has none.

    Raises:
        InputError: The graph has no features, or no edges, or comes with links of other nodes or relations.
    """
    validate_held_out_links(graph.held_out_links, graph.num_nodes, graph.num_relations)
    if (needs_features and graph.features is None) or graph.num_edges == 0:
        raise InputError(
            f"{graph.name} cannot be trained on",
            needed="features and edges",
            got=f"{graph.num_features:,} features, {graph.num_edges:,} edges",
            repair=f"give features in nodes.csv, or features or feat_* in nodes.npz, beside the edges{LEARNED_VECTORS}",
        )


def remove_held_out_links(graph: Graph, split: LinkSplit) -> Graph:
    """Return the graph to train on, without the links held out by ``split``."""
    if split.topology is graph.topology:
        return graph
    return replace(graph, topology=split.topology)
