"""How processes end: with their parent, or by a signal as by an exception. Imports nothing large."""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from pathlib import Path
from types import FrameType
from typing import NoReturn

_SET_SIGNAL_OF_PARENTS_DEATH = 1  # PR_SET_PDEATHSIG


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process as soon as its parent is gone (Linux only).

    A watching thread would not do: it cannot run while other code holds the GIL. Importing torch takes
    seconds on a busy machine, and METIS holds the GIL until it is done. The kernel watches the *thread* that
    started this process; that thread waits for it, so it does not end earlier.

    Args:
        parent: Process id of the parent; if it is already gone, this process exits here. None to skip this
            check.
    """
    _signal_at_parents_death(signal.SIGKILL)
    # After the call above: a parent that ended earlier sends no signal any more.
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def outlive_parent() -> None:
    """Take `end_with_parent` back."""
    _signal_at_parents_death(0)


def _signal_at_parents_death(number: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_SET_SIGNAL_OF_PARENTS_DEATH, number)


def set_process_title(title: str) -> None:
    """Have the system show another command line for this process (Linux only).

    The new one takes the memory of the old one, and ends where that does.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    if begin < end:  # zeros where the system does not tell
        # A last byte other than zero says that this is one string, which ends at the first zero.
        shown = os.fsencode(title)[: end - begin - 2].ljust(end - begin - 1, b"\0") + b"x"
        ctypes.memmove(begin, shown, end - begin)


def exit_code(number: int) -> int:
    """Return the exit code of a program that a signal has ended, as shells and schedulers know it."""
    return 128 + number


def exit_on_signal(number: int, frame: FrameType | None) -> NoReturn:
    """Handle a signal by an exception, so that files are removed."""
    raise SystemExit(exit_code(number))
