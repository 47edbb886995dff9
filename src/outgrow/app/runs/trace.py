"""What workers did when, as a file that browsers and Perfetto show (the trace event format)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outgrow.core.timeline import MAIN_THREAD, Span

_MICROSECONDS = 1e6


def chrome_trace(by_worker: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """The content of ``trace.json``: a process for each worker, in it a row for each of its threads.

    Args:
        by_worker: The spans of each worker; clocks are those of their hosts.
    """
    events = [event for worker, spans in enumerate(by_worker) for event in _worker_events(worker, spans)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _worker_events(worker: int, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    if not spans:
        return
    begin = min(span.start for span in spans)
    lanes = sorted({span.thread for span in spans}, key=lambda lane: (lane != MAIN_THREAD, lane))
    yield _name_event("process_name", worker, 0, f"worker {worker}")
    for number, lane in enumerate(lanes):
        yield _name_event("thread_name", worker, number, lane)
    for span in spans:
        yield {
            "name": span.name,
            "ph": "X",
            "ts": (span.start - begin) * _MICROSECONDS,
            "dur": (span.end - span.start) * _MICROSECONDS,
            "pid": worker,
            "tid": lanes.index(span.thread),
        }


def _name_event(what: str, worker: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": worker, "tid": lane, "args": {"name": name}}
