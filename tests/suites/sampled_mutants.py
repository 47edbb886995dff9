"""Mutants of `sampled`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from outgrow.core.block import Block
from outgrow.engine.features.remote import RemoteFeatureStore
from outgrow.engine.features.store import FeatureRequest, PendingFeatures
from outgrow.engine.minibatch_loop import MicroBatch, MiniBatchLoop
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.strategies.base import Execution, MiniBatchExecution, Problem
from outgrow.strategies.sampled import Sampled
from suites.hits import Hits


def degrees_of_the_sample() -> AbstractContextManager[Hits]:
    """The degree of a source is how often it occurs in the block."""

    def changed(block: Block) -> Block:
        return replace(block, src_degree=block.edges.indices.bincount(minlength=block.edges.num_src).double())

    return _other_blocks(changed)


def edge_numbers_of_the_sample() -> AbstractContextManager[Hits]:
    """Edges are numbered within the block, so draws for edges differ."""
    return _other_blocks(lambda block: replace(block, edge_ids=torch.arange(block.edges.num_edges)))


@contextmanager
def _other_blocks(change: Callable[[Block], Block]) -> Iterator[Hits]:
    hits, right = Hits(), NeighborSampler.sample_blocks

    def blocks(self: NeighborSampler, seeds: torch.Tensor, epoch: int, step: int, *layers: slice) -> list[Block]:
        found = right(self, seeds, epoch, step, *layers)
        hits.note(any(block.edges.num_edges > 0 for block in found))
        return [change(block) for block in found]

    with patch.object(NeighborSampler, "sample_blocks", blocks):
        yield hits


@contextmanager
def workers_draw_by_seeds_of_their_own() -> Iterator[Hits]:
    """Each worker draws neighbours by the seed of the run plus its rank."""
    hits, right = Hits(), Sampled.prepare

    def prepare(self: Sampled, problem: Problem) -> Execution:
        rank = problem.shard.comm.rank
        execution = right(self, replace(problem, seed=problem.seed + rank))
        assert isinstance(execution, MiniBatchExecution)
        execution.problem = problem
        hits.note(rank > 0)
        return execution

    with patch.object(Sampled, "prepare", prepare):
        yield hits


@contextmanager
def mean_over_own_seeds() -> Iterator[Hits]:
    """The loss is the mean over the worker's own seeds."""
    hits, right = Hits(), MiniBatchLoop._train_micro_batch

    def computed(self: MiniBatchLoop, epoch: int, stop: MicroBatch, x: Any) -> torch.Tensor:
        own = len(stop.seeds)
        hits.note(own not in (0, stop.num_seeds))
        return right(self, epoch, stop._replace(num_seeds=max(1, own)), x)

    with patch.object(MiniBatchLoop, "_train_micro_batch", computed):
        yield hits


@contextmanager
def rows_of_others_misplaced() -> Iterator[Hits]:
    """Rows that other workers send are one place off."""
    hits, right = Hits(), RemoteFeatureStore._answer_request

    def answered(self: RemoteFeatureStore, request: FeatureRequest, *given: Any) -> PendingFeatures:
        remote = request.remote
        if remote is not None:
            hits.note(len(remote.positions) > 1)
            request = replace(request, remote=remote._replace(positions=remote.positions.roll(1)))
        return right(self, request, *given)

    with patch.object(RemoteFeatureStore, "_answer_request", answered):
        yield hits
