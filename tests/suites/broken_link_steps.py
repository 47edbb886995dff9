"""Mutants of the steps of links, and what workers that are threads have with and without them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine import excluded_edges, full_graph, hidden_edges
from outgrow.engine.excluded_edges import ExcludedEdges
from outgrow.engine.graph_answers import GraphAnswers
from outgrow.engine.hidden_edges import ShardOfStep
from outgrow.engine.link_batches import LinkBatches
from outgrow.engine.link_candidates import CandidatePlanner, TrainingAnswers
from outgrow.engine.link_objective import LinksOfStep
from outgrow.engine.link_options import LinkSteps, PairsOfStep
from outgrow.engine.link_step_loss import LinkStepLoss
from outgrow.engine.shard import GraphShard, LayerView
from outgrow.graph.topology import GraphView
from outgrow.nn import Layer
from outgrow.ops.pair_draws import PairRange
from outgrow.ops.pair_sets import PairSet
from outgrow.ops.rng import fold_in
from suites.hits import Hits
from suites.link_steps import FEW_ROWS, UNDIRECTED, Case, Found, Key, Mutant, gradients
from thread_group import run_in_threads

BROKEN: list[Key] = [
    (way, Case(steps=2, hide=0.5, loss="softmax", sampling="shared", negatives=6)) for way in ("full", "tensor")
]
"""Where mutants should be found."""


@contextmanager
def inverses_of_hidden_edges_left_in() -> Iterator[Hits]:
    """An edge is hidden in one direction alone."""
    hits, right = Hits(), hidden_edges.mark_edges_of_pairs

    def mark(indptr: Tensor, indices: Tensor, src: Tensor, dst: Tensor, pairs: PairRange) -> Tensor:
        whole = right(indptr, indices, src, dst, pairs)
        ascends = src[indices.long()] < torch.repeat_interleave(dst, indptr.diff())
        hits.note(bool((whole & ~ascends).any()))
        return whole & ascends

    with patch.object(hidden_edges, "mark_edges_of_pairs", mark):
        yield hits


@contextmanager
def candidates_drawn_by_each_worker() -> Iterator[Hits]:
    """Shared negatives depend on the worker."""
    hits, right = Hits(), CandidatePlanner.plan_queries

    def plan(self: CandidatePlanner, *given: Any) -> Any:
        *others, key = given
        assert self.comm is not None
        hits.note(self.comm.rank > 0)
        return right(self, *others, fold_in(key, self.comm.rank))

    with patch.object(CandidatePlanner, "plan_queries", plan):
        yield hits


@contextmanager
def mean_over_own_links_of_the_step() -> Iterator[Hits]:
    """The loss of a step is the mean over the worker's own links."""
    hits, right = Hits(), LinksOfStep.__init__

    def begin(self: LinksOfStep, *given: Any) -> None:
        right(self, *given)
        hits.note(self.num_targets != len(self.links))
        self.num_targets = max(1, len(self.links))

    with patch.object(LinksOfStep, "__init__", begin):
        yield hits


@contextmanager
def same_steps_in_every_epoch() -> Iterator[Hits]:
    """The pairs of a step do not depend on the epoch."""
    hits, right = Hits(), LinkSteps.pairs_of_step

    def pairs(self: LinkSteps, seed: int, epoch: int, number: int) -> PairsOfStep:
        hits.note(epoch > 0)
        return right(self, seed, 0, number)

    with patch.object(LinkSteps, "pairs_of_step", pairs):
        yield hits


@contextmanager
def known_answers_as_negatives() -> Iterator[Hits]:
    """Other links to train on are negatives where they are among the candidates."""
    hits, right = Hits(), TrainingAnswers.answers_to

    def answers(self: TrainingAnswers, *given: Any) -> tuple[Tensor, Tensor]:
        place, answer = right(self, *given)
        hits.note(len(place) > 0)
        return place[:0], answer[:0]

    with patch.object(TrainingAnswers, "answers_to", answers):
        yield hits


