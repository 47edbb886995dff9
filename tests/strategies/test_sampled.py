"""The strategy `sampled`: what its options reach, and how its epochs end."""

from __future__ import annotations

import math
import threading
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
import torch

from outgrow.core.block import Block
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.nn import RGCN
from outgrow.nn.model import Model
from outgrow.strategies.base import Problem
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from planted import Planted, planted
from support import random_topology, with_relations

BATCHES = BatchConfig(size=9, fanout=(3, 2))


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def problem_of(world: Planted, batches: BatchConfig = BATCHES, kind: str = "sage") -> Problem:
    return replace(world.problem(seed=4, kind=kind), batches=batches)


def blocks_of(problem: Problem, epoch: int = 1) -> list[list[Block]]:
    """The blocks of each step, as the model gets them."""
    found: list[list[Block]] = []
    right = Model.forward

    def forward(self: Model, blocks: list[Block], *given: Any, **options: Any) -> torch.Tensor:
        found.append(blocks)
        return right(self, blocks, *given, **options)

    with patch.object(Model, "forward", forward):
        list(Sampled().prepare(problem).steps(epoch))
    return found


def losses(steps: Any) -> list[float]:
    return [step.loss for step in steps]


def ahead() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("outgrow-ahead")]


@pytest.mark.parametrize(
    "batches", [BATCHES, replace(BATCHES, weighted=True), replace(BATCHES, fanout=((2, 1), (1, 3)))]
)
def test_blocks_are_those_that_the_sampler_draws(world: Planted, batches: BatchConfig) -> None:
    topology = with_relations(random_topology(120, 900, weighted=True), 2)
    problem = problem_of(replace(world, topology=topology), batches)
    assert batches.fanout is not None
    sampler = NeighborSampler([topology, topology], batches.fanout, 4, weighted=batches.weighted)
    other = NeighborSampler([topology, topology], (3, 2), 4, weighted=not batches.weighted)
    seeds = batches.seeds_of_epoch(problem.node_targets.nodes, 4, 1)
    found, same = blocks_of(problem), []
    assert len(found) == len(seeds) == 5
    for step, blocks in enumerate(found):
        for mine, expected, wrong in zip(
            blocks, sampler.sample_blocks(seeds[step], 1, step), other.sample_blocks(seeds[step], 1, step), strict=True
        ):
            assert mine.edge_ids is not None
            assert expected.edge_ids is not None
            assert wrong.edge_ids is not None
            assert torch.equal(mine.edge_ids, expected.edge_ids)
            assert torch.equal(mine.src_nodes, expected.src_nodes)
            same.append(torch.equal(mine.edge_ids, wrong.edge_ids))
    assert not all(same)


def test_an_epoch_may_begin_at_a_later_step(world: Planted) -> None:
    execution = Sampled().prepare(problem_of(world))
    whole = losses(execution.steps(2))
    assert len(whole) == 5
    assert losses(execution.steps(2, first=3)) == whole[3:]
    assert losses(execution.steps(2, first=5)) == []
    assert losses(execution.steps(3)) != whole


def test_how_far_it_is_ahead_changes_nothing(world: Planted) -> None:
    options = [{}, {"prefetch": 1}, {"sampling_threads": 3, "prefetch": 2}]
    found = [losses(Sampled(**given).prepare(problem_of(world)).steps(1)) for given in options]
    assert found[0] == found[1] == found[2]


def test_no_more_batches_are_made_than_it_says(world: Planted) -> None:
    drawn, right = [], NeighborSampler.sample_blocks

    def blocks(self: NeighborSampler, seeds: torch.Tensor, epoch: int, step: int) -> list[Block]:
        drawn.append(step)
        return right(self, seeds, epoch, step)

    with patch.object(NeighborSampler, "sample_blocks", blocks):
        steps = Sampled(prefetch=2).prepare(problem_of(world, replace(BATCHES, size=2))).steps(1)
        for computed in range(1, 6):
            next(steps)
            assert computed <= len(drawn) <= computed + 2
        steps.close()


def test_threads_end_with_the_epoch_however_it_ends(world: Planted) -> None:
    steps = Sampled(sampling_threads=2).prepare(problem_of(world)).steps(1)
    next(steps)
    assert ahead()
    steps.close()
    assert not ahead()
    trainer = world.trainer(problem_of(world), TrainConfig(epochs=1))
    with (
        patch.object(trainer.optimizer, "step", side_effect=ValueError("no step")),
        pytest.raises(ValueError, match="no step"),
    ):
        trainer.run(Sampled(sampling_threads=2))
    assert not ahead()


def test_an_error_of_a_sampling_thread_is_the_error_of_the_epoch(world: Planted) -> None:
    steps = Sampled().prepare(problem_of(world)).steps(1)
    with (
        patch.object(NeighborSampler, "sample_blocks", side_effect=ValueError("no blocks")),
        pytest.raises(ValueError, match="no blocks"),
    ):
        next(steps)
    assert not ahead()


def test_relations_whose_weights_add_up_to_nothing(world: Planted) -> None:
    topology = with_relations(random_topology(120, 900, weighted=True), 2)
    assert topology.weight is not None
    assert topology.relation is not None
    share = FullGraphShard(replace(topology, weight=topology.weight * (topology.relation != 0)))
    torch.manual_seed(0)
    problem = replace(problem_of(world), shard=share, model=RGCN(8, 8, 2, num_relations=2).double())
    assert all(math.isfinite(loss) for loss in losses(Sampled().prepare(problem).steps(1)))
