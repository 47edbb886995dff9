"""Epochs on all nodes in memory; that their gradients are right is tested with the strategy `full`."""

from __future__ import annotations

import pytest
import torch

from outgrow.engine.full_graph import FullGraphEpoch
from outgrow.engine.objective import NodeObjective, Objective
from outgrow.nn.tasks import MultiLabel, NodeClassification, NodeTask
from outgrow.strategies.base import Problem
from planted import NODES, Planted, planted
from support import normal


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


def passes_of(problem: Problem, goal: Objective | None = None) -> FullGraphEpoch:
    return FullGraphEpoch(problem.model, problem.shard, problem.input, goal or problem.objective, problem.seed)


def gradients(problem: Problem) -> list[torch.Tensor]:
    found = [parameter.grad for parameter in problem.model.parameters()]
    problem.model.zero_grad()
    assert all(grad is not None for grad in found)
    return [grad for grad in found if grad is not None]


@pytest.mark.parametrize("task", [NodeClassification(), MultiLabel()], ids=["single", "multi"])
def test_shares_of_a_goal_add_up(task: NodeTask) -> None:
    logits, several = normal(NODES, 3), isinstance(task, MultiLabel)
    labels = (normal(NODES, 3) > 0).long() if several else torch.arange(NODES) % 3
    rows = torch.arange(0, NODES, 2)
    whole = NodeObjective(task, labels[rows], rows, len(rows)).loss(logits)
    parts = [NodeObjective(task, labels[some], some, len(rows)).loss(logits) for some in (rows[:7], rows[7:], rows[:0])]
    torch.testing.assert_close(sum(parts), whole, rtol=1e-13, atol=0)
    torch.testing.assert_close(whole, task.loss(logits[rows], labels[rows], len(rows)), rtol=1e-13, atol=0)


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_an_epoch_is_the_same_every_time_and_another_is_not(world: Planted, kind: str) -> None:
    problem = world.problem(kind=kind)
    work = passes_of(problem)
    losses, grads = [], []
    for epoch in (1, 2, 1):
        losses.append(work.run_step(epoch)[0])
        grads.append(gradients(problem))
    assert losses[0] == losses[2] != losses[1]
    assert all(torch.equal(a, b) for a, b in zip(grads[0], grads[2], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(grads[0], grads[1], strict=True))


def test_half_the_goal_is_half_the_loss(world: Planted) -> None:
    """Two workers that each had half of the nodes to train on would add up to one with all."""
    problem = world.problem()
    goal = problem.objective
    assert isinstance(goal, NodeObjective)
    task, labels, rows, total, _ = goal
    halves = [NodeObjective(task, labels[part], rows[part], total) for part in (slice(0, 9), slice(9, None))]
    parts = []
    for goal in halves:
        loss = passes_of(problem, goal).run_step(3)[0]
        parts.append([torch.tensor(loss, dtype=torch.float64), *gradients(problem)])
    loss = passes_of(problem).run_step(3)[0]
    for one, other, whole in zip(*parts, [torch.tensor(loss, dtype=torch.float64), *gradients(problem)], strict=True):
        torch.testing.assert_close(one + other, whole, rtol=1e-12, atol=1e-14)


def test_it_lets_go_of_what_it_holds(world: Planted) -> None:
    work = passes_of(world.problem(kind="sage"))
    assert work.first_aggregate is not None
    assert len(work.edges) == 2
    work.close()
    assert work.first_aggregate is None
    assert work.edges == []
