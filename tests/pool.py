"""Workers that wait for work. To start a process and load torch there takes seconds; suites need hundreds of runs.

A waiting worker is a process of its own, and does a task as one that `runtime/distributed/launch.py` has started does:
by `runtime/distributed/worker.py`, over gloo, in a group that is new for each task, in the folder and with the settings
of the process that asks. When anything goes wrong all of them are ended, and the next task is given to new ones. How
workers are started, watched and ended is the matter of tests that use the launcher itself.
"""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from outgrow.core.process import end_with_parent
from outgrow.runtime.distributed.failures import WorkerExit, root_cause_error
from outgrow.runtime.distributed.job_files import JobFiles, JobSpec, MessageReader, read_last_lines, serialize_by_value
from outgrow.runtime.distributed.worker import WorkerContext, loopback_interface
from outgrow.runtime.system.environment import gc_paused_import, thread_environment

T = TypeVar("T")
SHARE = 4
"""Workers get as many threads as this number of them may have: most tasks are for two to four."""
LOOK_SECONDS = 0.005
SETTLE_SECONDS = 3.0  # after the first failure: the others lose it, and write down what they have seen


class Pool:
    """The waiting workers of a test process; there are as many as the largest task has asked for.

    Args:
        folder: Where tasks and outputs of workers lie, an empty folder that outlives the workers.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.started, self.tasks = folder, 0, 0
        self.workers: list[tuple[subprocess.Popen[str], Path]] = []

    def run(
        self,
        task: Callable[[WorkerContext], T],
        workers: int,
        *,
        prepare: Callable[[Path], object] = lambda folder: None,
        on_message: Callable[[object], None] = lambda message: None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> list[T]:
        """What each worker's task gives, by rank: see `outgrow.runtime.distributed.launch.run_workers`."""
        sent = serialize_by_value(task)
        self.tasks += 1
        scratch = JobFiles(self.folder / f"task-{self.tasks}" / "attempt-0")
        scratch.folder.mkdir(parents=True)
        try:
            prepare(scratch.run_folder)
            scratch.task_path.write_bytes(sent)
            scratch.write_job_spec(JobSpec(workers=workers, attempt=0, parent=os.getpid()))
            return self._watched(scratch, workers, on_message, should_stop)
        except BaseException:
            self.close()
            raise
        finally:
            shutil.rmtree(scratch.run_folder, ignore_errors=True)

    def close(self) -> None:
        """End all workers; the next task starts new ones."""
        for process, _ in self.workers:
            process.kill()
        for process, _ in self.workers:
            process.communicate()
        self.workers = []

    def _watched(
        self, scratch: JobFiles, workers: int, on_message: Callable[[object], None], should_stop: Callable[[], bool]
    ) -> list[Any]:
        while len(self.workers) < workers:
            self.workers.append(self._new_worker())
        ranks, used = range(workers), self.workers[:workers]
        listeners = [MessageReader(scratch.messages_path(rank)) for rank in ranks]
        given = {"folder": str(scratch.folder), "cwd": str(Path.cwd()), "environ": _settings()}
        shown = used[0][1].stat().st_size
        for rank, (process, _) in enumerate(used):
            assert process.stdin is not None
            process.stdin.write(json.dumps({**given, "rank": rank}) + "\n")
            process.stdin.flush()
        deadline = float("inf")
        while not (done := all(scratch.result_path(rank).exists() for rank in ranks)):
            if should_stop():
                scratch.request_stop()
            _pass_on(listeners, on_message)
            ended = [process.poll() is not None for process, _ in used]
            if any(ended) and deadline == float("inf"):
                deadline = time.monotonic() + SETTLE_SECONDS
            if all(ended) or time.monotonic() > deadline:
                break
            time.sleep(LOOK_SECONDS)
        _pass_on(listeners, on_message)
        sys.stderr.write(used[0][1].read_bytes()[shown:].decode("utf-8", "replace"))
        if not done:
            raise root_cause_error([_ending(scratch, rank, *used[rank]) for rank in ranks], workers)
        return [pickle.loads(scratch.result_path(rank).read_bytes()) for rank in ranks]

    def _new_worker(self) -> tuple[subprocess.Popen[str], Path]:
        """A process that waits, and the file of what it prints."""
        self.started += 1
        output = self.folder / f"output-{self.started}"
        command = [sys.executable, "-P", __file__]
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=file, stderr=file, env=_settings(), text=True
            )
        return process, output


def _settings() -> dict[str, str]:
    """The environment of workers, as it is now."""
    path = os.pathsep.join(path or os.getcwd() for path in sys.path)
    own = {"GLOO_SOCKET_IFNAME": loopback_interface(), "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}
    return {**os.environ, **thread_environment(SHARE), **own}


def _pass_on(listeners: list[MessageReader], on_message: Callable[[object], None]) -> None:
    for listener in listeners:
        for message in listener.read_messages():
            on_message(message)


def _ending(scratch: JobFiles, rank: int, process: subprocess.Popen[str], output: Path) -> WorkerExit:
    record = scratch.failure_path(rank)
    return WorkerExit(
        rank=rank,
        silent_seconds=None,
        exit_code=process.poll(),
        record=pickle.loads(record.read_bytes()) if record.exists() else None,
        output=read_last_lines(output),
    )


_pool: Pool | None = None


def run_workers(task: Callable[[WorkerContext], T], workers: int, **options: Any) -> list[T]:
    """What each worker's task gives, by rank, on workers that wait: see `Pool.run`."""
    global _pool
    if _pool is None:
        _pool = Pool(Path(tempfile.mkdtemp(prefix="tests-pool-", dir=_TEMPORARY)))
    return _pool.run(task, workers, **options)


def as_launched(
    task: Callable[[WorkerContext], T],
    workers: int,
    *,
    heartbeat_seconds: float = 30.0,
    restarts: int = 0,
    **options: Any,
) -> list[T]:
    """In the place of the launcher: what it does where nothing goes wrong, nobody being watched or started again."""
    return run_workers(task, workers, **options)


def end() -> None:
    """End the waiting workers of this process."""
    global _pool
    if _pool is not None:
        _pool.close()
        shutil.rmtree(_pool.folder, ignore_errors=True)
    _pool = None


_TEMPORARY = tempfile.gettempdir()  # of the session; that of a test is empty when it ends


def _wait_for_work() -> None:
    end_with_parent()
    lines = os.fdopen(os.dup(0), encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    with gc_paused_import():
        from outgrow.runtime.distributed.worker import run_task
    for line in lines:
        given = json.loads(line)
        os.chdir(given["cwd"])
        os.environ.clear()
        os.environ.update(given["environ"])
        tempfile.tempdir = None  # it was found out in the settings of an earlier task
        sys.path += [path for path in given["environ"]["PYTHONPATH"].split(os.pathsep) if path not in sys.path]
        run_task(JobFiles(Path(given["folder"])), given["rank"])
        os.chdir("/")


if __name__ == "__main__":
    _wait_for_work()
