"""Numbers as people read them."""

from __future__ import annotations

_UNITS = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def of_bytes(count: float) -> str:
    """``1234567`` as ``1.23 MB``."""
    for size, unit in _UNITS:
        if abs(count) >= size:
            return f"{count / size:.3g} {unit}" if count < 999.5 * size else f"{count / size:,.0f} {unit}"
    return f"{count:.0f} B"


def of_memory(count: float) -> str:
    """In the units of memory."""
    return f"{count / 2**30:.2f} GiB" if count >= 2**30 else f"{count / 2**20:.0f} MiB"


def of_seconds(seconds: float) -> str:
    """``0.0123`` as ``12.3 ms``."""
    if seconds >= 90:
        return f"{seconds / 60:.1f} min"
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{seconds * 1e3:.3g} ms" if seconds >= 1e-3 else f"{seconds * 1e6:.3g} µs"


def of_share(share: float | None) -> str:
    """``0.123`` as ``12.3 %``."""
    return "none" if share is None else f"{100 * share:.1f} %"
