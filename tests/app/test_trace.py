"""``trace.json`` as browsers read it."""

from __future__ import annotations

import json

from outgrow.app.trace import trace_of
from outgrow.core.timeline import Span


def test_a_process_for_each_worker_and_a_row_for_each_thread() -> None:
    """Times are microseconds from the worker's first span: clocks of hosts have nothing in common."""
    first = [Span("load", "load", 100.5, 101.0), Span("compute", "compute", 100.25, 102.0)]
    second = [Span("store", "store", 7.0, 7.5)]
    trace = trace_of([first, second])
    assert trace["displayTimeUnit"] == "ms"
    assert trace["traceEvents"] == [
        {"name": "load", "ph": "X", "ts": 250_000.0, "dur": 500_000.0, "pid": 0, "tid": "load"},
        {"name": "compute", "ph": "X", "ts": 0.0, "dur": 1_750_000.0, "pid": 0, "tid": "compute"},
        {"name": "store", "ph": "X", "ts": 0.0, "dur": 500_000.0, "pid": 1, "tid": "store"},
    ]
    assert json.loads(json.dumps(trace)) == trace


def test_workers_that_did_nothing() -> None:
    assert trace_of([]) == {"traceEvents": [], "displayTimeUnit": "ms"}
    trace = trace_of([[], [Span("load", "load", 3.0, 4.0)]])
    assert [event["pid"] for event in trace["traceEvents"]] == [1]
