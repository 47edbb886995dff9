"""`PeerWatchdog`: workers under torchrun watch each other by counting heartbeats in a shared store."""

from __future__ import annotations

import os
import socket
import sys
import threading
from contextlib import suppress
from typing import Protocol

import psutil

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.failures import describe_worker
from outgrow.runtime.distributed.heartbeat import BEAT_SECONDS


class KeyValueStore(Protocol):
    """Key-value store shared by the group, such as a torch `Store`."""

    def set(self, key: str, value: str) -> None:
        """Set a value."""

    def get(self, key: str) -> bytes:
        """Return a value; wait until it is set."""

    def add(self, key: str, amount: int) -> int:
        """Add to a counter, initially 0; return its new value."""


class PeerWatchdog:
    """Context that counts this worker's heartbeats in the store and watches those of the next rank.

    A separate thread accesses the store, since a reply may never come: if the link to its host is cut, the
    system waits for many minutes. A reply while the interpreter shuts down would abort the process (Python
    cannot end a thread inside compiled code). Leaving the context therefore waits for the reply: for the
    longest allowed silence, or for one beat after an error.

    Args:
        store: Connection to the store that no other thread uses.
        rank: Number of this worker.
        size: Number of workers.
        heartbeat_seconds: Longest allowed silence of the next rank, or of the store.
    """

    def __init__(self, store: KeyValueStore, rank: int, size: int, heartbeat_seconds: float) -> None:
        self._store = store
        self._rank = rank
        self._size = size
        # A ring: each worker watches one other, so its cost does not grow with the group.
        self._next = (rank + 1) % size
        self._most = max(1, round(heartbeat_seconds / BEAT_SECONDS))
        self._patience_seconds = heartbeat_seconds
        self._last_beats = 0
        self._missed_beats = 0
        self._unanswered_beats = 0
        self._why: str | None = None
        self._due = threading.Event()
        self._closed = False
        store.set(f"process/{rank}", f"{os.getpid()} {socket.gethostname()}")
        self._thread = threading.Thread(target=self._exchange_beats, name="outgrow-neighbours", daemon=True)
        self._thread.start()

    def send_beat(self) -> str | None:
        """Request one beat. Return why this process should exit (a peer or the store is silent), or None."""
        # Runs on the heartbeat thread, which must never block on the network: it only wakes the other thread.
        self._unanswered_beats += 1
        self._due.set()
        if self._unanswered_beats > self._most:
            return _watchdog_error(
                f"{describe_worker(self._rank, self._size)} is out of reach of the others",
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
            # If the store is gone or unreachable, unanswered beats add up until this worker gives up.
            with suppress(RuntimeError):
                self._store.add(f"beats/{self._rank}", 1)
                # Adding 0 reads the counter without waiting for the key to exist, as `get` would.
                self._check_next(self._store.add(f"beats/{self._next}", 0))
                self._unanswered_beats = 0

    def _check_next(self, beats: int) -> None:
        """If the next rank is silent, kill it, or else request the exit of this worker."""
        self._missed_beats = self._missed_beats + 1 if beats == self._last_beats else 0
        self._last_beats = beats
        if self._missed_beats <= self._most:
            return
        what = f"worker {self._next} of {self._size} was silent for {self._missed_beats * BEAT_SECONDS:.0f} s"
        host = self._kill_next()
        if host is None:
            # torchrun sees the killed process and stops the group; counting anew avoids a second kill
            # meanwhile.
            sys.stderr.write(f"{what} and was killed\n")
            self._missed_beats = 0
        else:
            self._why = _watchdog_error(
                what, got=f"none: it was stopped, or its host {host} cannot be reached or has ended"
            )

    def _kill_next(self) -> str | None:
        """Kill the next rank if the same launcher started it on this host, and thus reports it as the cause.

        Returns:
            Host of the next rank; None if it was killed.
        """
        pid, host = self._store.get(f"process/{self._next}").decode("utf-8").split(" ", 1)
        with suppress(psutil.Error):
            process = psutil.Process(int(pid))
            # The system may have reused the process id; a sibling of this process is certainly a worker.
            if host == socket.gethostname() and process.ppid() == os.getppid():
                process.kill()
                return None
        return host


def _watchdog_error(what: str, *, got: str) -> str:
    repair = "look at that host and at the network, then start all workers again with --resume"
    return f"error: {WorkerError(what, needed='a sign of life every second', got=got, repair=repair)}"
