"""The strategy `full`: one step per epoch, whose gradient is that of the loss on all training nodes."""

from __future__ import annotations

import pytest
import torch

from outgrow.ops.rng import fold_in
from outgrow.strategies.full import Full
from planted import Planted, planted
from support import whole_blocks


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


@pytest.mark.parametrize("kind", ["gcn", "sage", "gat"])
def test_the_gradient_is_that_of_the_keyed_loss(world: Planted, kind: str) -> None:
    problem = world.problem(seed=5, kind=kind)
    (step,) = Full().prepare(problem).steps(3)
    model = world.problem(seed=5, kind=kind).model
    logits = model(whole_blocks(model, world.topology), world.features, fold_in(5, 3, 0))
    train = problem.node_targets.train_rows
    loss = torch.nn.functional.cross_entropy(logits[train], world.labels[train])
    expected = torch.autograd.grad(loss, list(model.parameters()))
    assert step.loss == pytest.approx(loss.item(), rel=1e-14)
    assert step.num_seeds == len(train)
    for parameter, gradient in zip(problem.model.parameters(), expected, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-12, atol=1e-14)


def test_epochs_and_seeds_draw_differently(world: Planted) -> None:
    losses = set()
    for seed in (0, 1):
        problem = world.problem(seed=0)
        object.__setattr__(problem, "seed", seed)
        execution = Full().prepare(problem)
        losses |= {next(iter(execution.steps(epoch))).loss for epoch in (1, 2)}
    assert len(losses) == 4


@pytest.mark.parametrize(("kind", "layers"), [("gcn", 2), ("sage", 2)])
def test_what_is_computed_is_counted(world: Planted, kind: str, layers: int) -> None:
    problem = world.problem(kind=kind)
    ledger = problem.shard.comm.ledger
    execution = Full().prepare(problem)
    for epoch in (1, 2, 3):
        list(execution.steps(epoch))
    view = world.topology.with_self_loops if kind == "gcn" else world.topology
    constant = problem.model.layers_list()[0].has_static_aggregate and problem.model.input_dropout == 0
    passes = 3 * (layers - 1) + (1 if constant else 3)
    assert ledger.counters["edges_aggregated"] == passes * view.num_edges
    assert ledger.counters["rows_computed"] == 3 * layers * view.num_nodes
    assert not ledger.bytes_by_link


def test_an_epoch_that_is_resumed_after_its_only_step_is_over(world: Planted) -> None:
    assert list(Full().prepare(world.problem()).steps(1, first=1)) == []


def test_it_is_exact_and_lets_go_of_its_blocks(world: Planted) -> None:
    assert Full.exact
    assert Full.name == "full"
    execution = Full().prepare(world.problem())
    execution.close()
    assert execution.epoch_pass.edges == []  # type: ignore[attr-defined]
