"""The faults by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from faults.base import Fault
from faults.disk import FileLimit, FullDisk
from faults.kill import Kill, KillLauncher
from faults.link import Link
from faults.stop import Slow, Stop
from faults.store import ReadError

LONG_HEARTBEAT_SECONDS, SHORT_HEARTBEAT_SECONDS = 120.0, 5.0


class Entry(NamedTuple):
    """A fault.

    Attributes:
        make: Makes it, given for how long workers are stopped.
        workers: The fewest with which it is one.
    """

    make: Callable[[float], Fault]
    workers: int = 1


FAULTS = {
    "kill": Entry(lambda _: Kill()),
    "stop": Entry(lambda seconds: Stop(seconds, LONG_HEARTBEAT_SECONDS)),
    "full-disk": Entry(lambda _: FullDisk()),
    "read-error": Entry(lambda _: ReadError()),
    "restart": Entry(lambda _: Kill(restarts=1), workers=2),
    "silent": Entry(lambda _: Stop(60.0, SHORT_HEARTBEAT_SECONDS), workers=2),
    "slow": Entry(lambda _: Slow(10.0)),
    "kill-launcher": Entry(lambda _: KillLauncher(), workers=2),
    "link": Entry(lambda _: Link(60.0, 10.0), workers=2),
    "link-soon": Entry(lambda _: Link(4.0, 30.0), workers=2),
    "file-limit": Entry(lambda _: FileLimit()),
}
