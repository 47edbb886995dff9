"""What runs came to, by fault and by strategy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
_COLUMNS = ("runs", "resumed", "no checkpoint", "went on", "over", "left out", "not as promised")


def summary(found: Sequence[Row]) -> dict[str, Any]:
    """Counts of outcomes for each fault, and within it for each strategy; and the slowest end after each fault."""
    faults = {str(row["fault"]): None for row in found}
    return {
        fault: {
            **_counts(rows),
            "slowest_seconds": max((row["seconds"] for row in rows if row.get("code")), default=None),
            "strategies": {
                name: _counts([row for row in rows if row["strategy"] == name])
                for name in dict.fromkeys(row["strategy"] for row in rows)
            },
        }
        for fault in faults
        if (rows := [row for row in found if row["fault"] == fault])
    }


def _counts(rows: Sequence[Row]) -> dict[str, int]:
    counts = Counter(str(row["outcome"]) for row in rows)
    counts["runs"], counts["not as promised"] = len(rows), sum(bool(row["violations"]) for row in rows)
    return {name: counts[name] for name in _COLUMNS if counts[name] or name in ("runs", "not as promised")}


def table(faults: Mapping[str, Any]) -> list[str]:
    """The counts of `summary` for people, in Markdown."""
    lines = [f"| fault | {' | '.join(_COLUMNS)} | slowest end |", f"|---|{'---|' * (len(_COLUMNS) + 1)}"]
    for fault, counts in faults.items():
        slowest = counts["slowest_seconds"]
        cells = [str(counts.get(name, 0)) for name in _COLUMNS] + ["" if slowest is None else f"{slowest:.0f} s"]
        lines.append(f"| {fault} | {' | '.join(cells)} |")
    return lines