@contextmanager
def reverses_as_negatives() -> Iterator[Hits]:
    """Links without relations are answers in one direction alone."""
    hits, right = Hits(), TrainingAnswers.__init__

    def begin(self: TrainingAnswers, *given: Any, directed: bool) -> None:
        right(self, *given, directed=True)
        hits.note(not directed)

    with patch.object(TrainingAnswers, "__init__", begin):
        yield hits


@contextmanager
def asked_edges_not_hidden() -> Iterator[Hits]:
    """A step hides the pairs of the next one."""
    hits, right = Hits(), LinkSteps.pairs_of_step

    def pairs(self: LinkSteps, seed: int, epoch: int, number: int) -> PairsOfStep:
        asked, _ = right(self, seed, epoch, number)
        _, hidden = right(self, seed, epoch, (number + 1) % self.num_steps)
        hits.note(hidden is not None)
        return PairsOfStep(asked, hidden)

    with patch.object(LinkSteps, "pairs_of_step", pairs):
        yield hits


@contextmanager
def degrees_with_hidden_edges() -> Iterator[Hits]:
    """Hidden edges count in the degrees of a shard."""
    hits, right = Hits(), ShardOfStep._make_view

    def view(self: ShardOfStep, whole: LayerView) -> LayerView:
        made = right(self, whole)
        hits.note(not torch.equal(made.block.dst_degree, whole.block.dst_degree))
        block = replace(made.block, src_degree=whole.block.src_degree, dst_degree=whole.block.dst_degree)
        local = None if made.local_graph is None else replace(made.local_graph, block=block)
        return LayerView(block=block, local_graph=local)

    with patch.object(ShardOfStep, "_make_view", view):
        yield hits


@contextmanager
def aggregates_of_other_rows() -> Iterator[Hits]:
    """The rows that a step reads get the aggregates of the rows before them."""
    hits, right = Hits(), full_graph.update_rows

    def update(layer: Layer, x_dst: Tensor, aggregate: Tensor, block: Block, rows: Tensor | None) -> Tensor:
        hits.note(rows is not None)
        return right(layer, x_dst, aggregate if rows is None else aggregate.roll(1, 0), block, rows)

    with patch.object(full_graph, "update_rows", update):
        yield hits


@contextmanager
def targets_left_in_messages() -> Iterator[Hits]:
    """Layers see the edges that a batch asks about."""
    hits = Hits()

    def remove(self: ExcludedEdges, block: Block, view: GraphView) -> Block:
        hits.note(len(self.pairs.codes) > 0)
        return block

    with patch.object(ExcludedEdges, "remove_from", remove):
        yield hits


@contextmanager
def inverses_of_targets_left_in() -> Iterator[Hits]:
    """A batch excludes the edges of a pair in one direction alone."""
    hits, right = Hits(), excluded_edges.mark_edges_of_pair_set

    def mark(indptr: Tensor, indices: Tensor, src: Tensor, dst: Tensor, pairs: PairSet) -> Tensor:
        whole = right(indptr, indices, src, dst, pairs)
        ascends = src[indices.long()] < torch.repeat_interleave(dst, indptr.diff())
        hits.note(bool((whole & ~ascends).any()))
        return whole & ascends

    with patch.object(excluded_edges, "mark_edges_of_pair_set", mark):
        yield hits


@contextmanager
def degrees_with_targets() -> Iterator[Hits]:
    """Edges that a batch excludes count in degrees."""
    hits = Hits()

    def degrees(self: ExcludedEdges, nodes: Tensor, degree: Tensor, view: GraphView) -> Tensor:
        hits.note(bool(torch.isin(nodes, self.pairs.ends).any()))
        return degree

    with patch.object(ExcludedEdges, "_correct_degrees", degrees):
        yield hits


@contextmanager
def known_answers_of_the_graph_as_negatives() -> Iterator[Hits]:
    """Links that lead to a candidate are not looked up in the graph."""
    hits, right = Hits(), GraphAnswers._edges_into_candidates

    def edges(self: GraphAnswers, query: Tensor, candidates: Tensor) -> tuple[Tensor, Tensor]:
        place, slot = right(self, query, candidates)
        hits.note(len(place) > 0)
        return place[:0], slot[:0]

    with patch.object(GraphAnswers, "_edges_into_candidates", edges):
        yield hits


