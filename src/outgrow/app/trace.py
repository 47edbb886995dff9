"""What workers did when, as a file that browsers and Perfetto show (the trace event format)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outgrow.core.timeline import Span

_MICROSECONDS = 1e6


def trace_of(by_worker: Sequence[Sequence[Span]]) -> dict[str, Any]:
    """The content of ``trace.json``: a process for each worker, in it a row for each of its threads.

    Args:
        by_worker: The spans of each worker; clocks are those of their hosts.
    """
    begins = [min((span.start for span in spans), default=0.0) for spans in by_worker]
    events = [
        {
            "name": span.name,
            "ph": "X",
            "ts": (span.start - begin) * _MICROSECONDS,
            "dur": (span.end - span.start) * _MICROSECONDS,
            "pid": worker,
            "tid": span.lane,
        }
        for worker, (begin, spans) in enumerate(zip(begins, by_worker, strict=True))
        for span in spans
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}
