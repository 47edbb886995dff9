"""Logits that come in pieces are scored as if they came at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.nn.tasks import MultiLabel
from outgrow.strategies.base import Execution, Problem, Strategy
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from planted import NODES, Planted, planted


class Pieces(Strategy):
    """`full`, but its logits come in pieces that end at given rows, and its rows may be said not to fit into memory."""

    name, exact = "pieces", True

    def __init__(self, ends: list[int], *, in_memory: bool) -> None:
        self.ends, self.in_memory = ends, in_memory
        self.begun = self.exhausted = 0
        self.is_open = True

    def prepare(self, problem: Problem) -> Execution:
        self.full = Full().prepare(problem)
        self.steps = self.full.steps
        return self

    def inference(self) -> Iterator[tuple[int, torch.Tensor]]:
        assert self.is_open
        self.begun += 1
        ((_, logits),) = self.full.inference()
        for first, last in pairwise([0, *self.ends, len(logits)]):
            yield first, logits[first:last]
        self.exhausted += 1

    def close(self) -> None:
        self.is_open = False
        self.full.close()


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


@settings(max_examples=40, deadline=None)
@given(ends=st.lists(st.integers(0, NODES), max_size=5).map(sorted), multi=st.booleans(), in_memory=st.booleans())
def test_scores_of_pieces_add_up(world: Planted, ends: list[int], multi: bool, in_memory: bool) -> None:
    """Wherever pieces end, and also if they have no rows or none to score."""
    config, pieces = TrainConfig(epochs=2, lr=0.05), Pieces(ends, in_memory=in_memory)
    whole, parts = (world.trainer(problem_of(world, multi=multi), config) for _ in range(2))
    expected, outcome = whole.run(Full()), parts.run(pieces)
    assert outcome.progress.loss == expected.progress.loss
    assert outcome.progress.val_score == expected.progress.val_score
    assert outcome.progress.best_loss == pytest.approx(expected.progress.best_loss, rel=1e-13)
    assert (outcome.val.score, outcome.test.score) == (expected.val.score, expected.test.score)
    assert torch.equal(outcome.logits, expected.logits) if in_memory else outcome.logits is None
    assert pieces.begun == pieces.exhausted == 3
    assert not pieces.is_open


def problem_of(world: Planted, *, multi: bool) -> Problem:
    """The planted problem, or one with two labels for each node."""
    problem = world.problem(kind="sage")
    if not multi:
        return problem
    labels = torch.stack([world.labels, torch.arange(NODES) % 2], 1).to(torch.uint8)
    return replace(problem, targets=replace(problem.node_targets, labels=labels, task=MultiLabel()))


def test_the_execution_is_closed_when_scoring_fails(world: Planted) -> None:
    pieces = Pieces([], in_memory=True)
    trainer = world.trainer(world.problem(), TrainConfig(epochs=1))
    failing = patch.object(trainer.problem.shard, "gather_to_rank_zero", side_effect=ValueError("no rows"))
    with failing, pytest.raises(ValueError, match="no rows"):
        trainer.run(pieces)
    assert not pieces.is_open
