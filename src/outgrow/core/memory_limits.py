"""Available bytes (cgroups included), `parse_bytes`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from outgrow.core.errors import InputError

_MEMBERSHIP, _GROUPS = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")


def available_bytes() -> int:
    """Memory that this process may still take: what the system has, and no more than its control groups allow.

    Pages of files count as free in a group as they do in the system: the kernel evicts them when it needs to.
    """
    import psutil

    return max(0, min([int(psutil.virtual_memory().available), *_bytes_left_in_groups()]))


class _CgroupFiles(NamedTuple):
    """A kind of control group: where such groups are, and the names of what they tell."""

    root: Path
    limits: tuple[str, ...]
    used: str
    files: tuple[str, ...]


def _bytes_left_in_groups() -> Iterator[int]:
    """What is left of the limit of each control group around this process."""
    for line in _read_lines(_MEMBERSHIP):
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            kind = _CgroupFiles(
                _GROUPS, ("memory.max", "memory.high"), "memory.current", ("active_file", "inactive_file")
            )
        elif "memory" in controllers.split(","):
            files = "total_active_file", "total_inactive_file"
            names = ("memory.limit_in_bytes",), "memory.usage_in_bytes", files
            kind = _CgroupFiles(_GROUPS / "memory", *names)
        else:
            continue
        inner = kind.root / path.lstrip("/")  # a container may see its own group as the root, under a path from outside
        for folder in (inner, *inner.parents):
            if folder.is_relative_to(kind.root):
                yield from _bytes_left(folder, kind)


def _bytes_left(folder: Path, kind: _CgroupFiles) -> Iterator[int]:
    *limits, used = (next(iter(_read_lines(folder / name)), "") for name in (*kind.limits, kind.used))
    known = [int(limit) for limit in limits if limit.isdigit()]
    if known and used.isdigit():
        told = dict(line.split() for line in _read_lines(folder / "memory.stat"))
        yield min(known) - int(used) + sum(int(told.get(name, 0)) for name in kind.files)


def _read_lines(path: Path) -> list[str]:
    try:
        return path.read_text().splitlines()
    except OSError:
        return []


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
