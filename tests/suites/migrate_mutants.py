"""Mutants of `migrate`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from outgrow.engine import minibatch_loop, model_migration
from outgrow.engine.features.inputs import TrainingLabels
from outgrow.engine.minibatch_loop import MicroBatch, MiniBatchLoop
from outgrow.engine.model_migration import MicroBatchPlan
from outgrow.runtime.distributed.comm import Comm
from suites.hits import Hits


def _has_gradient(model: nn.Module) -> bool:
    return any(parameter.grad is not None and bool(parameter.grad.any()) for parameter in model.parameters())


@contextmanager
def gradients_lost_on_the_way() -> Iterator[Hits]:
    """Models arrive without what they have gathered so far."""
    hits, right = Hits(), model_migration.send_model

    def pass_on(model: nn.Module, comm: Comm, stride: int) -> None:
        right(model, comm, stride)
        hits.note(_has_gradient(model))
        model.zero_grad()

    with patch.object(minibatch_loop, "send_model", pass_on):
        yield hits


@contextmanager
def gradients_kept() -> Iterator[Hits]:
    """A gradient stays where it was made, and goes along too."""
    hits, right = Hits(), model_migration.send_model

    def pass_on(model: nn.Module, comm: Comm, stride: int) -> None:
        kept = [parameter.grad for parameter in model.parameters()]
        hits.note(_has_gradient(model))
        right(model, comm, stride)
        for parameter, before in zip(model.parameters(), kept, strict=True):
            if before is not None:
                parameter.grad = before if parameter.grad is None else parameter.grad + before

    with patch.object(minibatch_loop, "send_model", pass_on):
        yield hits


@contextmanager
def last_time_step_forgotten() -> Iterator[Hits]:
    """Seeds of the last time step are not trained on."""
    hits, right = Hits(), MiniBatchLoop._sample_batch

    def drawn(self: MiniBatchLoop, epoch: int, step: int, tour: MicroBatchPlan, num_seeds: int) -> list[MicroBatch]:
        *others, last = tour.groups
        hits.note(bool(others) and len(last) > 0)
        return right(self, epoch, step, MicroBatchPlan([*others, last[: 0 if others else None]], tour.hops), num_seeds)

    with patch.object(MiniBatchLoop, "_sample_batch", drawn):
        yield hits


@contextmanager
def rows_gathered_once_misplaced() -> Iterator[Hits]:
    """Of the rows that were gathered for all time steps each takes those one place off."""
    hits, right = Hits(), MiniBatchLoop._request_rows

    def wanted(self: MiniBatchLoop, nodes: list[Tensor]) -> Any:
        asked, places = right(self, nodes)
        hits.note(any(each is not None and len(each) > 1 for each in places))
        return asked, [None if each is None else each.roll(1) for each in places]

    with patch.object(MiniBatchLoop, "_request_rows", wanted):
        yield hits


@contextmanager
def labels_of_others_misplaced() -> Iterator[Hits]:
    """Labels of nodes to train on are one place off."""
    hits, right = Hits(), TrainingLabels.lookup

    def of(self: TrainingLabels, seeds: Tensor) -> Tensor:
        hits.note(not torch.equal(self._labels.roll(1, 0), self._labels))
        return right(self, self._nodes[(torch.searchsorted(self._nodes, seeds) + 1) % len(self._nodes)])

    with patch.object(TrainingLabels, "lookup", of):
        yield hits
