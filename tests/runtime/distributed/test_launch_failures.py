"""A worker that fails ends the run, takes the blame, and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from outgrow.core.errors import InputError, TrainingError, WorkerError
from outgrow.runtime.distributed.launch import RestartEvent, run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from processes import processes_of, wait_until_gone

pytestmark = pytest.mark.usefixtures("scratch")


def failing(fail: Callable[[], None], *, attempts: int = 1) -> Callable[[WorkerContext], int]:
    """A task at which worker 1 fails in the first attempts, while its peers wait for it."""

    def task(place: WorkerContext) -> int:
        if place.comm.rank == 1 and place.attempt < attempts:
            fail()
        place.comm.barrier()
        return place.attempt

    return task


def raise_here() -> None:
    sys.stdout.write("worker 1 says so\n")
    raise ValueError("no such number")


def raise_ours() -> None:
    raise TrainingError("no loss", needed="a number", got="NaN", repair="a lower rate")


def unsendable() -> None:
    raise TrainingError("locked", needed=threading.Lock(), got="", repair="")  # type: ignore[arg-type]


def killed() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def stopped() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


@pytest.mark.parametrize(
    ("fail", "what", "report"),
    [
        (raise_here, "worker 1 of 2 failed: ValueError: no such number", "in raise_here"),
        (stopped, "worker 1 of 2 was silent for 4 s", ""),
        (unsendable, "worker 1 of 2 ended with exit code 1 before it was done", "in unsendable"),
        (lambda: os._exit(3), "worker 1 of 2 ended with exit code 3 before it was done", ""),
        pytest.param(lambda: sys.exit(3), "worker 1 of 2 failed: SystemExit: 3", "<lambda>", marks=pytest.mark.slow),
    ],
)
def test_the_guilty_worker_is_named(fail: Callable[[], None], what: str, report: str) -> None:
    started = time.monotonic()
    with pytest.raises(WorkerError) as caught:
        run_workers(failing(fail), 2, heartbeat_seconds=4 if fail is stopped else 20)  # a busy machine is silent too
    assert caught.value.what == what
    assert report in caught.value.report
    assert "CommunicationError" not in str(caught.value)
    assert time.monotonic() - started < 30


def test_our_own_errors_are_raised_as_they_are() -> None:
    with pytest.raises(TrainingError) as caught:
        run_workers(failing(raise_ours), 2, restarts=1)
    assert (caught.value.what, caught.value.needed, caught.value.got) == ("no loss", "a number", "NaN")
    assert "in raise_ours" in str(caught.value.__cause__)


def test_a_worker_whose_disk_is_full_can_say_so() -> None:
    def task(place: WorkerContext) -> None:
        if place.comm.rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 15, 1 << 15))
            place.send_message(b"x" * 100_000)
        place.comm.barrier()

    with pytest.raises(InputError, match="cannot write the temporary file") as caught:
        run_workers(task, 2)
    assert "File too large" in caught.value.got


def test_no_room_for_temporary_files(scratch: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(scratch / "none"))
    with pytest.raises(InputError, match="cannot write the temporary file"):
        run_workers(lambda place: None, 2)


def test_workers_are_started_again() -> None:
    heard: list[object] = []
    assert run_workers(failing(killed), 2, restarts=1, on_message=heard.append) == [1, 1]
    assert heard == [RestartEvent(attempt=1, reason="worker 1 of 2 was killed by SIGKILL")]


def test_an_interrupt_ends_the_workers_and_what_they_started(scratch: Path) -> None:
    def task(place: WorkerContext) -> None:
        command = [sys.executable, "-c", "import time; time.sleep(1000)", str(place.folder)]
        place.send_message(subprocess.Popen(command).pid)
        time.sleep(1000)

    def hear(message: object) -> None:
        assert len(processes_of(scratch)) >= 2
        signal.raise_signal(signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell in the background ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            run_workers(task, 2, on_message=hear)
    finally:
        signal.signal(signal.SIGINT, before)


RUN = """
import time
from outgrow.runtime.distributed.launch import run_workers

def task(place):
    place.send_message("started")
    time.sleep(1000)

run_workers(task, 2, on_message=lambda message: print(message, flush=True))
"""


def test_workers_end_when_the_run_is_killed(scratch: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert [run.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        there = [" ".join(process.cmdline()) for process in processes_of(scratch)]
        run.kill()
    assert ["outgrow.runtime.distributed.worker_main" in words for words in sorted(there)] == [
        False,
        True,
        True,
    ]  # the first removes the folder
    wait_until_gone(scratch, 5)


HOLDS_THE_LOCK = """
import ctypes
from outgrow.runtime.distributed.launch import run_workers

def task(place):
    place.send_message("started")
    place.comm.barrier()
    ctypes.PyDLL(None).sleep(60)  # compiled code that keeps Python's lock, as libraries do while they are loaded

run_workers(task, 2, heartbeat_seconds=100, on_message=lambda message: print(message, flush=True))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system does not tell")
def test_workers_end_with_the_run_whatever_they_do(scratch: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", HOLDS_THE_LOCK], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        assert [run.stdout.readline() for _ in range(2)] == ["started\n"] * 2
        time.sleep(0.5)
        run.kill()
    wait_until_gone(scratch, 5)
