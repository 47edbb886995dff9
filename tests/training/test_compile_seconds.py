"""Compiling kernels is told while it lasts, and is no part of the epoch in which it happens."""

from __future__ import annotations

import time
from collections.abc import Generator
from contextlib import closing

import pytest

from outgrow.core.compile_clock import compile_clock
from outgrow.strategies.base import Execution, Problem, Step
from outgrow.strategies.full import Full
from outgrow.training.config import TrainConfig
from outgrow.training.progress_events import ProgressEvent, ProgressReporter
from outgrow.training.trainer import EpochReport, Trainer
from planted import planted

SECONDS = 0.5


class Compiling(Full):
    """Seems to compile a kernel in the forward pass of the first epoch."""

    def prepare(self, problem: Problem) -> Execution:
        execution = super().prepare(problem)
        steps_of_full = execution.steps

        def steps(epoch: int, first: int = 0) -> Generator[Step]:
            if epoch == 1:
                with problem.timeline.span("forward"), compile_clock.record("spmm"):
                    time.sleep(SECONDS)
            with closing(steps_of_full(epoch, first)) as found:
                yield from found

        execution.steps = steps  # type: ignore[method-assign]
        return execution


class Listening:
    """Keeps the reports of epochs, the phases that begin, and those of them that training waits for."""

    def __init__(self) -> None:
        self.reports: list[EpochReport] = []
        self.phases: list[str] = []
        self.interruptions: list[str] = []

    def on_epoch(self, report: EpochReport) -> None:
        self.reports.append(report)

    def on_progress(self, event: ProgressEvent) -> None:
        if not self.phases or self.phases[-1] != event.phase:
            self.phases.append(event.phase)
        if event.interrupts:
            self.interruptions.append(event.phase)


def test_compiling_is_no_part_of_an_epoch() -> None:
    world, listening = planted(), Listening()
    problem = world.problem()
    # All other kernels are compiled now, or loaded.
    world.trainer(world.problem(), TrainConfig(epochs=1)).run(Full())
    made = world.trainer(problem, TrainConfig(epochs=2))
    trainer = Trainer(problem, made.evaluation, made.config, reporter=ProgressReporter([listening]))
    trainer.add_callbacks(listening)
    before = compile_clock.num_kernels
    trainer.run(Compiling())
    first, second = listening.reports
    assert first.compile_seconds >= SECONDS
    assert max(first.seconds, sum(first.phases.values())) < SECONDS
    assert second.compile_seconds == 0
    assert (first.compiled_kernels, second.compiled_kernels) == (1, 0)
    assert trainer.compile_tally.total == (1, pytest.approx(first.compile_seconds))
    assert problem.timeline.seconds["compile"] >= SECONDS
    assert problem.timeline.phases["compile"] < SECONDS
    compiling = f"compiling kernel {before + 1} (spmm)"
    at = listening.phases.index(compiling)
    assert listening.phases[at - 1 : at + 2] == ["epoch 1", compiling, "epoch 1"]
    assert listening.interruptions == [compiling]
