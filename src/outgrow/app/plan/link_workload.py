"""What the planner knows of links: the graph to train on, how many links there are, and how they are ranked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.app.link_run import find_link_options, make_link_evaluation, remove_held_out_links
from outgrow.app.link_task import make_link_split
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph, Split
from outgrow.graph.link_numbers import LinkNumbers
from outgrow.graph.link_triples import LinkTriples
from outgrow.inference.link_ranking import count_queries_per_chunk
from outgrow.inference.modes import NONE as NO_EVALUATION
from outgrow.nn.decoder import ProductDecoder
from outgrow.nn.model import Model
from outgrow.planning.link_work import LinkWork
from outgrow.training.config import TrainConfig
from outgrow.training.link_training import count_drawn_candidates


class LinkWorkload(NamedTuple):
    """A graph to train on, and its links.

    Attributes:
        graph: The graph without links that are held out; its split has the nodes whose rows rankings read.
        links: The links to train on and to rank.
    """

    graph: Graph
    links: LinkWork


def make_link_workload(graph: Graph, model: Model, config: TrainConfig) -> LinkWorkload:
    """Return what the planner knows of the links of a loaded graph, which it splits as a run does.

    Raises:
        InputError: There are too few edges, or no relation of a name.
    """
    split = make_link_split(graph, config)
    given = remove_held_out_links(graph, split)
    options = find_link_options(graph, config, in_batches=not config.batch_config.is_full_graph)
    evaluation = make_link_evaluation(graph, model, split, FullGraphShard(given.topology), config)
    read = evaluation.scored_nodes
    val, test = (
        links if mode != NO_EVALUATION else _NO_LINKS
        for links, mode in zip((split.val, split.test), (config.evaluation.val, config.evaluation.test), strict=True)
    )
    drawn = count_drawn_candidates(config)
    given_candidates = [each for each in split.candidates if each is not None]
    width = drawn or max((_width_of(each) for each in given_candidates), default=0)
    work = LinkWork(
        options=options,
        num_links=len(LinkNumbers(given.topology, options.relations)),
        num_known=len(evaluation.val.known_links),
        val_queries=_list_chunks(val, options.ends, width or 1),
        test_queries=_list_chunks(test, options.ends, width or 1),
        ranked_rows=(len(read[0]), len(read[1])),
        num_candidates=None if evaluation.val.reads_all_nodes and evaluation.test.reads_all_nodes else width,
        copied_bytes=0 if given.topology is graph.topology else given.topology.edge_bytes,
        **_describe_scores(model),
    )
    none = torch.empty(0, dtype=torch.int64)
    return LinkWorkload(replace(given, split=Split(train=none, val=read[0], test=read[1])), work)


def make_known_links(facts: Mapping[str, Any], graph: Graph, model: Model, config: TrainConfig) -> LinkWork:
    """Return what the planner knows of the links of a graph of which only the sizes are known.

    Args:
        facts: The facts about the graph.
        graph: A placeholder for it.
        model: The model.
        config: Options of the training loop.
    """
    in_batches = not config.batch_config.is_full_graph
    ends = torch.tensor([0, facts["nodes"]])
    options = replace(find_link_options(graph, config, in_batches=in_batches), ends=ends)
    edges, drawn = facts["edges"], count_drawn_candidates(config)
    held = [round(share * edges) for share in (config.val_links, config.test_links)]
    size = count_queries_per_chunk(drawn or 1)
    chunks = [((size, 2 * (count // size)), (count % size, 2)) for count in held]
    # Two ends of each link, and what is drawn for both.
    rows = [facts["nodes"] if drawn is None else min(facts["nodes"], 2 * (1 + drawn) * count) for count in held]
    return LinkWork(
        options=options,
        num_links=edges - sum(held),
        num_known=2 * edges,
        val_queries=chunks[0],
        test_queries=chunks[1],
        ranked_rows=(rows[0], rows[1]),
        num_candidates=drawn,
        copied_bytes=0,
        **_describe_scores(model),
    )


_NO_LINKS = LinkTriples(*(torch.empty(0, dtype=torch.int64) for _ in range(3)))


def _describe_scores(model: Model) -> dict[str, Any]:
    """Return what `LinkWork` says of how a model scores links."""
    decoder = model.decoder
    return {
        "columns": model.layers_list()[-1].spec.out_features,
        "scores_relations": decoder is not None and decoder.num_relations > 0,
        "ranks_by_products": isinstance(decoder, ProductDecoder),
    }


def _width_of(candidates: Any) -> int:
    given = [each.shape[1] for each in candidates if each is not None]
    return max(given, default=0)


def _list_chunks(links: LinkTriples, ends: Tensor, width: int) -> tuple[tuple[int, int], ...]:
    """Return numbers of queries that are ranked together, and how often there are so many."""

    def iterate_sizes() -> Iterator[int]:
        size = count_queries_per_chunk(width)
        for answer in (links.tail, links.head):
            for first, last in pairwise(ends.tolist()):
                count = int(((answer >= first) & (answer < last)).sum())
                yield from [size] * (count // size) + [count % size] * (count % size > 0)

    return tuple(Counter(iterate_sizes()).items())
