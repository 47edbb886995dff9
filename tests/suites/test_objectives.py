"""Every strategy gives the gradient of the reference with every task, on 1 to 3 workers: in float64 to 1e-10."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from unittest.mock import patch

import pytest
from torch import Tensor

from outgrow.engine.problem import Problem
from outgrow.nn.node_task import NodeTask
from pool import run_workers
from suites.cases import Case
from suites.exactness import DEALT, WAYS, Key, gradients, references
from suites.exactness_in_threads import in_threads
from suites.hits import Hits
from suites.objectives import TASKS, WEIGHTED
from suites.test_exactness import VISIBLE, require_equal, require_same_bits

STRATEGIES = ("full", "offload-3", "tensor", "sampled", "split", "migrate-one-step", "orchestrate-cold")
NEW = [task for task in TASKS if task not in ("single", "multi")]
FEW = [(way, Case("gcn", "weighted", task=task)) for way in STRATEGIES for task in ("class-weights", "focal")]
FEW += [(way, Case("sage-project-first", task="huber-weights")) for way in STRATEGIES]
CONVS = ("gcn", "sage-project-first")
WHOLE = "orchestrate-aggregate"
EVERY: list[Key] = [
    (way, Case(conv, "weighted", deal, task=task))
    for way in DEALT
    if way not in (WHOLE, "tensor-coefficients", "tensor-files")
    for conv in CONVS
    for deal in ("scattered", "one-node-part")
    for task in NEW
]


@pytest.mark.parametrize(
    "workers", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_every_strategy_with_other_losses(workers: int) -> None:
    first, *others = in_threads(FEW, workers)
    require_equal(first, references(FEW))
    require_same_bits(first, *others)


@pytest.mark.slow
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("workers", [1, 2, 3])
def test_every_strategy_with_every_task(workers: int) -> None:
    expected = references(EVERY)
    first, *others = run_workers(partial(gradients, keys=EVERY), workers)
    require_equal(first, expected)
    require_same_bits(first, *others)


@contextmanager
def weights_from_own_nodes() -> Iterator[Hits]:
    """A worker takes balanced weights and the mean weight from its own nodes to train on."""
    hits, right = Hits(), Problem.from_node_labels

    def make(shard, *, labels, train, task, **rest):  # type: ignore[no-untyped-def]
        problem = right(shard, labels=labels, train=train, task=task, **rest)
        targets = problem.node_targets
        own = task.resolve(labels, shard.filter_owned(targets.nodes), rest["model"].layers_list()[-1].spec.out_features)
        hits.note(own.describe() != targets.task.describe() or own.mean_weight != targets.task.mean_weight)
        return replace(problem, targets=replace(targets, task=own))

    with patch.object(Problem, "from_node_labels", staticmethod(make)):
        yield hits


@contextmanager
def weights_of_nodes_ignored() -> Iterator[Hits]:
    """The mean weight is left out: the loss of a step is divided by the number of its nodes."""
    hits, right = Hits(), NodeTask.resolve

    def resolve(self: NodeTask, labels: Tensor, train: Tensor, num_classes: int) -> NodeTask:
        made = right(self, labels, train, num_classes)
        hits.note(made.mean_weight != 1)
        return made.with_fields(mean_weight=1.0)

    with patch.object(NodeTask, "resolve", resolve):
        yield hits


@pytest.mark.mutant
@pytest.mark.parametrize("mutant", [weights_from_own_nodes, weights_of_nodes_ignored])
def test_another_mean_weight_is_found(mutant) -> None:  # type: ignore[no-untyped-def]
    tasks = [task for task in WEIGHTED if task != "balanced" or mutant is weights_from_own_nodes]
    keys = [(way, Case("gcn", "weighted", task=task)) for way in ("full", "sampled") for task in tasks]
    expected = references(keys)
    with mutant() as hits:
        found, *_ = in_threads(keys, 2)
    assert hits.count > 0
    assert not [key for key, gradient in found.items() if gradient.difference(expected[key]) <= VISIBLE]
    assert {WAYS[way].strategy.name for way, _ in EVERY} == {WAYS[way].strategy.name for way in STRATEGIES}
