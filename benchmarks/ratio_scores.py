"""How near estimates come to what was measured or published: shares of ratios within factors."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any


def score_ratios(ratios: Sequence[float], near: float = 1.3) -> dict[str, Any]:
    """Return the shares of ratios of an estimate and the truth that are within 2 and within a nearer factor."""
    errors = [abs(math.log(each)) for each in ratios]
    return {
        "cells": len(errors),
        "within_2x": share_of(error <= math.log(2) for error in errors),
        f"within_{round(100 * (near - 1))}_percent": share_of(error <= math.log(near) for error in errors),
        "median_factor": math.exp(statistics.median(errors)) if errors else None,
    }


def share_of(found: Iterable[bool]) -> float | None:
    """Return the share of what is true; None of nothing."""
    kept = [*found]
    return sum(kept) / len(kept) if kept else None
