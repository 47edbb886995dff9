"""Spans of time are told by name and by thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from outgrow.core import timeline as module
from outgrow.core.timeline import Timeline


def test_a_span_takes_as_long_as_what_is_done() -> None:
    timeline, before = Timeline(), time.monotonic()
    with timeline.span("load", "reader"):
        time.sleep(0.02)
    [span] = timeline.spans
    assert (span.name, span.thread) == ("load", "reader")
    assert before <= span.start <= span.end - 0.02
    assert span.end <= time.monotonic()
    assert timeline.seconds == {"load": span.end - span.start}


def test_seconds_add_up_by_name_whoever_does_it() -> None:
    timeline = Timeline()
    for lane in ("compute", "load", "compute"):
        with timeline.span("wait", lane):
            pass
    with timeline.span("other"):
        pass
    assert [span.thread for span in timeline.spans] == ["compute", "load", "compute", "compute"]
    assert set(timeline.seconds) == {"wait", "other"}
    assert timeline.seconds["wait"] == sum(span.end - span.start for span in timeline.spans[:3])


def test_a_span_within_another_ends_first() -> None:
    timeline = Timeline()
    with timeline.span("outer"), timeline.span("inner"):
        pass
    inner, outer = timeline.spans
    assert (inner.name, outer.name) == ("inner", "outer")
    assert outer.start <= inner.start <= inner.end <= outer.end


def test_what_fails_has_a_span_too() -> None:
    timeline = Timeline()
    with pytest.raises(ValueError), timeline.span("load"):
        raise ValueError
    assert [span.name for span in timeline.spans] == ["load"]


def test_the_first_spans_are_kept_and_all_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SPANS", 3)
    timeline, total = Timeline(), 0.0
    for number in range(5):
        with timeline.span("work", str(number)):
            time.sleep(0.002)
        total = timeline.seconds["work"]
    assert [span.thread for span in timeline.spans] == ["0", "1", "2"]
    assert total >= 0.01


def test_threads_lose_no_span() -> None:
    timeline = Timeline()

    def work() -> None:
        for _ in range(200):
            with timeline.span("work"):
                pass

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(timeline.spans) == 800
    assert timeline.seconds["work"] == pytest.approx(sum(span.end - span.start for span in timeline.spans))


def test_each_moment_of_the_thread_that_trains_counts_once() -> None:
    timeline = Timeline()
    began = time.monotonic()
    with timeline.span("forward"):
        time.sleep(0.01)
        with timeline.span("wait"):
            time.sleep(0.03)
        with timeline.span("wait"):
            pass
    passed = time.monotonic() - began
    assert sum(timeline.phases.values()) <= passed
    assert sum(timeline.phases.values()) == pytest.approx(timeline.seconds["forward"])
    assert timeline.phases["wait"] == pytest.approx(timeline.seconds["wait"])
    assert timeline.phases["forward"] < timeline.phases["wait"] < timeline.seconds["forward"]


def test_other_threads_have_lanes_and_no_phases() -> None:
    timeline = Timeline()

    def work() -> None:
        with timeline.span("draw"):
            pass

    thread = threading.Thread(target=work, name="outgrow-ahead_3")
    thread.start()
    thread.join()
    with timeline.span("train"):
        pass
    assert [span.thread for span in timeline.spans] == ["ahead_3", "compute"]
    assert list(timeline.phases) == ["train"]


def test_waiting_for_items() -> None:
    timeline = Timeline()

    def slow() -> Iterator[int]:
        for number in range(3):
            time.sleep(0.005)
            yield number

    found = []
    for item in timeline.record_waits("wait", slow()):
        found.append(item)
        with timeline.span("use"):
            time.sleep(0.002)
    assert found == [0, 1, 2]
    assert [span.name for span in timeline.spans] == ["wait", "use"] * 3 + ["wait"]
    assert timeline.phases["wait"] >= 0.015


def test_what_is_left_out_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_SPANS", 2)
    timeline = Timeline()
    for _ in range(5):
        timeline.record_since("work", "compute", time.monotonic())
    assert timeline.num_dropped_spans == 3
