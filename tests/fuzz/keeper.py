"""The side that hands inputs to the watched process, starts it again when it has died, and judges its answers."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cases import ACCEPTED, REFUSED, Case

HERE = Path(__file__).parent
MORE_BYTES, TIMES = 512 << 20, 64
_START_SECONDS = 120.0
_RENEWED = 5000  # inputs, after which a process ends, so that none grows old


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of an input.

    Attributes:
        outcome: `ACCEPTED`, `REFUSED`, or what else.
        why: What the error said.
        seconds: Until the answer.
        memory: Bytes that it took at the most.
        violations: What was not as promised.
    """

    outcome: str
    why: str = ""
    seconds: float = 0.0
    memory: int = 0
    violations: tuple[str, ...] = ()


class Keeper:
    """One watched process at a time. To be closed.

    Args:
        reader: Name of the reader, or ``module:function`` of another.
        folder: An empty folder.
        warm: Inputs that a new process reads first, unwatched: what is imported late or compiled is there afterwards.
        seconds: Longest time for an input.
    """

    def __init__(self, reader: str, folder: Path, warm: list[Case], seconds: float) -> None:
        self._reader, self._folder, self._warm, self._seconds = reader, folder, warm, seconds
        self._process: subprocess.Popen[str] | None = None
        self._read = 0
        self.starts = 0
        for name in ("cwd", "tmp", "out", "input"):
            (folder / name).mkdir()

    def judge(self, case: Case, *, convert: bool = False) -> Verdict:
        """Have an input read, and compare with what is promised."""
        if self._process is None or self._read >= _RENEWED:
            self.close()
            self._start()
        self._read += 1
        verdict = self._ask(case, convert=convert, warm=False, seconds=self._seconds)
        wrong = list(verdict.violations)
        if verdict.outcome not in (ACCEPTED, REFUSED):
            wrong.append(verdict.outcome)
        elif case.expected not in (None, verdict.outcome):
            wrong.append(f"{verdict.outcome} what should be {case.expected}")
        if verdict.memory > bound_of(case):
            wrong.append(f"{verdict.memory >> 20} MiB for {case.size} bytes")
        return replace(verdict, violations=tuple(wrong + self._left(convert and verdict.outcome == ACCEPTED)))

    def close(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            for pipe in (self._process.stdin, self._process.stdout):
                assert pipe
                pipe.close()
        self._process, self._read = None, 0

    def _start(self) -> None:
        one = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS", "MALLOC_ARENA_MAX"), "1")
        settings = {**os.environ, **one, "TMPDIR": str(self._folder / "tmp"), "ARROW_DEFAULT_MEMORY_POOL": "system"}
        settings["PYTHONPATH"] = os.pathsep.join([str(HERE), *(path for path in sys.path if path)])
        settings["PYTHONDONTWRITEBYTECODE"] = settings["PYTHONFAULTHANDLER"] = "1"
        with (self._folder / "errors").open("wb") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", str(HERE / "watched.py"), self._reader, str(self._folder)],
                cwd=self._folder / "cwd",
                env=settings,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
            )
        self.starts += 1
        for case in self._warm:
            for convert in (False, True):
                told = self._ask(case, convert=convert, warm=True, seconds=_START_SECONDS)
                if self._process is None:
                    raise RuntimeError(f"no process that reads: {told.outcome}: {told.why}")
                self._left(True)

    def _ask(self, case: Case, *, convert: bool, warm: bool, seconds: float) -> Verdict:
        assert self._process
        assert self._process.stdin
        assert self._process.stdout
        folder = self._folder / "input"
        shutil.rmtree(folder)
        folder.mkdir()
        case.write(folder)
        question = {"folder": str(folder), "main": case.main, "options": case.options, "bound": 2 * bound_of(case)}
        question |= {"out": str(self._folder / "out") if convert else None, "warm": warm}
        began = time.monotonic()
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
            ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        except BrokenPipeError:
            ready = [self._process.stdout]
        took = time.monotonic() - began
        answer = self._process.stdout.readline() if ready else ""
        if answer:
            told: dict[str, Any] = json.loads(answer)
            wrong = tuple(f"has done {event}" for event in told["events"])
            return Verdict(
                outcome=told["outcome"], why=told["why"], seconds=took, memory=told["memory"], violations=wrong
            )
        return Verdict(outcome=self._ending(hung=not ready), why=self._errors(), seconds=took)

    def _ending(self, *, hung: bool) -> str:
        """How the process has ended, or that it had to be ended."""
        assert self._process
        process = self._process
        if hung:
            self.close()
            return f"took more than {self._seconds:.0f} s"
        code = process.wait()
        self.close()
        return f"died by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"

    def _errors(self) -> str:
        return (self._folder / "errors").read_text(errors="replace")[-2000:]

    def _left(self, made: bool) -> list[str]:
        """What an input has left behind, which is removed."""
        left = []
        for name, allowed in (("cwd", []), ("tmp", []), ("out", ["made.store"] if made else [])):
            for path in (self._folder / name).iterdir():
                if path.name not in allowed:
                    left.append(f"left {name}/{path.name}")
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        return left


def bound_of(case: Case) -> int:
    """Most bytes that reading an input may take."""
    return MORE_BYTES + TIMES * case.size
