"""Timelines of the workers in Chrome's trace event format, which browsers and Perfetto display."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outgrow.core.timeline import MAIN_THREAD, Span

_MICROSECONDS = 1e6


def chrome_trace(by_worker: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """Return the content of ``trace.json``: a process for each worker, with a row for each of its threads.

    Args:
        by_worker: Spans of each worker, on the clock of its host.
    """
    events = [event for worker, spans in enumerate(by_worker) for event in _worker_events(worker, spans)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _worker_events(worker: int, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    if not spans:
        return
    # Clocks of hosts need not agree, so each worker's time begins with its own first span.
    begin = min(span.start for span in spans)
    # The main thread is row 0, since a reader looks there first for what the others made wait.
    lanes = sorted({span.thread for span in spans}, key=lambda lane: (lane != MAIN_THREAD, lane))
    yield _name_event("process_name", worker, 0, f"worker {worker}")
    for number, lane in enumerate(lanes):
        yield _name_event("thread_name", worker, number, lane)
    for span in spans:
        yield {
            "name": span.name,
            # "X" is a complete event, with start and duration; "M" below is metadata that names a row.
            "ph": "X",
            "ts": (span.start - begin) * _MICROSECONDS,
            "dur": (span.end - span.start) * _MICROSECONDS,
            "pid": worker,
            "tid": lanes.index(span.thread),
        }


def _name_event(what: str, worker: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": worker, "tid": lane, "args": {"name": name}}
