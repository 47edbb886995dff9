"""Processes that begin as forks are seen by others as those that were started."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch

from outgrow.runtime.distributed import fork_server
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from process_forks import fork_processes

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux")
COMMAND = [sys.executable, "-m", "outgrow"]


def is_forked(process: int) -> bool:
    """Whether a process has the room in its environment that servers have."""
    return len(Path(f"/proc/{process}/environ").read_bytes()) > 8000


def test_output_and_exit_codes() -> None:
    with fork_processes():
        told = subprocess.run([*COMMAND, "--version"], capture_output=True, text=True, check=True)
        refused = subprocess.run([*COMMAND, "info", "no-such"], capture_output=True, text=True, check=False)
    assert told.stdout.startswith("outgrow ")
    assert told.stderr == ""
    assert refused.returncode == 2
    assert "no-such" in refused.stderr


def test_it_looks_as_if_it_had_been_started(tmp_path: Path) -> None:
    words = [*COMMAND, "train", "wordnet", "--epochs", "100000", "--out", "run"]
    settings = {**os.environ, "TMPDIR": str(tmp_path)}
    with (
        fork_processes(),
        subprocess.Popen(words, cwd=tmp_path, env=settings, stderr=subprocess.PIPE, start_new_session=True) as process,
    ):
        assert process.stderr is not None
        assert process.stderr.readline()  # it is under way
        seen = psutil.Process(process.pid)
        assert is_forked(process.pid)
        assert seen.ppid() == os.getpid()
        assert seen.cmdline() == words
        assert seen.environ() == settings
        assert seen.cwd() == str(tmp_path)
        assert os.getsid(process.pid) == process.pid
        assert seen.children()  # its own server
        below = seen.children()
        process.kill()
        assert process.wait() == -signal.SIGKILL
        _, alive = psutil.wait_procs(below, timeout=30)
        assert not alive


def look(place: WorkerContext) -> tuple[int, bool, str, int]:
    launcher = psutil.Process(os.getppid()).ppid()
    return launcher, is_forked(os.getpid()), os.environ["OMP_NUM_THREADS"], torch.get_num_threads()


@pytest.mark.parametrize("threads", [1, 2])
def test_workers(threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", str(threads))
    with fork_processes():
        run_workers(look, 2)  # the second processes with their environment are forked, if no earlier test had any
        fork_server._close_idle()
        found = run_workers(look, 2)
    assert found == [(os.getpid(), True, str(threads), threads)] * 2


@pytest.mark.real_processes
def test_a_test_may_have_its_processes_started() -> None:
    assert subprocess.Popen._execute_child.__module__ == "subprocess"  # type: ignore[attr-defined]
