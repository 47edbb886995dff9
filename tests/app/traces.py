"""``trace.json`` as tests read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def spans_of(path: Path) -> list[dict[str, Any]]:
    """The spans of a trace, each with the name of its lane."""
    events = json.loads(path.read_text())["traceEvents"]
    lanes = {(event["pid"], event["tid"]): event["args"]["name"] for event in events if event["name"] == "thread_name"}
    return [{**event, "lane": lanes[event["pid"], event["tid"]]} for event in events if event["ph"] == "X"]
