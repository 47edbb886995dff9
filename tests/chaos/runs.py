"""Disturbs runs of every strategy at random moments, again and again, and looks at what becomes of them.

    python tests/chaos/runs.py                                   # 2 runs
    python tests/chaos/runs.py --runs 100 --seed 1 --json chaos.json
    python tests/chaos/runs.py --runs 20 --strategies full --faults kill restart

Every run is `outgrow train` on a small graph. Strategies, faults and kinds of moments take turns; all else is drawn
from the seed. A run must end with an error that says what happened, and then reach with --resume the losses of a run
that nobody disturbed, to the last bit; or it must go on to them. Nothing may hang or be left behind. The exit status is
1 if anything was not as promised. Faults that need root or what this machine lacks are left out, which is said.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

from command import Run
from faults.base import Fault, UnavailableError
from faults.table import FAULTS
from judge import verdict
from moments import MOMENTS, wait_for
from summary import summary, table
from workloads import STRATEGIES, Workload, make_store, workload

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))


@dataclass(frozen=True, kw_only=True)
class Reference:
    """A run that nobody disturbed.

    Attributes:
        summary: Its summary and its metrics.
        first_seconds: When its first epoch had ended.
        seconds: How long it took.
    """

    summary: dict[str, Any]
    first_seconds: float
    seconds: float


class Runs:
    """Runs, each in a directory of its own below ``folder``.

    Args:
        folder: Where directories go.
        options: Of `_parse`.
    """

    def __init__(self, folder: Path, options: argparse.Namespace) -> None:
        self.folder, self.options = folder, options
        self._references: dict[Workload, Reference] = {}
        make_store(folder / "store")

    def new(self, name: str, work: Workload, seed: str = "") -> Run:
        """A run that has not begun, with a store of its own."""
        folder = self.folder / name
        shutil.copytree(self.folder / "store", folder / "store")
        return Run(folder=folder, workload=work, draw=random.Random(seed))

    def reference(self, work: Workload) -> Reference:
        """The run that nobody disturbs."""
        if work not in self._references:
            run = self.new(f"undisturbed-{work.strategy}-{work.workers}", work)
            run.new([])
            while not run.over and run.place.epochs == 0 and time.monotonic() - run.began < self.options.timeout:
                time.sleep(0.02)
            first = time.monotonic() - run.began
            ending = run.wait(self.options.timeout)
            if ending.code != 0 or ending.left:
                sys.exit(f"the run that nobody disturbs has failed: {ending}")
            summary = {**ending.summary, "metrics": ending.metrics}
            self._references[work] = Reference(summary=summary, first_seconds=first, seconds=ending.seconds)
            _say(f"undisturbed: {work.strategy} on {work.workers}: {first:.1f} s, {ending.seconds:.1f} s")
        return self._references[work]

    def disturbed(self, turn: int, strategy: str, name: str) -> dict[str, Any]:
        """One run and what happens to it, resumed if it ended early; what was not as promised."""
        entry, rounds = FAULTS[name], turn // (len(self.options.strategies) * len(self.options.faults))
        work = workload(strategy, turn // len(self.options.strategies) + rounds, entry.workers)
        reference = self.reference(work)
        run = self.new(f"run-{turn}", work, f"{self.options.seed} {turn}")
        run.first_seconds = reference.first_seconds
        moment = self.options.moments[run.draw.randrange(len(self.options.moments))]
        seconds = self.options.stop_seconds if turn < self.options.long_stops else self.options.short_stop_seconds
        row = {"turn": turn + 1, "strategy": strategy, "workers": work.workers, "fault": name, "moment": moment}
        fault = entry.make(seconds)
        try:
            return {**row, **self._disturb(run, fault, moment, reference)}
        except UnavailableError as error:
            return {**row, "outcome": "left out", "reason": str(error), "violations": []}
        finally:
            with suppress(OSError):
                fault.mend(run)
            run.stack.close()
            if not self.options.keep:
                shutil.rmtree(run.folder, ignore_errors=True)

    def _disturb(self, run: Run, fault: Fault, moment: str, reference: Reference) -> dict[str, Any]:
        fault.ready(run)
        run.new(fault.words)
        promise, struck, epochs = None, time.monotonic(), 0
        if wait_for(run, moment):
            struck, epochs = time.monotonic(), run.place.epochs
            promise = fault.strike(run)
        ending = run.wait(self.options.timeout, struck)
        fault.mend(run)
        resumed = None
        if ending.code:
            run.resume()
            resumed = run.wait(self.options.timeout)
        found = verdict(promise, ending, resumed, reference.summary)
        errors = [line for line in ending.errors.splitlines() if line.startswith("error: ")]
        row = {
            "what": None if promise is None else promise.what,
            "epochs": epochs,
            "code": ending.code,
            "seconds": round(ending.seconds, 2),
            "said": errors[0] if errors else "",
            "resumed": None if resumed is None else resumed.code,
            **asdict(found),
        }
        if found.violations:
            row["errors"] = ending.errors[-6000:] + ("" if resumed is None else "\nRESUMED\n" + resumed.errors[-3000:])
        return row


def run(options: argparse.Namespace, folder: Path) -> list[dict[str, Any]]:
    """All runs; says how each went."""
    runs, found = Runs(folder, options), []
    _say(f"{'run':>3} {'strategy':<12} {'on':>2} {'fault':<13} {'moment':<10} {'epochs':>6} {'code':>4} {'s':>6}")
    for turn in range(options.first - 1, options.first - 1 + options.runs):
        strategy = options.strategies[turn % len(options.strategies)]
        fault = options.faults[turn // len(options.strategies) % len(options.faults)]
        found.append(runs.disturbed(turn, strategy, fault))
        _say(_line(found[-1]))
        if options.json:
            write(options, found)
    return found


def write(options: argparse.Namespace, found: list[dict[str, Any]]) -> None:
    """The record so far."""
    import record

    places = ("folder", "json")
    settings = {name: value for name, value in vars(options).items() if name not in places}
    record.write("chaos", {"parameters": settings, "faults": summary(found), "runs": found}, options.json)


def _line(row: dict[str, Any]) -> str:
    """A line of the table."""
    begin = f"{row['turn']:>3} {row['strategy']:<12} {row['workers']:>2} {row['fault']:<13} {row['moment']:<10}"
    if row["outcome"] == "left out":
        return f"{begin} left out: {row['reason']}"
    code = "-" if row["code"] is None else row["code"]
    notes = "; ".join(row["violations"]) or f"as promised: {row['outcome']}"
    return f"{begin} {row['epochs']:>6} {code:>4} {row['seconds']:>6.1f}  {notes}  [{row['said'][:100]}]"


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def _end(number: int, _frame: object) -> NoReturn:
    sys.exit(128 + number)


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--runs", type=int, default=2)
    add("--first", type=int, default=1, help="number of the first run, to repeat one")
    add("--seed", type=int, default=0, help="of all random moments and workers")
    add("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES), help="taken in turn")
    add("--faults", nargs="+", choices=FAULTS, default=list(FAULTS), help="taken in turn, all strategies with each")
    add("--moments", nargs="+", choices=MOMENTS, default=list(MOMENTS), help="drawn from")
    add("--stop-seconds", type=float, default=60.0, help="how long a worker is stopped")
    add("--long-stops", type=int, default=1 << 30, help="after so many runs only for --short-stop-seconds")
    add("--short-stop-seconds", type=float, default=8.0)
    add("--timeout", type=float, default=240.0, help="longest time of a command after it was disturbed, in seconds")
    add("--keep", action="store_true", help="keep what runs have written")
    add("--folder", type=Path, help="where runs are, on a disk; by default in the folder of temporary files")
    add("--json", type=Path, help="file of the record")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Run, show, write; 1 if anything was not as promised."""
    options = _parse(given)
    handlers = {number: signal.signal(number, _end) for number in (signal.SIGTERM, signal.SIGHUP)}
    folder = Path(tempfile.mkdtemp(dir=options.folder))
    try:
        found = run(options, folder)
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        if not options.keep:
            shutil.rmtree(folder, ignore_errors=True)
    bad = sum(bool(row["violations"]) for row in found)
    missed = sum(row["outcome"] in ("over", "left out") for row in found)
    _say("\n".join(table(summary(found))))
    _say(f"{len(found)} runs, {bad} not as promised, {missed} not disturbed")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
