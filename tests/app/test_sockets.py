"""Where runs listen: on the loopback interface alone, unless a cluster's address is given."""

from __future__ import annotations

import ipaddress
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

TRAIN = ("-m", "outgrow", "train")
SMALL = ("--model", "gcn", "--hidden", "8", "--epochs", "100000")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
Ports = dict[int, set[str]]


def listening_by_ss(pids: set[int]) -> Ports:
    """Addresses on which each of the processes listens."""
    if shutil.which("ss") is None:
        pytest.skip("needs ss, of iproute2")
    lines = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
    found: Ports = {}
    for line in lines:
        address = line.split()[3].rpartition(":")[0].strip("[]").partition("%")[0]
        for pid in map(int, re.findall(r"pid=(\d+)", line)):
            if pid in pids:
                found.setdefault(pid, set()).add("0.0.0.0" if address == "*" else address)
    return found


def listening_by_psutil(pids: set[int]) -> Ports:
    """The same, asked of each process."""
    found: Ports = {}
    for pid in pids:
        with suppress(psutil.Error):
            for connection in psutil.Process(pid).net_connections("tcp"):
                if connection.status == psutil.CONN_LISTEN:
                    found.setdefault(pid, set()).add(connection.laddr.ip)
    return found


def others_reach(addresses: set[str]) -> set[str]:
    """Those of the addresses that are not on the loopback interface."""
    return {address for address in addresses if not ipaddress.ip_address(address).is_loopback}


def is_worker(words: list[str]) -> bool:
    """Whether a process of these words is a worker, of our own or of torchrun."""
    starts_others = "--workers" in words or "torch.distributed.run" in words
    return "outgrow.runtime.distributed.worker_main" in words or ("train" in words and not starts_others)


def workers_of(processes: list[psutil.Process]) -> set[int]:
    """Those that are workers; a child of one has its words until it turns into the command that it is to be."""
    alike: dict[int, int] = {}
    for one in processes:
        with suppress(psutil.Error):
            if is_worker(one.cmdline()):
                alike[one.pid] = one.ppid()
    return {pid for pid, parent in alike.items() if parent not in alike}


def seen_while_training(command: list[str], out: Path, look: Callable[[set[int]], Ports]) -> tuple[Ports, set[int]]:
    """Where a run listens at any time until its third epoch, and which processes are workers; then it is ended."""
    seen: Ports = {}
    workers: set[int] = set()
    log = out.with_suffix(".txt")
    with log.open("wb") as errors:
        process = subprocess.Popen([*command, "--out", str(out)], stdout=errors, stderr=errors, start_new_session=True)
    try:
        end = time.monotonic() + 200
        while not (out / "metrics.jsonl").exists() or len((out / "metrics.jsonl").read_text().splitlines()) < 3:
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < end, log.read_text()
            every = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            for new in workers_of(every) - workers:
                seen.pop(new, None)  # sockets of the process that it was forked from
                workers.add(new)
            for pid, addresses in look({one.pid for one in every}).items():
                seen.setdefault(pid, set()).update(addresses)
            time.sleep(0.1)
    finally:
        end_of(process)
    return seen, workers


def end_of(process: subprocess.Popen[bytes]) -> None:
    """Ask the run to end, so that it clears up, and kill what has not after a while."""
    children = psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(timeout=30)
    process.kill()
    process.wait()
    for one in psutil.wait_procs(children, timeout=30)[1]:
        with suppress(psutil.Error):
            one.kill()


@pytest.mark.parametrize("look", [listening_by_ss, listening_by_psutil])
def test_workers_of_one_host_listen_on_loopback_only(npz: Path, tmp_path: Path, look: Callable[..., Ports]) -> None:
    command = [sys.executable, *TRAIN, str(npz), *SMALL, "--workers", "2"]
    seen, workers = seen_while_training(command, tmp_path / "run", look)
    assert len(workers) == 2
    assert workers <= seen.keys(), "workers listen for one another"
    assert not others_reach(set().union(*seen.values()))


@pytest.mark.slow
def test_a_group_of_torchrun_on_one_host_listens_on_loopback_only(npz: Path, tmp_path: Path) -> None:
    """What torchrun itself listens on, for the store of the group, is its own: any interface."""
    command = [*TORCHRUN, *TRAIN, str(npz), *SMALL]
    seen, workers = seen_while_training(command, tmp_path / "run", listening_by_psutil)
    assert len(workers) == 2
    assert workers <= seen.keys()
    assert not others_reach(set().union(*(seen[pid] for pid in workers)))


def test_what_is_no_loopback_is_found() -> None:
    assert others_reach({"127.0.0.1", "::1", "127.0.1.1"}) == set()
    assert others_reach({"0.0.0.0", "::", "192.0.2.1", "127.0.0.1"}) == {"0.0.0.0", "::", "192.0.2.1"}
