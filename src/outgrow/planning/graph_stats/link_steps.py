"""Statistics of steps and batches of links: drawn as in training, or expected from degrees."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from outgrow.engine.link_batches import LinkBatches
from outgrow.engine.link_candidates import SIDES, encode_queries
from outgrow.engine.link_draws import DrawnLinks
from outgrow.engine.link_options import IN_BATCH, LinkOptions
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.link_triples import LinkTriples, collect_links, mark_relations
from outgrow.graph.topology import Topology
from outgrow.ops.pair_draws import mark_pairs
from outgrow.ops.rng import fold_in
from outgrow.planning.batch_stats import LinkStepStats, SamplingSpec
from outgrow.planning.graph_stats.batch_counters import choose_evenly_spaced
from outgrow.planning.graph_stats.degree_distribution import DegreeDistribution, Numbers

_EPOCH = 1
_STEPS = 16
"""Steps that are drawn."""
MOST_PAIRS = 4_000_000
"""Pairs of nodes of a step up to which it is drawn: more take memory, and differ little from what is expected."""


class DrawnSteps:
    """Steps of the first epoch of links, drawn as in training, over all workers. Final.

    Args:
        topology: The graph to train on.
        spec: How links are trained on.
    """

    def __init__(self, topology: Topology, spec: SamplingSpec) -> None:
        assert spec.links is not None
        self.topology = topology
        self.options = spec.links
        self.spec = spec
        # As a single worker, which draws all links.
        self.batches = LinkBatches(FullGraphShard(topology), spec.links, spec.batches, spec.seed)

    @property
    def num_links(self) -> int:
        """Number of links to train on."""
        return self.batches.num_links

    @property
    def steps(self) -> int:
        """Steps of an epoch."""
        if self.spec.batches.is_full_graph:
            return self.options.steps.num_steps
        return self.spec.batches.num_steps(self.num_links)

    @property
    def links_per_step(self) -> float:
        """Links of a full batch; the mean of steps over the whole graph, which differ in their number."""
        if self.spec.batches.is_full_graph:
            return self.num_links / self.steps
        return min(self.spec.batches.size or self.num_links, self.num_links)

    def collect_stats(self, owner: Tensor, parts: int) -> LinkStepStats:
        """Return statistics of some steps.

        Args:
            owner: ``[V]`` int64, the worker of each node.
            parts: Number of workers ``P``.
        """
        links, queries, read = np.zeros(parts), np.zeros(parts), np.zeros(parts)
        fetched = np.zeros((parts, parts))
        candidates = 0.0
        is_full = self.spec.batches.is_full_graph
        # Listed once for all steps, and not kept: it may be long.
        every = self._list_links() if is_full else None
        chosen = choose_evenly_spaced(self.steps if is_full else max(1, self.steps - 1), _STEPS)
        for step in chosen:
            drawn = self.batches.draw_links(_EPOCH, step) if every is None else self._draw_whole(step, *every)
            of_links = owner[drawn.links.tail]
            links += _count(of_links, parts)
            needed = self.batches.draws.list_needed(drawn, of_links, parts)
            read += _count(owner[torch.unique(torch.cat(needed))], parts)
            for part, nodes in enumerate(needed):
                fetched[part] += _count(owner[nodes], parts)
            asked, answers = _count_queries(drawn, of_links, parts, self.options.ends)
            queries += asked
            candidates += answers
        np.fill_diagonal(fetched, 0)
        count = max(1, len(chosen))
        return LinkStepStats(
            self.steps,
            self.num_links / max(1.0, self.links_per_step),
            links / count,
            queries / count,
            candidates / count,
            read / count,
            fetched / count,
        )

    def _draw_whole(self, step: int, links: LinkTriples, edges: Tensor) -> DrawnLinks:
        """Return those of all links that a step over the whole graph asks about."""
        seed = self.spec.seed
        asked, _ = self.options.steps.pairs_of_step(seed, _EPOCH, step)
        if asked is not None:
            mark = mark_pairs(links.head, links.tail, asked)
            links, edges = links.select_links(mark), edges[mark]
        return self.batches.draws.draw_negatives(links, edges, fold_in(seed, _EPOCH, step))

    def _list_links(self) -> tuple[LinkTriples, Tensor]:
        """Return all links to train on, and ``[L]`` int64, ids of these edges."""
        every = collect_links(self.topology)
        mark = every.non_loop_mask & mark_relations(every, self.options.relations)
        return every.select_links(mark), mark.nonzero()[:, 0]


def _count(owner: Tensor, parts: int) -> Numbers:
    return torch.bincount(owner, minlength=parts).numpy().astype(np.float64)


def _count_queries(drawn: DrawnLinks, owner: Tensor, parts: int, ends: Tensor) -> tuple[Numbers, float]:
    """Return ``[P]`` distinct queries of each worker, and the mean number of their candidates."""
    found, pairs = np.zeros(parts), 0.0
    relations = int(drawn.links.relation.max()) + 1 if len(drawn.links) else 1
    for candidates, (first, last) in zip(drawn.candidates, pairwise(ends.tolist()), strict=False):
        for side in SIDES:
            answer = drawn.links.tail if side == "tail" else drawn.links.head
            here = ((answer >= first) & (answer < last)).nonzero()[:, 0]
            code = encode_queries(drawn.links.select_links(here), side, relations)
            of_queries = torch.unique(code * parts + owner[here]) % parts
            found += _count(of_queries, parts)
            pairs += len(of_queries) * len(candidates)
    return found, pairs / max(1.0, found.sum())


def expect_link_steps(
    degrees: DegreeDistribution, spec: SamplingSpec, num_links: int, parts: int, locality: float
) -> LinkStepStats:
    """Return what is expected of steps of links.

    Args:
        degrees: Distribution of the degrees.
        spec: How links are trained on.
        num_links: Number of links to train on.
        parts: Number of workers ``P``.
        locality: Share of the edges within parts.
    """
    options = spec.links
    assert options is not None
    steps, of_step = _count_steps(spec, num_links)
    mine = of_step / parts
    share = 1 - locality if parts > 1 else 0.0
    negatives = _drawn_share(options, mine, degrees)
    # Tails are a worker's own, and so is the part of the heads within its part of the graph.
    heads = degrees.count_nodes((1 - negatives) * degrees.hit_share(mine * share))
    others = degrees.count_nodes(np.full_like(degrees.count, negatives)) * (parts - 1) / parts
    fetched = np.full((parts, parts), (heads + others) / max(1, parts - 1))
    np.fill_diagonal(fetched, 0)
    read = degrees.count_nodes(seed_share(degrees, options, of_step)) / parts
    candidates, queries = 0.0, 0.0
    if options.ranks_candidates:
        kinds = len(options.ends) - 1
        candidates = degrees.num_nodes / kinds if options.scores_all_nodes else float(options.negatives)
        queries = 2 * degrees.count_nodes(degrees.hit_share(mine))
    every = np.ones(parts)
    return LinkStepStats(steps, num_links / of_step, mine * every, queries * every, candidates, read * every, fetched)


def seed_share(degrees: DegreeDistribution, options: LinkOptions, links: float) -> Numbers:
    """Return ``[k]``: the share of the nodes of each degree whose rows are read for so many links of all workers."""
    return 1 - (1 - degrees.hit_share(2 * links)) * (1 - _drawn_share(options, links, degrees))


def links_of_batch(spec: SamplingSpec, num_links: int) -> float:
    """Return the number of links of a step or a full batch."""
    return _count_steps(spec, num_links)[1]


def _count_steps(spec: SamplingSpec, num_links: int) -> tuple[int, float]:
    """Return the steps of an epoch, and the links of one."""
    assert spec.links is not None
    if spec.batches.is_full_graph:
        steps = spec.links.steps.num_steps
        return steps, max(1.0, num_links / steps)
    size = max(1, min(spec.batches.size or num_links, num_links))
    return -(-num_links // size), size


def _drawn_share(options: LinkOptions, links: float, degrees: DegreeDistribution) -> float:
    """Return the share of all nodes that are drawn as negatives of so many links."""
    nodes = max(1.0, degrees.num_nodes)
    if options.scores_all_nodes:
        return 1.0
    if options.sampling == IN_BATCH:
        return 0.0
    if options.ranks_candidates:
        return min(1.0, (len(options.ends) - 1) * options.negatives / nodes)
    return float(1 - np.exp(-links * options.negatives / nodes))
