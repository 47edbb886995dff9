"""How well published figures are predicted that constants were not fitted on."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any

from papers_cells import CASE

_TIE = 1.05
"""Times that are so near are the same in two printed digits."""


def score(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """How well cells are predicted that constants were not fitted on: times, memory, and who wins."""
    scored = [row for row in rows if "predicted" in row and not row["fitted"] and not row["repeated"]]
    errors = [abs(math.log(row["predicted"] / row["published"])) for row in scored if row["published"]]
    told = [row for row in rows if "predicted" in row and not row["repeated"]]
    oom = [row for row in told if row["published"] is None]
    won = [*_winners(rows)]
    return {
        "times": len(errors),
        "within_2x": _share(error <= math.log(2) for error in errors),
        "within_30_percent": _share(error <= math.log(1.3) for error in errors),
        "median_factor": math.exp(statistics.median(errors)),
        "out_of_memory": len(oom),
        "out_of_memory_predicted": _share(not row["fits"] for row in oom),
        "ran": len(told) - len(oom),
        "ran_predicted": _share(row["fits"] for row in told if row["published"]),
        "comparisons": len(won),
        "winner_predicted": _share(won),
    }


def _winners(rows: list[dict[str, Any]]) -> Iterator[bool]:
    """Of each comparison of two systems at least, whether the one that is predicted to win did so."""
    cases = defaultdict(list)
    for row in rows:
        if "predicted" in row:
            cases[(row["paper"], row["table"], *(str(row[name]) for name in CASE))].append(row)
    for case in cases.values():
        ran = [row for row in case if row["published"]]
        if len(case) < 2 or not ran or all(row["fitted"] for row in case):
            continue
        believed = [row for row in case if row["fits"]] or case
        winner = min(believed, key=lambda row: row["predicted"])
        best = min(row["published"] for row in ran)
        yield winner["published"] is not None and winner["published"] <= _TIE * best


def _share(found: Iterable[bool]) -> float | None:
    kept = [*found]
    return sum(kept) / len(kept) if kept else None
