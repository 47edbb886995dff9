"""Kills one of four workers with SIGKILL at a random moment, again and again, and looks at what becomes of the run.

    python tests/chaos/kill_workers.py                  # 2 runs
    python tests/chaos/kill_workers.py --runs 20 --seed 1 --json kills.json

Every run is `outgrow train wordnet --workers 4`. Half of them may not start again: they must end with exit code 1 and
name the worker and the signal, and with --resume reach the losses of a run that nobody disturbed, to the last bit. The
others have `--max-restarts 1` and must reach them by themselves. Nothing may hang or be left behind. Moments are
those of `MOMENTS` in turn, each a random one of its kind. The exit status is 1 if anything was not as promised.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil
from disturbed import (
    WORKERS,
    Ending,
    Kill,
    Place,
    children,
    left_in,
    loss_of,
    readable,
    sweep,
    violations,
    words_of,
    workers_of,
)

MOMENTS = ("start", "partition", "epochs", "checkpoint", "end")
_LOOK_SECONDS = 0.002


class Runs:
    """Runs of one command, each in a directory of its own below ``folder``.

    Args:
        folder: Where directories go.
        options: Of `_parse`.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self.draw = random.Random(options.seed)

    def place(self, name: str) -> Place:
        """A new place for a run."""
        place = Place(out=self.folder / name / "run", scratch=self.folder / name / "tmp")
        place.scratch.mkdir(parents=True)
        return place

    def start(self, place: Place, *given: str) -> tuple[subprocess.Popen[str], Path]:
        """Start the command; its standard error goes to the file."""
        log = place.out.parent / f"errors-{len(list(place.out.parent.glob('errors-*')))}.txt"
        command = [sys.executable, "-m", "outgrow", "train", *given, "--out", str(place.out)]
        environment = {**os.environ, "TMPDIR": str(place.scratch)}
        with log.open("w") as errors:
            process = subprocess.Popen(
                command, env=environment, stdout=subprocess.DEVNULL, stderr=errors, text=True, start_new_session=True
            )
        return process, log

    def new(self, restarts: int) -> list[str]:
        """Arguments of a run that starts."""
        options = self.options
        words = f"--workers {WORKERS} --epochs {options.epochs} --hidden {options.hidden} --max-restarts {restarts}"
        return [options.graph, *words.split(), "--set", f"checkpoint_every={options.checkpoint_every}"]

    def wait(self, process: subprocess.Popen[str], log: Path, place: Place) -> Ending:
        """Wait for a command, not too long; see what it has left."""
        code: int | None = None
        began = time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(self.options.timeout)
        seconds = time.monotonic() - began
        left = () if code is None else left_in(place)
        sweep(process, place)
        found = sorted((place.out / "checkpoint").glob("*"))
        return Ending(
            code=code,
            seconds=seconds,
            errors=log.read_text(),
            summary=place.summary,
            left=left,
            broken=tuple(path.name for path in found if path.suffix == ".pt" and not readable(path)),
            partial=tuple(path.name for path in (*found, *place.out.glob(".*")) if path.suffix == ".partial"),
            checkpoints=any(path.suffix == ".pt" for path in found),
            metrics=tuple(loss_of(line) for line in place.metrics),
        )

    def undisturbed(self, name: str) -> tuple[dict[str, Any], float, float]:
        """Summary of a run that nobody disturbs, and seconds until its first epoch ended and until its end."""
        place = self.place(name)
        began = time.monotonic()
        process, log = self.start(place, *self.new(0))
        while process.poll() is None and place.epochs == 0 and time.monotonic() - began < self.options.timeout:
            time.sleep(0.02)
        first = time.monotonic() - began
        ending = self.wait(process, log, place)
        if ending.code != 0 or ending.left:
            sys.exit(f"the run that nobody disturbs has failed: {ending}")
        return ending.summary, first, time.monotonic() - began

    def kill(self, process: subprocess.Popen[str], place: Place, moment: str, first: float) -> Kill:
        """Wait for the moment, then kill a worker; the one that leads, if it alone does what should be disturbed."""
        due = self._due(process, place, moment, first)
        rank = 0 if moment in ("partition", "checkpoint") else self.draw.randrange(WORKERS)
        victim: psutil.Process | None = None
        while process.poll() is None:
            if victim is None:
                victim = workers_of(process).get(rank)
            elif due():
                epochs = place.epochs
                with suppress(psutil.NoSuchProcess):
                    victim.kill()
                    done = any(place.scratch.glob(f"outgrow-*/attempt-*/result-{rank}"))
                    return Kill(moment=moment, rank=rank, epochs=epochs, done=done)
                break
            time.sleep(_LOOK_SECONDS)
        return Kill(moment=moment, epochs=place.epochs)

    def _due(self, process: subprocess.Popen[str], place: Place, moment: str, first: float) -> Callable[[], bool]:
        """Whether the moment has come; what is random of it is drawn here."""
        epochs = self.options.epochs
        if moment == "start":
            late = _after(lambda: True, self.draw.uniform(0, first))
            return lambda: late() or place.epochs > 0
        if moment == "partition":
            return lambda: any(
                word.endswith("metis_child.py") for child in children(process) for word in words_of(child)
            )
        if moment == "checkpoint":
            after = self.draw.randrange(epochs - 1)
            return lambda: place.epochs > after and any(place.out.glob("checkpoint/*.partial"))
        if moment == "end":
            return _after(lambda: place.epochs == epochs, self.draw.uniform(0, 0.3))
        at = self.draw.randrange(1, epochs)
        return _after(lambda: place.epochs >= at, self.draw.uniform(0, 0.5))


