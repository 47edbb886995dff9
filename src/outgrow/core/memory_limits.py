"""Available memory, cgroup limits included, and parsing of memory sizes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError

# Linux only: elsewhere neither exists, and no group limits memory.
_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Return the bytes that this process can still allocate: system memory, limited by its control groups.

    File pages count as free, in a group as in the system: the kernel evicts them under pressure.
    """
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_bytes_left_in_groups()]))


class _CgroupFiles(NamedTuple):
    """Layout of a cgroup version: its root and the names of its limits, usage and statistics."""

    root: Path
    limits: tuple[str, ...]
    used: str
    files: tuple[str, ...]


def _bytes_left_in_groups() -> Iterator[int]:
    """Yield the memory left in each control group that contains this process."""
    for line in _read_lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        # Version 2 has one hierarchy, without controllers. Beyond memory.high it throttles, so that is a
        # limit too.
        if controllers == "":
            kind = _CgroupFiles(
                _GROUPS, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")
            )
        elif "memory" in controllers.split(","):
            # In version 1 only the ``total_`` statistics include child groups, as the usage does.
            files = "total_active_file", "total_inactive_file"
            names = ("memory.limit_in_bytes",), "memory.usage_in_bytes", files
            kind = _CgroupFiles(_GROUPS / "memory", *names)
        else:
            continue
        # A container may see its own group mounted as the root, but its path as from outside: then this
        # folder does not exist, and only its parents up to the root count.
        inner = kind.root / path.lstrip("/")
        for folder in (inner, *inner.parents):
            # Every ancestor's limit applies as well.
            if folder.is_relative_to(kind.root):
                yield from _bytes_left(folder, kind)


def _bytes_left(folder: Path, kind: _CgroupFiles) -> Iterator[int]:
    *limits, used = (next(iter(_read_lines(folder / name)), "") for name in (*kind.limits, kind.used))
    # Without a limit the file says "max"; in version 2 the root group has no such files.
    known = [int(limit) for limit in limits if limit.isdigit()]
    if known and used.isdigit():
        stats = dict(line.split() for line in _read_lines(folder / "memory.stat"))
        yield min(known) - int(used) + sum(int(stats.get(name, 0)) for name in kind.files)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


_UNITS = {"": 1, "b": 1, "k": 1 << 10, "kib": 1 << 10, "m": 1 << 20, "mib": 1 << 20, "g": 1 << 30, "gib": 1 << 30}


# Whoever writes fewer bytes than this without a unit means another one.
_MIN_BYTES_WITHOUT_UNIT = 1 << 20


def parse_bytes(text: str) -> int:
    """Parse a size with a binary unit, such as ``"512MiB"`` (536870912); without one, bytes, at least 1 MiB.

    Raises:
        InputError: The text is not a size, or is a small number without a unit.
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
    if not unit and 0 < size < _MIN_BYTES_WITHOUT_UNIT:
        raise InputError(
            f"{text!r} has no unit",
            needed="a number with a unit, such as 512MiB or 4GiB",
            got=f"{size} bytes",
            repair=f"write {text.strip()}GiB, or {text.strip()}B if bytes are meant",
        )
    return size


def validate_memory_limit(limit: str | None) -> None:
    """Check a limit of memory: a size, see `parse_bytes`; None for no limit.

    Raises:
        InputError: It is no size, or no bytes at all.
    """
    if limit is not None and parse_bytes(limit) == 0:
        raise InputError(
            "a worker cannot train in no memory",
            needed="a size of more than 0 bytes",
            got=repr(limit),
            repair="write 1GiB, say, or leave memory out",
        )
