"""Workers that torchrun has started, and what a worker writes down when it fails."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from outgrow.core.errors import InputError
from outgrow.runtime.distributed.comm import CommunicationError
from outgrow.runtime.distributed.worker import make_failure_record
from outgrow.runtime.system.environment import torchrun_world_size

TASK = """
import json, os, signal, sys
from outgrow.runtime.system.environment import set_thread_environment
set_thread_environment()
from outgrow.runtime.system.environment import torchrun_world_size
from outgrow.runtime.distributed.worker import run_under_torchrun

assert torchrun_world_size()

def task(place):
    if place.comm.rank == 1:
        if "silent" in sys.argv:
            os.kill(os.getpid(), signal.SIGSTOP)
        if "raises" in sys.argv:
            raise ValueError("no such number")
    place.comm.barrier()
    place.send_message(place.comm.all_gather_object(place.comm.rank))
    threads = [os.environ[name] for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")]
    return {"rank": place.comm.rank, "folder": str(place.folder), "threads": threads, "stop": place.should_stop()}

heard = []
heartbeat = 4 if "silent" in sys.argv else 20
result = run_under_torchrun(task, heartbeat_seconds=heartbeat, on_message=heard.append, should_stop=lambda: True)
with open(f"{sys.argv[1]}/{result['rank']}", "w") as file:
    json.dump([result, heard, os.path.exists(result["folder"])], file)
"""


def torchrun(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the task in two processes."""
    script = folder / "script.py"
    script.write_text(TASK)
    settings = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, str(script), str(folder), *words], env=settings, capture_output=True, text=True, check=False
    )


def test_a_group_of_torchrun(tmp_path: Path, scratch: Path) -> None:
    done = torchrun(tmp_path)
    assert done.returncode == 0, done.stderr
    seen = [json.loads((tmp_path / str(rank)).read_text()) for rank in (0, 1)]
    share = str(max(1, len(os.sched_getaffinity(0)) // 2))
    for rank, (result, heard, left) in enumerate(seen):
        assert (result["rank"], heard, left) == (rank, [[0, 1]], False)
        assert result["threads"] == [share] * 3
        assert result["stop"]
    [folder] = {result["folder"] for result, _, _ in seen}
    assert Path(folder).parent == scratch


def test_a_silent_worker_of_torchrun_is_killed_by_its_neighbour(tmp_path: Path, scratch: Path) -> None:
    done = torchrun(tmp_path, "silent")
    assert done.returncode == 1
    assert "worker 1 of 2 was silent for 5 s and was killed" in done.stderr
    cause = done.stderr[done.stderr.index("Root Cause") :]
    assert "(SIGKILL)" in cause
    assert "local_rank: 1" in cause


@pytest.mark.slow
def test_a_worker_of_torchrun_that_fails_is_to_blame(tmp_path: Path, scratch: Path) -> None:
    done = torchrun(tmp_path, "raises")
    assert done.returncode == 1
    assert "failed: ValueError: no such number" in done.stderr
    cause = done.stderr[done.stderr.index("Root Cause") :]
    assert "ValueError: no such number" in cause
    assert "CommunicationError" not in done.stderr


def test_outside_of_a_group(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.setenv(name, "1")
    assert torchrun_world_size()
    monkeypatch.delenv("RANK")
    assert not torchrun_world_size()


def test_what_a_worker_writes_down() -> None:
    try:
        raise InputError("no graph", needed="a graph", got="nothing", repair="give one")
    except InputError as error:
        record = pickle.loads(pickle.dumps(make_failure_record(error)))
    assert record.message == "outgrow.core.errors.InputError: no graph"
    assert isinstance(record.error, InputError)
    assert record.error.repair == "give one"
    assert not record.is_peer_failure


@pytest.mark.parametrize("chained", [True, False])
def test_errors_that_come_from_a_lost_peer_are_told_apart(chained: bool) -> None:
    try:
        try:
            raise CommunicationError("connection closed")
        except CommunicationError as lost:
            if chained:
                raise ValueError("while it was handled") from lost
            raise KeyError("while it was handled")  # noqa: B904
    except (ValueError, KeyError) as error:
        record = make_failure_record(error)
    assert record.is_peer_failure
    assert record.error is None
    assert "connection closed" in record.report
