"""``trace.json`` as browsers read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command
from tests.app.traces import spans_of

from outgrow.app.runs.trace import chrome_trace
from outgrow.core.timeline import Span


def test_a_process_for_each_worker_and_a_row_for_each_thread() -> None:
    """Times are microseconds from the worker's first span: clocks of hosts have nothing in common."""
    first = [Span("load", "load", 100.5, 101.0), Span("compute", "compute", 100.25, 102.0)]
    second = [Span("store", "store", 7.0, 7.5)]
    trace = chrome_trace([first, second])
    assert trace["displayTimeUnit"] == "ms"
    assert trace["traceEvents"] == [
        {"name": "process_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "worker 0"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 0, "args": {"name": "compute"}},
        {"name": "thread_name", "ph": "M", "pid": 0, "tid": 1, "args": {"name": "load"}},
        {"name": "load", "ph": "X", "ts": 250_000.0, "dur": 500_000.0, "pid": 0, "tid": 1},
        {"name": "compute", "ph": "X", "ts": 0.0, "dur": 1_750_000.0, "pid": 0, "tid": 0},
        {"name": "process_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "worker 1"}},
        {"name": "thread_name", "ph": "M", "pid": 1, "tid": 0, "args": {"name": "store"}},
        {"name": "store", "ph": "X", "ts": 0.0, "dur": 500_000.0, "pid": 1, "tid": 0},
    ]
    assert json.loads(json.dumps(trace)) == trace


def test_workers_that_did_nothing() -> None:
    assert chrome_trace([]) == {"traceEvents": [], "displayTimeUnit": "ms"}
    trace = chrome_trace([[], [Span("load", "load", 3.0, 4.0)]])
    assert {event["pid"] for event in trace["traceEvents"]} == {1}


@pytest.mark.usefixtures("pooled")
def test_rows_travel_while_others_are_aggregated(outgrow: Command, npz: Path) -> None:
    words = ("--model", "decoupled", "--strategy", "tensor", "--workers", 2, "--epochs", 2, "--set", "chunks=3")
    assert outgrow("train", npz, *words, "--out", "run").code == 0
    events = spans_of(Path("run/trace.json"))
    for name, moving in (("split", ("split 1", "split 2")), ("gather", ("gather 0", "gather 1"))):
        trips = [event for event in events if event["name"] == name]
        assert {event["lane"] for event in trips} == {f"{name} {chunk}" for chunk in range(3)}
        beside = [trip for trip in trips if trip["lane"] in moving and any(within(each, trip) for each in events)]
        assert {trip["pid"] for trip in beside} == {0, 1}
        assert {trip["lane"] for trip in beside} == set(moving)


def within(event: dict[str, Any], trip: dict[str, Any]) -> bool:
    """Whether the same worker aggregates meanwhile."""
    same, ends = event["pid"] == trip["pid"], (event["ts"] + event["dur"], trip["ts"] + trip["dur"])
    return event["name"] == "aggregate" and same and trip["ts"] <= event["ts"] and ends[0] <= ends[1]