@contextmanager
def negatives_of_a_batch_by_number_of_workers() -> Iterator[Hits]:
    """What a batch draws depends on the number of workers."""
    hits, right, sizes = Hits(), CandidatePlanner.draw_candidates, set[int]()
    begin = LinkBatches.__init__

    def init(self: LinkBatches, shard: GraphShard, *given: Any) -> None:
        sizes.add(shard.comm.size)
        begin(self, shard, *given)

    def draw(self: CandidatePlanner, links: Any, number: Tensor, key: int) -> Any:
        hits.note(bool(sizes))
        return right(self, links, number, fold_in(key, *sizes))

    with patch.object(LinkBatches, "__init__", init), patch.object(CandidatePlanner, "draw_candidates", draw):
        yield hits


@contextmanager
def mean_over_own_links_of_the_batch() -> Iterator[Hits]:
    """The loss of a batch is the mean over the worker's own links."""
    hits, right = Hits(), LinkStepLoss.__init__

    def begin(self: LinkStepLoss, *given: Any) -> None:
        right(self, *given)
        hits.note(self.num_targets != len(self.links))
        self.num_targets = max(1, len(self.links))

    with patch.object(LinkStepLoss, "__init__", begin):
        yield hits


OF_BATCHES_BETWEEN_WORKERS = (negatives_of_a_batch_by_number_of_workers, mean_over_own_links_of_the_batch)
OF_BATCHES_ANYWHERE = (
    targets_left_in_messages,
    inverses_of_targets_left_in,
    degrees_with_targets,
    known_answers_of_the_graph_as_negatives,
)
OF_BATCHES = {mutant.__name__ for mutant in (*OF_BATCHES_BETWEEN_WORKERS, *OF_BATCHES_ANYWHERE)}
BETWEEN_WORKERS = (
    *OF_BATCHES_BETWEEN_WORKERS,
    candidates_drawn_by_each_worker,
    mean_over_own_links_of_the_step,
)
ANYWHERE: tuple[Mutant, ...] = (
    *OF_BATCHES_ANYWHERE,
    inverses_of_hidden_edges_left_in,
    same_steps_in_every_epoch,
    known_answers_as_negatives,
    reverses_as_negatives,
    asked_edges_not_hidden,
    degrees_with_hidden_edges,
    aggregates_of_other_rows,
)
MUTANTS: Mapping[str, Mutant] = {mutant.__name__: mutant for mutant in (*BETWEEN_WORKERS, *ANYWHERE)}


def broken_keys(name: str) -> list[Key]:
    """Where a mutant should be found: workers of `tensor` hold all edges, and do not make views of shards."""
    if name in OF_BATCHES:
        return [
            (way, Case(steps=1, loss="softmax", sampling="shared", negatives=6, batch=90, exclude=True))
            for way in ("sampled", "split")
        ]
    if name == reverses_as_negatives.__name__:
        return [("full", case) for case in UNDIRECTED]
    if name == aggregates_of_other_rows.__name__:
        return [("full", case) for case in FEW_ROWS[::3]]
    return BROKEN[:1] if name == degrees_with_hidden_edges.__name__ else BROKEN


class Seen(NamedTuple):
    """What one worker has: as it should be, and by mutant, and how often each mutant changed something anywhere."""

    right: Found
    mutated: dict[str, Found]
    hits: dict[str, int]


def see(keys: Sequence[Key], workers: int) -> list[Seen]:
    """What each of some workers has, which are threads: first as it should be, and then under each mutant."""
    right, mutated, hits = run_in_threads(partial(gradients, keys=keys), workers), {}, {}
    for name, mutant in MUTANTS.items():
        with mutant() as counted:
            mutated[name] = run_in_threads(partial(gradients, keys=broken_keys(name)), workers)
        hits[name] = counted.count
    return [Seen(right[rank], {name: mutated[name][rank] for name in mutated}, hits) for rank in range(workers)]
