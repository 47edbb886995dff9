"""The strategy `full`: one step per epoch, whose gradient is that of the loss on all training nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.engine.constant_sums import MOST_COLUMNS, find_summed_first_layer
from outgrow.engine.problem import Problem
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, GIN, RGCN, SAGE, Model
from outgrow.ops.rng import fold_in
from outgrow.strategies import full
from outgrow.strategies.full import Full
from planted import Planted, planted
from support import sparse_rows, whole_blocks


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


def edges_into(topology: Topology, nodes: Tensor) -> int:
    return int((topology.indptr[nodes + 1] - topology.indptr[nodes]).sum())


@pytest.mark.parametrize(("kind", "layers"), [("gcn", 2), ("sage", 2)])
def test_what_is_computed_is_counted(world: Planted, kind: str, layers: int) -> None:
    problem = world.problem(kind=kind)
    ledger = problem.shard.comm.ledger
    execution = Full().prepare(problem)
    for epoch in (1, 2, 3):
        list(execution.steps(epoch))
    view = world.topology.with_self_loops if kind == "gcn" else world.topology
    train = problem.node_targets.nodes
    constant = problem.model.layers_list()[0].has_static_aggregate and problem.model.input_dropout == 0
    # The last layer computes the nodes to train on alone.
    passes = layers - 2 + (1 / 3 if constant else 1)
    assert ledger.counters["edges_aggregated"] == 3 * (passes * view.num_edges + edges_into(view, train))
    assert ledger.counters["rows_computed"] == 3 * ((layers - 1) * view.num_nodes + len(train))
    assert not ledger.bytes_by_link


NARROWING: dict[str, Callable[..., Model]] = {
    "gcn": GCN,
    "sage": SAGE,
    "gin": GIN,
    "gat": partial(GAT, heads=2),
    "rgcn": partial(RGCN, num_relations=2),
}


def narrowing_problem(world: Planted, kind: str) -> Problem:
    """A problem with a model whose first layer gives fewer columns than there are features."""
    torch.manual_seed(0)
    model = NARROWING[kind](world.features.shape[1], 2, 2, dropout=0.3).double()
    relation = torch.arange(world.topology.num_edges, dtype=torch.int8) % 2
    shard = FullGraphShard(replace(world.topology, relation=relation) if kind == "rgcn" else world.topology)
    return replace(world.problem(seed=5), model=model, shard=shard)


def gradients_of(problem: Problem, strategy: Full) -> tuple[list[Tensor], int]:
    """Gradients of the second of two steps, and edges that both and the preparation have aggregated."""
    execution = strategy.prepare(problem)
    for epoch in (1, 2):
        problem.model.zero_grad()
        list(execution.steps(epoch))
    execution.close()
    return [each.grad for each in problem.model.parameters() if each.grad is not None], count_edges(problem)


def count_edges(problem: Problem) -> int:
    return problem.shard.comm.ledger.counters["edges_aggregated"]


@pytest.mark.parametrize("kind", ["gcn", "sage", "gin"])
def test_features_are_summed_once_before_a_projection_that_narrows_them(world: Planted, kind: str) -> None:
    problem = narrowing_problem(world, kind)
    conv = problem.model.layers_list()[0].conv
    assert conv.accepts_sparse  # it projects first by itself
    found, edges = gradients_of(problem, Full(first_aggregate="once"))
    expected, all_edges = gradients_of(narrowing_problem(world, kind), Full(first_aggregate="each-step"))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    view = world.topology.with_self_loops if kind == "gcn" else world.topology
    last = 2 * edges_into(view, problem.node_targets.nodes)
    assert (edges, all_edges) == (view.num_edges + last, 2 * view.num_edges + last)
    assert problem.run_facts["first_aggregate"] == "once"
    assert problem.model.layers_list()[0].conv is conv


@pytest.mark.parametrize("room", ["enough", "too little"])
def test_features_are_summed_once_where_memory_has_room(
    world: Planted, room: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = narrowing_problem(world, "gcn")
    needed = world.features.nbytes
    free = int(needed / full.MEMORY_SHARE) - (room == "too little")
    monkeypatch.setattr(full, "free_device_bytes", lambda device: free)
    gradients_of(problem, Full())
    assert problem.run_facts["first_aggregate"] == ("once" if room == "enough" else "each-step")
    problem = narrowing_problem(world, "gcn")
    gradients_of(problem, Full(first_aggregate="once"))
    assert problem.run_facts["first_aggregate"] == "once"


@pytest.mark.parametrize("chosen", ["once", "each-step"])
def test_a_run_that_is_resumed_keeps_to_what_was_chosen(
    world: Planted, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = narrowing_problem(world, "gcn")
    monkeypatch.setattr(full, "free_device_bytes", lambda device: 1 << 40 if chosen == "once" else 0)
    gradients_of(problem, Full())
    resumed = narrowing_problem(world, "gcn")
    resumed.resume_hints.update(problem.resume_hints)
    monkeypatch.setattr(full, "free_device_bytes", lambda device: 0 if chosen == "once" else 1 << 40)
    gradients_of(resumed, Full())
    assert resumed.run_facts["first_aggregate"] == chosen


@pytest.mark.parametrize("kind", ["gat", "rgcn"])
def test_other_first_layers_keep_their_form(world: Planted, kind: str) -> None:
    """Attention is trained, and R-GCN would make wider sums."""
    problem = narrowing_problem(world, kind)
    gradients_of(problem, Full(first_aggregate="once"))
    assert "first_aggregate" not in problem.run_facts


def test_a_wide_sum_for_few_columns_is_not_worth_it() -> None:
    features = torch.zeros(2, MOST_COLUMNS * 2 + 1)
    assert find_summed_first_layer(GCN(MOST_COLUMNS * 2 + 1, 2, 2), features) is None
    assert find_summed_first_layer(GCN(MOST_COLUMNS * 2, 2, 2), features[:, 1:]) is not None
    assert find_summed_first_layer(GCN(MOST_COLUMNS * 2, 2, 2, input_dropout=0.5), features[:, 1:]) is None
    assert find_summed_first_layer(GCN(4, 2, 2), sparse_rows(torch.eye(4), least=0.5)) is None


def test_a_time_of_the_sum_that_there_is_not() -> None:
    with pytest.raises(InputError, match="first_aggregate"):
        Full(first_aggregate="twice")


def test_an_epoch_that_is_resumed_after_its_only_step_is_over(world: Planted) -> None:
    assert list(Full().prepare(world.problem()).steps(1, first=1)) == []


def test_it_is_exact_and_lets_go_of_its_blocks(world: Planted) -> None:
    assert Full.exact
    assert Full.name == "full"
    execution = Full().prepare(world.problem())
    execution.close()
    assert execution.epoch_pass.edges == []  # type: ignore[attr-defined]
