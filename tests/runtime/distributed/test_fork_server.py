"""Workers are forked by a server that outlives runs, and never show what an earlier run or another worker has left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from outgrow.core.errors import WorkerError
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.runtime.distributed import fork_server, worker_processes
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext

pytestmark = [
    pytest.mark.usefixtures("scratch"),
    pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux"),
]


def parent_of_worker(place: WorkerContext) -> int:
    return os.getppid()


def test_one_server_for_all_runs() -> None:
    first = run_workers(parent_of_worker, 2)
    found: list[int] = []
    # The kernel takes the end of the thread that has started a process for the end of its parent.
    threads = [threading.Thread(target=lambda: found.extend(run_workers(parent_of_worker, 2))) for _ in range(2)]
    for thread in threads:
        thread.start()
        thread.join()
    assert {*first, *found} == {first[0]}
    assert psutil.Process(first[0]).ppid() == os.getpid()


def test_a_restart_forks_again() -> None:
    def task(place: WorkerContext) -> int:
        if place.attempt == 0:
            place.send_message(os.getppid())
            os.kill(os.getpid(), signal.SIGKILL)
        return os.getppid()

    heard: list[object] = []
    [server] = set(run_workers(task, 2, restarts=1, on_message=heard.append))
    assert server in heard


def test_another_environment_has_another_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_VARIABLE", "old")
    [old] = run_workers(parent_of_worker, 1)
    monkeypatch.setenv("A_VARIABLE", "new")
    [(new, value)] = run_workers(lambda place: (os.getppid(), os.environ["A_VARIABLE"]), 1)
    assert new != old
    assert value == "new"
    assert not psutil.pid_exists(old)


def test_a_user_module_is_never_stale(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    monkeypatch.syspath_prepend(tmp_path)
    servers = set()
    for value in ("1", "2"):
        (tmp_path / "module_of_user.py").write_text(f"VALUE = {value}")

        def task(place: WorkerContext) -> tuple[int, int]:
            from module_of_user import VALUE  # type: ignore[import-not-found]

            return VALUE, os.getppid()

        [(found, server)] = run_workers(task, 1)
        assert found == int(value)
        servers.add(server)
    assert len(servers) == 1


def test_workers_have_what_new_processes_have(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def task(place: WorkerContext) -> tuple[str, float, str, tuple[str, int]]:
        title = psutil.Process().cmdline()
        return os.getcwd(), float(np.random.random()), sys.stdin.read(), (title[3], int(title[5]))

    monkeypatch.chdir(tmp_path)
    found = run_workers(task, 2) + run_workers(task, 2)
    assert {folder for folder, *_ in found} == {str(tmp_path)}
    assert len({drawn for _, drawn, *_ in found}) == 4
    assert {read for *_, read, _ in found} == {""}
    assert [title for *_, title in found[:2]] == [("outgrow.runtime.distributed.worker_main", rank) for rank in (0, 1)]


def test_workers_have_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parallel loop would wait for ever if the server had started threads."""
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    monkeypatch.setenv(MODE_VARIABLE, "parallel")

    def task(place: WorkerContext) -> tuple[float, int]:
        from outgrow.ops.backend import threading_layer

        assert threading_layer() == "omp"
        total = float(torch.ones(4_000_000).sum())
        return total, psutil.Process().num_threads()

    for total, threads in run_workers(task, 2):
        assert total == 4_000_000
        assert threads > 2


def test_a_server_that_is_killed_ends_its_workers() -> None:
    def task(place: WorkerContext) -> int:
        if place.attempt == 0 and place.comm.rank == 1:
            os.kill(os.getppid(), signal.SIGKILL)
        place.comm.barrier()
        return place.attempt

    with pytest.raises(WorkerError, match="was killed by SIGKILL"):
        run_workers(task, 2)
    assert run_workers(task, 2, restarts=1) == [1, 1]


@pytest.mark.real_processes
def test_a_server_that_cannot_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch.py").write_text("raise ValueError('no such torch')")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(WorkerError, match="ended with exit code 1") as caught:
        run_workers(parent_of_worker, 1)
    assert "no such torch" in caught.value.report


RUN = """
import os
from outgrow.runtime.distributed.launch import run_workers

print(*run_workers(lambda place: os.getppid(), 1), flush=True)
input()
"""


@pytest.mark.parametrize("end", ["killed", "normal"])
def test_an_idle_server_ends_with_its_launcher(end: str) -> None:
    with subprocess.Popen([sys.executable, "-c", RUN], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        server = psutil.Process(int(run.stdout.readline()))
        if end == "killed":
            run.kill()
    server.wait(10)


def test_a_fork_of_the_launcher_does_not_keep_the_server() -> None:
    [server] = run_workers(parent_of_worker, 1)
    child = os.fork()
    if not child:
        os._exit(len(fork_server._idle))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert run_workers(parent_of_worker, 1) == [server]


def test_interpreters_where_forks_are_not_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_processes, "can_fork", lambda: False)

    def task(place: WorkerContext) -> int:
        if place.comm.rank == 1 and place.attempt == 0:
            os._exit(3)
        place.comm.barrier()
        return os.getppid()

    heard: list[object] = []
    assert run_workers(task, 2, restarts=1, on_message=heard.append) == [os.getpid()] * 2
    assert "worker 1 of 2 ended with exit code 3" in str(heard[0])


def test_a_system_that_starts_no_more_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object, **options: object) -> None:
        raise BlockingIOError("Resource temporarily unavailable")

    monkeypatch.setattr(worker_processes, "can_fork", lambda: False)
    monkeypatch.setattr(worker_processes.InterpreterWorkers, "_start", refuse)
    with pytest.raises(WorkerError, match="cannot be started") as caught:
        run_workers(parent_of_worker, 2)
    assert "temporarily unavailable" in caught.value.got
