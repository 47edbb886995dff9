"""Compiling in turns: of several processes of a host, the first compiles a kernel and the others load it from disk."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

VARIABLE = "OUTGROW_COMPILE_LOCKS"
"""Names the folder of the files that processes lock in turns; without it a process compiles when it needs to."""

_MINE = threading.RLock()


def in_turns(dispatcher: Any) -> Any:
    """Let a compiled function of Numba wait for its turn before it compiles, or finds what another has compiled."""
    folder = os.environ.get(VARIABLE)
    if folder is None or os.name != "posix":
        return dispatcher
    compiling, function = dispatcher.compile, dispatcher.py_func
    path = Path(folder) / f"{function.__module__}.{function.__qualname__}"

    @functools.wraps(compiling)
    def compile_in_turn(signature: Any) -> Any:
        with _turn(path):
            return compiling(signature)

    dispatcher.compile = compile_in_turn
    return dispatcher


@contextmanager
def _turn(path: Path) -> Iterator[None]:
    """Hold a file's lock. A function keeps its own while it waits for one that it calls; no two call each other."""
    import fcntl

    path.parent.mkdir(parents=True, exist_ok=True)
    with _MINE, path.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
