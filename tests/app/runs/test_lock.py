"""Two runs in one directory: the second is refused, and changes nothing."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

import outgrow as og
from outgrow.app.runs.lock import NAME, RunLock
from outgrow.core.errors import InputError

HOLDER = (
    "import sys, time; from pathlib import Path; from outgrow.app.runs.lock import RunLock; "
    "h = RunLock(Path(sys.argv[1]))"
)


@contextmanager
def killed(process: subprocess.Popen[Any]) -> Iterator[None]:
    """At the end, or after a failure, a process is killed."""
    try:
        yield
    finally:
        process.kill()
        process.wait()


def test_one_at_a_time(tmp_path: Path) -> None:
    first = RunLock(tmp_path)
    with pytest.raises(InputError, match="another run is at work") as caught:
        RunLock(tmp_path)
    assert f"process {os.getpid()} on " in caught.value.got
    first.release()
    first.release()
    assert not list(tmp_path.iterdir())
    RunLock(tmp_path).release()


def test_who_waited_while_the_file_was_removed_makes_it_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import outgrow.app.runs.lock as module

    lock, removed = module._try_lock, []

    def lock_late(file: module.BinaryIO) -> bool:
        if not removed:
            removed.append((tmp_path / NAME).unlink())
        return lock(file)

    monkeypatch.setattr(module, "_try_lock", lock_late)
    hold = RunLock(tmp_path)
    assert removed
    with pytest.raises(InputError):
        RunLock(tmp_path)
    hold.release()


def test_a_file_system_without_locks_is_told_of(tmp_path: Path, outgrow: Command, npz: Path, monkeypatch: Any) -> None:
    import fcntl

    lock = fcntl.flock

    def refuse(file: int, operation: int) -> None:
        if operation & fcntl.LOCK_NB:  # kernels are compiled in turn with others
            raise OSError(errno.ENOLCK, "No locks available")
        lock(file, operation)

    monkeypatch.setattr(fcntl, "flock", refuse)
    done = outgrow("train", npz, "--hidden", 4, "--epochs", 1, "--out", "run")
    assert done.code == 0
    assert "without locks" in done.err
    assert not Path("run", NAME).exists()


def test_a_process_that_is_killed_lets_go(tmp_path: Path) -> None:
    program = f"{HOLDER}; print('held', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process, killed(process):
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n", "it has ended"
        with pytest.raises(InputError) as caught:
            RunLock(tmp_path)
        assert f"process {process.pid} " in caught.value.got
    RunLock(tmp_path).release()


@pytest.mark.skipif(sys.platform == "win32", reason="signals of Unix")
def test_a_run_that_stands_still_keeps_its_directory(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = ("train", str(npz), "--hidden", "16", "--epochs", "100000", "--set", "checkpoint_every=1", "--out", str(out))
    command = [sys.executable, "-m", "outgrow", *args]
    with subprocess.Popen(command, stderr=subprocess.DEVNULL) as process, killed(process):
        deadline = time.monotonic() + 120
        while len(list(out.glob("checkpoint/*.pt"))) < 2:
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGSTOP)
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        refused = outgrow("train", "--out", out, "--resume", "--epochs", 200_000)
        assert refused.code == 2
        assert f"another run is at work in {out}" in refused.err
        assert f"process {process.pid} " in refused.err
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    done = outgrow("train", "--out", out, "--resume", "--epochs", 1)
    assert done.code == 0
    assert not (out / NAME).exists()


def test_nothing_stays_held(npz: Path, tmp_path: Path) -> None:
    graph, model = og.load(npz), og.nn.GCN(8, 4, 4)
    og.train(graph, model, epochs=1, out=tmp_path / "run", progress=False)
    assert not (tmp_path / "run" / NAME).exists()
    og.train(graph, model, epochs=2, out=tmp_path / "run", resume=True, progress=False)
    other = RunLock(tmp_path / "run")
    with pytest.raises(InputError, match="another run is at work"):
        og.train(graph, model, epochs=3, out=tmp_path / "run", resume=True, progress=False)
    other.release()
