"""Workers that torchrun has started watch one another: each counts its beats where the group meets."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Protocol

import psutil

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.heartbeat import BEAT_SECONDS


class KeyValueStore(Protocol):
    """Where workers of a group leave each other notes: a store of torch."""

    def set(self, key: str, value: str) -> None:
        """Leave a note."""

    def get(self, key: str) -> bytes:
        """Read one."""

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first; what it is then."""


class PeerWatchdog:
    """Beats of this worker and of the next one, counted on the board; a context, at whose end counting ends.

    A thread of its own talks to the board, since an answer may never come: where the link to its host is cut, the
    system waits for many minutes. An answer that comes while Python ends this process would abort it (the thread is in
    compiled code, which Python then cannot leave), so the end of the context waits for it: as long as a silence may
    last, or after an error one beat.

    Args:
        store: Where beats are counted, for this object alone.
        rank: Number of this worker.
        size: Number of workers.
        heartbeat_seconds: Longest silence of the next worker, or of the board.
    """

    def __init__(self, store: KeyValueStore, rank: int, size: int, heartbeat_seconds: float) -> None:
        self._store, self._rank, self._size = store, rank, size
        self._next = (rank + 1) % size
        self._most = max(1, round(heartbeat_seconds / BEAT_SECONDS))
        self._patience_seconds = heartbeat_seconds
        self._last_beats, self._missed_beats, self._unanswered_beats = 0, 0, 0
        self._why: str | None = None
        self._due, self._closed = threading.Event(), False
        store.set(f"process/{rank}", f"{os.getpid()} {socket.gethostname()}")
        self._thread = threading.Thread(target=self._exchange_beats, name="outgrow-neighbours", daemon=True)
        self._thread.start()

    def send_beat(self) -> str | None:
        """Have one beat counted. Why this process should end, if it should: the next one is silent, or the board."""
        self._unanswered_beats += 1
        self._due.set()
        if self._unanswered_beats > self._most:
            return _watchdog_error(
                f"worker {self._rank} of {self._size} on {socket.gethostname()} is out of reach of the others",
                got=f"no answer for {self._unanswered_beats * BEAT_SECONDS:.0f} s from the host where they meet",
            )
        return self._why

    def __enter__(self) -> PeerWatchdog:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._closed = True
        self._due.set()
        self._thread.join(self._patience_seconds if kind is None else BEAT_SECONDS)

    def _exchange_beats(self) -> None:
        while self._due.wait() and not self._closed:
            self._due.clear()
            with suppress(RuntimeError):  # the process that keeps the board has ended, or cannot be reached
                self._store.add(f"beats/{self._rank}", 1)
                self._check_next(self._store.add(f"beats/{self._next}", 0))
                self._unanswered_beats = 0

    def _check_next(self, beats: int) -> None:
        """If the next worker is silent, end it, or else this one."""
        self._missed_beats = self._missed_beats + 1 if beats == self._last_beats else 0
        self._last_beats = beats
        if self._missed_beats <= self._most:
            return
        what = f"worker {self._next} of {self._size} was silent for {self._missed_beats * BEAT_SECONDS:.0f} s"
        host = self._kill_next()
        if host is None:
            sys.stderr.write(f"{what} and was killed\n")
            self._missed_beats = 0
        else:
            self._why = _watchdog_error(
                what, got=f"none: it was stopped, or its host {host} cannot be reached or has ended"
            )

    def _kill_next(self) -> str | None:
        """Kill the next worker, if the same launcher has started it on this host: it will see whom to blame.

        Returns:
            The host of the next worker; None if it was killed.
        """
        pid, host = self._store.get(f"process/{self._next}").decode("utf-8").split(" ", 1)
        with suppress(psutil.Error):
            process = psutil.Process(int(pid))
            if host == socket.gethostname() and process.ppid() == os.getppid():
                process.kill()
                return None
        return host


def _watchdog_error(what: str, *, got: str) -> str:
    repair = "look at that host and at the network, then start all workers again with --resume"
    return f"error: {WorkerError(what, needed='a sign of life every second', got=got, repair=repair)}"
