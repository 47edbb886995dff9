"""Gives readers inputs that are broken or made to do harm, and looks at what becomes of them.

    python tests/fuzz/readers.py --reader planetoid --minutes 10 --seed 1 --json out.json
    python tests/fuzz/readers.py --reader npz --seed 1 --only 4711       # one input again

Inputs are valid ones, some that somebody has thought of, and then changes of both. They depend on the reader, the seed
and their number alone. Each is read in another process, which has limits. Promised is: an input is accepted, and then
is valid and can be used, or it is refused by an `InputError` with what was needed, what came and what to do; within a
time and within memory in proportion to its bytes; no code of it runs, nothing is written but where it should be, and
nothing is left behind. Inputs of which that was not true are kept in the folder of ``--failures``. The exit status is 1
if there were any.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

from cases import ACCEPTED, REFUSED, Case, Kind
from keeper import Keeper, Verdict

READERS = ("edge_list", "npz", "parquet", "planetoid", "store", "checkpoint")
_TOLD = 20


def kind_of(reader: str) -> Kind:
    """The inputs of a reader."""
    kind: Kind = import_module(f"{reader}_files").KIND
    return kind


class Inputs:
    """All inputs of a reader, by number.

    Args:
        kind: Makes them.
        name: What random draws depend on.
    """

    def __init__(self, kind: Kind, name: str) -> None:
        self._kind, self._name = kind, name
        self.seeds = kind.seeds()
        self._known = [*self.seeds, *kind.hostile()]

    def __len__(self) -> int:
        """How many there are before the changed ones, which have no end."""
        return len(self._known)

    def __getitem__(self, number: int) -> Case:
        if number < len(self._known):
            return self._known[number]
        draw = Random(f"{self._name}/{number}")
        start = draw.choice(self.seeds if draw.random() < 0.8 else self._known)
        return replace(self._kind.mutated(draw, replace(start, expected=None), self.seeds), expected=None)


class Record:
    """What became of the inputs of a reader.

    Args:
        reader: Its name.
    """

    def __init__(self, reader: str) -> None:
        self.reader = reader
        self.outcomes: Counter[str] = Counter()
        self.violations: list[dict[str, Any]] = []
        self.bad = 0
        self._slowest: tuple[float, int] = (0.0, -1)
        self._largest: tuple[int, int] = (0, -1)
        self._began = time.monotonic()

    def add(self, number: int, case: Case, verdict: Verdict) -> None:
        """One more."""
        self.outcomes[verdict.outcome] += 1
        self._slowest = max(self._slowest, (verdict.seconds, number))
        self._largest = max(self._largest, (verdict.memory, number))
        if verdict.violations:
            self.bad += 1
            if self.bad <= _TOLD:
                told = {"input": number, "note": case.note, "violations": verdict.violations, "why": verdict.why}
                self.violations.append(told)

    def figures(self, starts: int) -> dict[str, Any]:
        """For the JSON."""
        crashes = sum(n for what, n in self.outcomes.items() if what.startswith(("died", "ended")))
        hangs = sum(n for what, n in self.outcomes.items() if what.startswith("took"))
        return {
            "reader": self.reader,
            "seconds": round(time.monotonic() - self._began, 1),
            "inputs": self.outcomes.total(),
            "accepted": self.outcomes[ACCEPTED],
            "refused": self.outcomes[REFUSED],
            "other_outcomes": {what: n for what, n in self.outcomes.items() if what not in (ACCEPTED, REFUSED)},
            "crashes": crashes,
            "hangs": hangs,
            "not_as_promised": self.bad,
            "violations": self.violations,
            "slowest": {"seconds": round(self._slowest[0], 3), "input": self._slowest[1]},
            "largest": {"mib": round(self._largest[0] / 2**20, 1), "input": self._largest[1]},
            "processes": starts,
        }


def fuzz(reader: str, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All inputs of a reader, until the time is over; what became of them."""
    inputs = Inputs(kind_of(reader), f"{options.seed}/{reader}")
    keeper = Keeper(options.target or reader, folder, inputs.seeds, options.timeout)
    record = Record(reader)
    try:
        for number in numbers(options):
            case, convert = inputs[number], number % 3 == 0
            verdict = keeper.judge(case, convert=convert)
            record.add(number, case, verdict)
            if options.only is not None:
                say(f"{case.note}: {verdict.outcome}\n{verdict.why}")
            if verdict.violations:
                say(f"{reader} {number} ({case.note}): {'; '.join(verdict.violations)}: {verdict.why[:200]}")
                keep(options, reader, number, case, verdict)
    finally:
        keeper.close()
    return record.figures(keeper.starts)


def numbers(options: argparse.Namespace) -> Iterator[int]:
    """Numbers of the inputs that are wanted."""
    end = time.monotonic() + 60 * options.minutes
    if options.only is not None:
        yield options.only
        return
    number = 0
    while time.monotonic() < end if options.inputs is None else number < options.inputs:
        yield number
        number += 1


def keep(options: argparse.Namespace, reader: str, number: int, case: Case, verdict: Verdict) -> None:
    """Keep an input with the command that makes it again."""
    folder = options.failures / f"{reader}-{options.seed}-{number}" if options.failures else None
    if folder is not None and not folder.exists():
        again = f"python tests/fuzz/readers.py --reader {reader} --seed {options.seed} --only {number}"
        case.keep(folder, violations=verdict.violations, why=verdict.why, again=again)


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(text.encode("utf-8", "backslashreplace").decode() + "\n")
    sys.stdout.flush()


def _parse(given: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--reader", nargs="+", choices=READERS, default=list(READERS), help="one after another")
    add("--minutes", type=float, default=0.5, help="for each reader")
    add("--inputs", type=int, help="how many for each reader, instead of minutes")
    add("--seed", type=int, default=0, help="of all random changes")
    add("--only", type=int, help="the number of one input")
    add("--timeout", type=float, default=10.0, help="longest time of an input, in seconds")
    add("--failures", type=Path, help="folder of inputs that were not read as promised")
    add("--target", help="module:function to give the inputs to, instead of the reader")
    add("--json", type=Path, help="file of the record")
    return parser.parse_args(given)


def main(given: Sequence[str] | None = None) -> int:
    """Fuzz, show, write; 1 if anything was not as promised."""
    options = _parse(given)
    say(f"seed {options.seed}")
    found = []
    for reader in options.reader:
        with tempfile.TemporaryDirectory(prefix="outgrow-fuzz-") as folder:
            found.append(fuzz(reader, options, Path(folder)))
        say(line_of(found[-1]))
    if options.json:
        settings = {name: str(value) if isinstance(value, Path) else value for name, value in vars(options).items()}
        options.json.write_text(json.dumps({"options": settings, "readers": found}, indent=1) + "\n")
    return 1 if any(row["not_as_promised"] for row in found) else 0


def line_of(row: dict[str, Any]) -> str:
    """A reader in one line."""
    return (
        f"{row['reader']}: {row['inputs']} inputs in {row['seconds']:.0f} s, {row['accepted']} accepted, "
        f"{row['refused']} refused, {row['not_as_promised']} not as promised; at most "
        f"{row['slowest']['seconds']:.2f} s and {row['largest']['mib']:.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
