"""The picture of `growth.py`: cost over edges on one worker, and over workers on one graph, on logarithmic axes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

Row = Mapping[str, Any]
Points = Sequence[tuple[float, float]]

_COSTS = (("seconds", "seconds"), ("peak_bytes", "peak memory of a worker"), ("moved_bytes", "bytes moved"))
# Legible on white and on black.
_COLOURS = ("#2a7fbc", "#d9822b", "#3d9a50", "#c9453f", "#8a63c0", "#9a6a52", "#d069a8")
_WIDTH, _HEIGHT, _LEFT, _TOP, _GAP = 230.0, 170.0, 58.0, 26.0, 78.0
_PREFIXES = ("", "k", "M", "G", "T")


def draw(rows: Sequence[Row]) -> str:
    """Return an SVG of the rows of `growth.py`; cells that failed are left out."""
    strategies = list(dict.fromkeys(row["strategy"] for row in rows))
    colours = {name: _COLOURS[at % len(_COLOURS)] for at, name in enumerate(strategies)}
    alone = [row for row in rows if row["workers"] == 1]
    most = max((row["share"] for row in rows if row["workers"] > 1), default=None)
    together = [row for row in rows if row["share"] == most]
    parts = [*_draw_panels(alone, "edges", colours, 0), *_draw_panels(together, "workers", colours, 1)]
    lines = 2 if together else 1
    width, height = 3 * (_WIDTH + _GAP), lines * (_HEIGHT + _GAP) + 30
    for at, name in enumerate(strategies):
        x = _LEFT + at * (width - _LEFT) / len(strategies)
        parts.append(f'<path stroke="{colours[name]}" stroke-width="2" d="M{x:.0f} {height - 14:.0f}h16"/>')
        parts.append(_text(x + 20, height - 10, name))
    label = "Seconds, peak memory of a worker and bytes moved of an epoch, by edges and by workers"
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" role="img"'
    style = 'font-family="sans-serif" font-size="11" fill="none" stroke="none"'
    return f'{head} aria-label="{label}" {style} color="#808080">\n' + "\n".join(parts) + "\n</svg>\n"


def _draw_panels(rows: Sequence[Row], axis: str, colours: Mapping[str, str], line: int) -> list[str]:
    parts: list[str] = []
    for column, (cost, title) in enumerate(_COSTS):
        curves = {name: _points(rows, name, axis, cost) for name in colours}
        if any(curves.values()):
            corner = _LEFT + column * (_WIDTH + _GAP), _TOP + line * (_HEIGHT + _GAP)
            parts += _draw_panel(curves, colours, corner, f"{title} by {axis}")
    return parts


def _points(rows: Sequence[Row], strategy: str, axis: str, cost: str) -> Points:
    return sorted((row[axis], row[cost]) for row in rows if row["strategy"] == strategy and row.get(cost))


def _draw_panel(
    curves: Mapping[str, Points], colours: Mapping[str, str], corner: tuple[float, float], title: str
) -> list[str]:
    every = [point for points in curves.values() for point in points]
    left, top = corner
    across = _scale((point[0] for point in every), left, _WIDTH)
    down = _scale((point[1] for point in every), top + _HEIGHT, -_HEIGHT)
    parts = [
        f'<rect x="{left:.0f}" y="{top:.0f}" width="{_WIDTH:.0f}" height="{_HEIGHT:.0f}" stroke="currentColor"/>',
        _text(left, top - 8, title),
    ]
    ticks = _ticks(point[0] for point in every)
    parts += [_text(across(value), top + _HEIGHT + 14, _short(value), "middle") for value in ticks]
    for value in _ticks(point[1] for point in every):
        y = down(value)
        parts.append(f'<path stroke="currentColor" stroke-opacity="0.3" d="M{left:.1f} {y:.1f}h{_WIDTH:.1f}"/>')
        parts.append(_text(left - 5, y + 4, _short(value), "end"))
    for name, points in curves.items():
        if points:
            path = " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in points)
            parts.append(f'<polyline stroke="{colours[name]}" stroke-width="1.8" points="{path}"/>')
    return parts


def _scale(values: Iterable[float], first: float, length: float) -> Callable[[float], float]:
    """Return the place of a value on a logarithmic axis, with a margin at both ends."""
    logs = [math.log(value) for value in values]
    low, high = min(logs), max(logs)
    room = max(high - low, 0.1)
    return lambda value: first + length * (0.05 + 0.9 * (math.log(value) - low) / room)


def _ticks(values: Iterable[float]) -> list[float]:
    """Return the powers of ten, or of two where there are less than two of them, between the least and the largest."""
    known = sorted(values)
    low, high = known[0], known[-1]
    tens = [10.0**n for n in range(math.ceil(math.log10(low)), math.floor(math.log10(high) + 1e-9) + 1)]
    if len(tens) > 1:
        return tens
    return [2.0**n for n in range(math.ceil(math.log2(low)), math.floor(math.log2(high) + 1e-9) + 1)]


def _short(value: float) -> str:
    """Return a number in few characters: 0.25, 8, 300, 10M."""
    if value < 1:
        return f"{value:.2g}"
    step = min(int(math.log10(value) + 1e-9) // 3, len(_PREFIXES) - 1)
    return f"{value / 1000**step:.3g}{_PREFIXES[step]}"


def _text(x: float, y: float, said: str, anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" fill="currentColor" text-anchor="{anchor}">{said}</text>'