def _after(reached: Callable[[], bool], seconds: float) -> Callable[[], bool]:
    """Whether something was reached so long ago."""
    since: list[float] = []

    def due() -> bool:
        if not since and reached():
            since.append(time.monotonic())
        return bool(since) and time.monotonic() - since[0] >= seconds

    return due


def disturbed(runs: Runs, turn: int, first: float, reference: dict[str, Any]) -> dict[str, Any]:
    """One run and its kill, resumed if it ended early; what happened, and what was not as promised."""
    moments, restarts = runs.options.moments, runs.options.restarts
    moment = moments[turn % len(moments)]
    if restarts is None:
        restarts = turn // len(moments) % 2
    place = runs.place(f"run-{turn}")
    process, log = runs.start(place, *runs.new(restarts))
    kill = runs.kill(process, place, moment, first)
    ending = runs.wait(process, log, place)
    resumed = None
    if ending.code == 1:
        resumed = runs.wait(*runs.start(place, "--resume"), place)
    return {
        "turn": turn + 1,
        "restarts": restarts,
        **asdict(kill),
        "code": ending.code,
        "seconds": round(ending.seconds, 2),
        "said": next((line for line in ending.errors.splitlines() if "SIGKILL" in line), ""),
        "partial": ending.partial,
        "resumed": None if resumed is None else resumed.code,
        "violations": violations(kill, restarts, ending, resumed, reference),
    }


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All runs; says how each went."""
    runs = Runs(folder, options)
    compiled, _, _ = runs.undisturbed("compiles")
    reference, first, seconds = runs.undisturbed("undisturbed")
    if compiled["loss"] != reference["loss"]:
        sys.exit("two runs that nobody disturbed have other losses")
    _say(f"undisturbed: first epoch after {first:.1f} s, end after {seconds:.1f} s, loss {reference['loss'][-1]:.6f}")
    _say(f"{'run':>3} {'moment':<10} {'epochs':>6} {'worker':>6} {'restarts':>8} {'code':>4} {'s':>5} {'resumed':>7}")
    found = []
    for turn in range(options.runs):
        found.append(disturbed(runs, turn, first, reference))
        _say(_line(found[-1]))
    return found


def _line(row: dict[str, Any]) -> str:
    """A line of the table."""
    rank, resumed = ("-" if row[name] is None else row[name] for name in ("rank", "resumed"))
    code = "-" if row["code"] is None else row["code"]
    figures = f"{row['turn']:>3} {row['moment']:<10} {row['epochs']:>6} {rank:>6} {row['restarts']:>8} {code:>4}"
    notes = [*row["violations"]] or [f"as promised{'; it was done already' if row['done'] else ''}"]
    return f"{figures} {row['seconds']:>5.1f} {resumed:>7}  {'; '.join(notes)}"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--runs", type=int, default=2)
    add("--seed", type=int, default=0, help="of all random moments and workers")
    add("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS), help="taken in turn")
    add("--restarts", type=int, choices=(0, 1), help="for all runs; else 0 for all moments, then 1 for all, and so on")
    add("--graph", default="wordnet")
    add("--epochs", type=int, default=12)
    add("--hidden", type=int, default=16)
    add("--checkpoint-every", type=int, default=2)
    add("--timeout", type=float, default=120.0, help="longest time of a command, in seconds")
    add("--json", type=Path, help="file of the record")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run, show, write; 1 if anything was not as promised."""
    options = _parse(given)
    with tempfile.TemporaryDirectory() as folder:
        found = run(options, Path(folder))
    bad = sum(bool(row["violations"]) for row in found)
    missed = sum(row["rank"] is None for row in found)
    _say(f"{len(found)} runs, {bad} not as promised, {missed} over before they could be disturbed")
    if options.json:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": settings, "workers": WORKERS, "runs": found}, indent=1) + "\n")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
