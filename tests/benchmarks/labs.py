"""What tests of simulated hosts share."""

import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import netlab_end
import psutil

NETLAB = Path(__file__).parents[2] / "benchmarks" / "netlab.py"
LONG = "sleep 300"


def shell(lab: Any, *scripts: str) -> Any:
    return lab.run([["sh", "-c", script] for script in scripts])


def left_of(pid: int) -> list[str]:
    """Namespaces, folders and processes of the labs that a process has made."""
    begin = f"netlab-{pid}-"
    places = [
        path for place in (netlab_end.NAMESPACES, netlab_end.folder("x").parent) for path in place.glob(f"{begin}*")
    ]
    found = [str(path) for path in places]
    for process in psutil.process_iter():
        try:
            mark, command = process.environ().get(netlab_end.MARK, ""), process.cmdline()
            if mark.startswith(begin) or any(word.startswith(begin) for word in command):
                found.append(" ".join(command))
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return found


def running(lab: Any) -> list[str]:
    """Processes in a lab's namespaces, and of its commands elsewhere."""
    inside = [
        subprocess.check_output(["ip", "netns", "pids", lab.namespace(host)], text=True) for host in range(lab.hosts)
    ]
    return " ".join(inside).split() + [what for what in left_of(os.getpid()) if what == LONG]


def wait_for(true: Callable[[], bool], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def start(*arguments: str) -> "subprocess.Popen[str]":
    command = [sys.executable, str(NETLAB), *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
