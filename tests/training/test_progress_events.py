"""What watchers are told, and how often."""

from __future__ import annotations

import pytest

from outgrow.training import progress_events as module
from outgrow.training.progress_events import ProgressEvent, ProgressReporter


class Told:
    def __init__(self) -> None:
        self.moments: list[ProgressEvent] = []

    def on_progress(self, moment: ProgressEvent) -> None:
        self.moments.append(moment)


def test_a_few_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    monkeypatch.setattr(module.time, "monotonic", lambda: now)
    told = Told()
    moments = ProgressReporter([told])
    moments.start_phase("epoch 1", 100)
    for step in range(1, 101):
        now += 0.01
        moments.advance_to("epoch 1", step, 100)
    assert told.moments[0] == ProgressEvent("epoch 1", 0, 100)
    assert told.moments[-1] == ProgressEvent("epoch 1", 100, 100)
    assert 10 <= len(told.moments) <= 12


def test_what_begins_is_told_at_once() -> None:
    told = Told()
    moments = ProgressReporter([told])
    moments.start_phase("preparing")
    moments.start_phase("evaluating", 5)
    assert told.moments == [ProgressEvent("preparing"), ProgressEvent("evaluating", 0, 5)]


def test_nobody_is_told() -> None:
    moments = ProgressReporter()
    moments.start_phase("preparing")
    moments.advance_to("preparing", 1)
