"""Sizes of memory as people write them."""

from __future__ import annotations

from outgrow.core.errors import InputError

_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


def parse_bytes(text: str) -> int:
    """``"512MiB"`` as 536870912.

    Raises:
        InputError: Not a size.
    """
    digits = text.strip().rstrip("BbIiKkMmGg ")
    unit = text.strip()[len(digits) :].strip().lower()
    try:
        size = int(float(digits) * _UNITS[unit])
    except (KeyError, ValueError, OverflowError):
        size = -1
    if size < 0:
        raise InputError(
            f"{text!r} is not a size",
            needed="a number with a unit, such as 512MiB or 4GiB",
            got=repr(text),
            repair="write 1GiB, say",
        )
    return size
