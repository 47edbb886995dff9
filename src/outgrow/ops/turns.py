"""Compiling in turns: of several workers of a host, the first compiles a kernel and the others load it from disk."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

VARIABLE = "OUTGROW_COMPILE_LOCK"
"""Names the file that the workers of a host lock in turns; without it a process compiles when it needs to."""

_MINE = threading.RLock()


def in_turns(dispatcher: Any) -> Any:
    """Let a compiled function of Numba wait for its turn before it compiles, or finds what another has compiled."""
    path = os.environ.get(VARIABLE)
    if path is None or os.name != "posix":
        return dispatcher
    compiling = dispatcher.compile

    @functools.wraps(compiling)
    def compile_in_turn(signature: Any) -> Any:
        with _turn(path):
            return compiling(signature)

    dispatcher.compile = compile_in_turn
    return dispatcher


@contextmanager
def _turn(path: str) -> Iterator[None]:
    """Hold the file's lock. A function that is compiled for another one has its turn already."""
    import fcntl

    with _MINE:
        if _Held.count == 0:
            _Held.file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            fcntl.flock(_Held.file, fcntl.LOCK_EX)
        _Held.count += 1
        try:
            yield
        finally:
            _Held.count -= 1
            if _Held.count == 0:
                os.close(_Held.file)  # which releases it


class _Held:
    """How often this process holds the lock, and through which file."""

    count = 0
    file = -1
