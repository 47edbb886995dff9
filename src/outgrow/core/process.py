"""Processes that end with the one that started them. It imports nothing large."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_SET_SIGNAL_OF_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def end_with_parent(parent: int | None = None) -> None:
    """Have the system kill this process as soon as the one that started it is gone, where it can (Linux).

    If ``parent``, its number, is given and it is gone already, this process ends here.

    A thread of its own cannot see that while other code holds Python's lock: to load torch takes some seconds on a
    busy machine, and METIS holds it until it is done. The system means the thread that started this process; it waits
    for it, so it ends no sooner.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)
