"""Workers do what they are told, wherever the task comes from, and give back what they should."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numba
import psutil
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext

pytestmark = pytest.mark.real_processes

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)

SCRIPT = """
from outgrow.runtime.distributed.launch import run_workers

class Pair:
    def __init__(self, rank):
        self.rank = rank

def task(place):
    place.send_message(Pair(-place.comm.rank))
    return Pair(place.comm.rank)

told = []
print(sorted(pair.rank for pair in run_workers(task, 2, on_message=told.append) if type(pair) is Pair))
print(sorted(pair.rank for pair in told if type(pair) is Pair))
"""


class Seen:
    """What the workers of a run have found and told."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.results: list[dict[str, Any]] = []


def look(factor: int) -> Callable[[WorkerContext], dict[str, Any]]:
    """A task that says what it finds; it waits until it is asked to stop."""

    def task(place: WorkerContext) -> dict[str, Any]:
        rank = place.comm.rank
        total = place.comm.all_reduce(torch.tensor([rank + 1.0]))
        place.send_message(("first", rank))
        place.send_message(("second", rank))
        sys.stdout.write(f"printed by {rank}\nnumber {rank}")
        started = time.monotonic()
        while not place.should_stop() and time.monotonic() < started + 20:
            time.sleep(0.01)
        sockets = psutil.Process().net_connections()
        place.comm.barrier()
        return {
            "rank": rank,
            "total": factor * total,
            "settings": {name: value for name, value in os.environ.items() if name.endswith("_THREADS")},
            "threads": (torch.get_num_threads(), numba.get_num_threads()),
            "folder": (place.folder, place.folder.stat().st_mode & 0o777),
            "attempt": place.attempt,
            "stopped": place.should_stop(),
            "addresses": {socket.laddr.ip for socket in sockets if socket.laddr},
            "session": os.getsid(0),
            "directory": os.getcwd(),
        }

    return task


@pytest.fixture(scope="module")
def seen() -> Seen:
    """Two workers, started outside the main thread."""
    found = Seen()

    def run() -> None:
        found.results = run_workers(look(10), 2, on_message=found.told.append, should_stop=lambda: len(found.told) == 4)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    return found


def test_results_come_by_rank(seen: Seen) -> None:
    assert [result["rank"] for result in seen.results] == [0, 1]
    assert all(torch.equal(result["total"], torch.tensor([30.0])) for result in seen.results)
    assert {result["attempt"] for result in seen.results} == {0}


def test_what_each_worker_tells_is_heard_in_its_order(seen: Seen) -> None:
    for rank in (0, 1):
        assert [message for message, teller in seen.told if teller == rank] == ["first", "second"]


def test_workers_learn_that_they_should_stop(seen: Seen) -> None:
    assert all(result["stopped"] for result in seen.results)


def test_workers_share_the_cores(seen: Seen) -> None:
    count = max(1, len(os.sched_getaffinity(0)) // 2)
    for result in seen.results:
        assert set(result["settings"].values()) == {str(count)}
        assert {"OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"} <= set(result["settings"])
        assert result["threads"] == (count, count)


def test_workers_share_a_private_folder_that_is_removed(seen: Seen) -> None:
    [(folder, mode)] = {result["folder"] for result in seen.results}
    assert mode == 0o700
    assert not folder.exists()


def test_workers_listen_to_their_own_host_only(seen: Seen) -> None:
    assert [result["addresses"] for result in seen.results] == [{"127.0.0.1"}] * 2


def test_the_terminal_does_not_reach_workers(seen: Seen) -> None:
    assert len({os.getsid(0), *(result["session"] for result in seen.results)}) == 3


def test_workers_are_where_the_run_is(seen: Seen) -> None:
    assert {result["directory"] for result in seen.results} == {os.getcwd()}


@pytest.mark.usefixtures("scratch")
@pytest.mark.parametrize("way", [pytest.param("script", marks=pytest.mark.slow), "standard input"])
def test_classes_of_a_script_travel(way: str, tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    arguments = ["script.py"] if way == "script" else ["-"]
    done = subprocess.run(
        [sys.executable, *arguments], input=SCRIPT, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.stdout == "[0, 1]\n[-1, 0]\n", done.stderr
    assert done.stderr == ""


def busy_kernel(seconds: float) -> None:
    """Stay in a kernel that gives no way to Python, as ours do."""

    @numba.njit(nogil=True)
    def spin(rounds: int) -> int:
        x = 1
        for _ in range(rounds):
            x = (x * 6364136223846793005 + 1442695040888963407) & 0x7FFFFFFFFFFFFFFF
        return x

    spin(1)
    rounds, started = 100_000_000, time.process_time()
    spin(rounds)
    spin(int(rounds * seconds / (time.process_time() - started)))


def busy_power(seconds: float) -> None:
    """Compute, and hold Python's lock, for some seconds."""
    exponent, started = 3_000_000, time.process_time()
    assert 3**exponent
    assert 3 ** int(exponent * (seconds / (time.process_time() - started)) ** 0.63)  # Karatsuba's method, twice as long


def test_a_slow_worker_is_no_silent_one(scratch: Path, capfd: pytest.CaptureFixture[str]) -> None:
    kernel, power = busy_kernel, busy_power

    def task(place: WorkerContext) -> float:
        sys.stdout.write(f"printed by {place.comm.rank}\n")
        started = time.monotonic()
        if place.comm.rank == 0:
            kernel(4.5)
        else:
            power(4.5)
        seconds = time.monotonic() - started
        place.comm.barrier()
        return seconds

    before = [signal.getsignal(number) for number in SIGNALS]
    # worker 0 then waits and only beats: on a busy machine a beat may be two seconds late
    assert min(run_workers(task, 2, heartbeat_seconds=3)) > 3.3
    assert [signal.getsignal(number) for number in SIGNALS] == before
    printed = capfd.readouterr()
    assert (printed.out, printed.err) == ("", "printed by 0\n")


def test_a_task_that_cannot_travel(scratch: Path) -> None:
    lock = threading.Lock()
    with pytest.raises(InputError, match="lock"):
        run_workers(lambda place: lock.locked(), 2)
