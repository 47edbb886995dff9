"""What workers did when, as a file that browsers and Perfetto show (the trace event format)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from outgrow.core.timeline import MAIN, Span

_MICROSECONDS = 1e6


def trace_of(by_worker: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """The content of ``trace.json``: a process for each worker, in it a row for each of its threads.

    Args:
        by_worker: The spans of each worker; clocks are those of their hosts.
    """
    events = [event for worker, spans in enumerate(by_worker) for event in _of_worker(worker, spans)]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _of_worker(worker: int, spans: Sequence[Span]) -> Iterator[dict[str, Any]]:
    if not spans:
        return
    begin = min(span.start for span in spans)
    lanes = sorted({span.lane for span in spans}, key=lambda lane: (lane != MAIN, lane))
    yield _name("process_name", worker, 0, f"worker {worker}")
    for number, lane in enumerate(lanes):
        yield _name("thread_name", worker, number, lane)
    for span in spans:
        yield {
            "name": span.name,
            "ph": "X",
            "ts": (span.start - begin) * _MICROSECONDS,
            "dur": (span.end - span.start) * _MICROSECONDS,
            "pid": worker,
            "tid": lanes.index(span.lane),
        }


def _name(what: str, worker: int, lane: int, name: str) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": worker, "tid": lane, "args": {"name": name}}
