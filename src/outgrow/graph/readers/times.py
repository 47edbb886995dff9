"""Times of nodes and edges, as int64: numbers that grow with time, in one unit for the whole graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.readers.source import Ids

NO_TIME = int(np.iinfo(np.int64).min)
"""Time of a node or an edge without one; see `outgrow.ops.sampling.time_order.NO_TIME`."""
CALENDAR_UNIT = "us"
"""Dates and times of day count microseconds from 1970 on, in UTC where they name no zone."""
_LARGEST = 1 << 63


def to_times(values: NDArray[Any], where: str) -> Ids:
    """Convert numbers, dates or times of day to int64; `NO_TIME` for those that are missing.

    Args:
        values: ``[n]`` integer, floating with whole numbers and NaN for none, or ``datetime64``.
        where: Their name in errors.

    Raises:
        InputError: Others.
    """
    kind = values.dtype.kind
    if values.ndim == 2 and values.shape[1] == 1:
        values = values[:, 0]
    if values.ndim != 1 or kind not in "iufM":
        raise _time_error(where, f"{values.dtype} of shape {list(values.shape)}")
    if kind == "M":
        # NaT has the smallest int64, as what has no time.
        return values.astype(f"datetime64[{CALENDAR_UNIT}]").astype(np.int64)
    if kind in "iu":
        if kind == "u" and len(values) and values.max() >= _LARGEST:
            raise _time_error(where, f"{values.max()}, which is no int64")
        return values.astype(np.int64)
    known = ~np.isnan(values)
    bad = known & ((values != np.floor(values)) | (np.abs(values) >= _LARGEST))
    if bad.any():
        raise _time_error(where, f"{values[bad.argmax()]} at position {int(bad.argmax())}")
    return np.where(known, np.where(known, values, 0).astype(np.int64), NO_TIME)


def has_dates(times: Mapping[str, NDArray[Any] | None]) -> bool:
    """Return whether arrays of times, by name, are dates.

    Raises:
        InputError: Some are, and others are numbers, which cannot be compared with them.
    """
    kinds = {name: each.dtype.kind == "M" for name, each in times.items() if each is not None}
    if len({*kinds.values()}) > 1:
        dates, numbers = (next(name for name, kind in kinds.items() if kind == wanted) for wanted in (True, False))
        raise InputError(
            f"{dates} cannot be compared with {numbers}",
            needed="dates in both, or numbers in both",
            got=f"dates in {dates}, numbers in {numbers}",
            repair="convert one of both",
        )
    return any(kinds.values())


def validate_times(times: NDArray[Any], count: int, what: str) -> Ids:
    """Check times, one for each of ``count`` nodes or edges, which ``what`` names.

    Raises:
        InputError: Another number of them, or another type.
    """
    if times.shape != (count,) or times.dtype != np.int64:
        raise InputError(
            f"times do not fit the {what}s",
            needed=f"int64 of shape [{count}], one for each {what}",
            got=f"{times.dtype} of shape {list(times.shape)}",
            repair=f"give one time for each {what}",
        )
    return times


def join_times(times: Sequence[NDArray[np.int64] | None], counts: Sequence[int]) -> Ids | None:
    """Return the times of several parts, one after the other; None if none has any."""
    if all(each is None for each in times):
        return None
    return np.concatenate(
        [np.full(count, NO_TIME) if each is None else each for each, count in zip(times, counts, strict=True)]
    )


def _time_error(where: str, got: str) -> InputError:
    return InputError(
        f"{where} cannot be read as times",
        needed="integers, whole numbers, dates or times of day, one for each",
        got=got,
        repair="convert them to integers that grow with time, such as seconds since 1970",
    )
