"""One rival in a process of its own, watched from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent.parent
_LOOK_EVERY, _LEAST_FREE = 0.02, 1 << 30
_TAIL = 20
_FOLDERS = re.compile(r"(?<![\w.])(?:/[\w.+-]+)+/")


@dataclass(frozen=True, kw_only=True)
class Rival:
    """A library in one of its forms, under one set of settings.

    Attributes:
        name: What the table calls it.
        module: Module of this folder that runs it.
        form: How it is given the graph.
        python: Name of its environment; empty for the one that the benchmark runs in.
        models: Models that it can train in this form.
        settings: Environment variables on top of the number of threads.
    """

    name: str
    module: str
    form: str
    python: str
    models: frozenset[str]
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a process may use.

    Attributes:
        threads: Threads of every pool.
        memory_bytes: Private memory; a rival that needs more is reported as out of memory.
        seconds: Wall time after which it is stopped.
    """

    threads: int
    memory_bytes: int
    seconds: float


def run(python: Path, rival: Rival, job: Mapping[str, str], limits: Limits) -> dict[str, Any]:
    """Run a rival to its end.

    Args:
        python: The interpreter of its environment.
        rival: The rival.
        job: Options of `rivals.common.main`, but for form and memory limit.
        limits: What it may use.

    Returns:
        Its report with ``peak_anonymous_bytes`` and ``load`` (of the machine, before it started); or ``failed``,
        the reason in a few words.
    """
    command = [str(python), "-m", f"rivals.{rival.module}", "--form", rival.form]
    for name, value in {**job, "limit-bytes": str(limits.memory_bytes)}.items():
        command += [f"--{name}", value]
    load = os.getloadavg()[0]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        with subprocess.Popen(
            command, cwd=HERE, env=environment(limits.threads, rival.settings), stdout=out, stderr=err
        ) as process:
            samples, stopped = _watch(process, limits)
        out.seek(0)
        err.seek(0)
        lines, errors = out.read().splitlines(), err.read().splitlines()
    if stopped:
        return {"failed": stopped, "load": load}
    if process.returncode:
        # Folders are those of this machine, which no file of results names.
        tail = _FOLDERS.sub("", "\n".join(errors[-_TAIL:]))
        return {"failed": f"exit code {process.returncode}", "message": tail, "load": load}
    report: dict[str, Any] = json.loads(lines[-1])
    if "window" in report:
        first, last = report.pop("window")
        report["peak_anonymous_bytes"] = max((size for when, size in samples if first <= when <= last), default=0)
    return {**report, "load": load}


def environment(num_threads: int, settings: Mapping[str, str]) -> dict[str, str]:
    """That of this process, with ``num_threads`` in every pool, and else no such settings but those given."""
    taken = re.compile("OMP_|GOMP_|MKL_|NUMBA_|THP_|KMP_|PYTHONPATH")
    inherited = {name: value for name, value in os.environ.items() if not taken.match(name)}
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), str(num_threads))
    return {**inherited, **threads, "DGLBACKEND": "pytorch", **settings}


def _watch(process: subprocess.Popen[bytes], limits: Limits) -> tuple[list[tuple[float, int]], str]:
    """Sizes of the anonymous memory over time, and why the process was stopped (empty if it was not)."""
    began = time.monotonic()
    samples: list[tuple[float, int]] = []
    while process.poll() is None:
        samples.append((time.monotonic(), _anonymous(process.pid)))
        stopped = ""
        if samples[-1][1] > limits.memory_bytes:
            stopped = "out of memory"
        elif _free() < _LEAST_FREE:
            stopped = f"the machine ran out of memory at {samples[-1][1] / 2**30:.1f} GiB"
        elif time.monotonic() - began > limits.seconds:
            stopped = f"more than {limits.seconds:g} s"
        if stopped:
            process.kill()
            process.wait()
            return samples, stopped
        time.sleep(_LOOK_EVERY)
    return samples, ""


def _anonymous(pid: int) -> int:
    try:
        found = re.search(r"RssAnon:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    except OSError:  # it has just ended
        return 0
    return int(found[1]) * 1024 if found else 0


def _free() -> int:
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    assert found is not None
    return int(found[1]) * 1024
