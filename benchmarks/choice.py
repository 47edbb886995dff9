"""Which strategy is fastest, case by case, and which one `auto` chooses.

    python benchmarks/choice.py --data-dir DATA                 # every way of every case, on this machine
    python benchmarks/choice.py --data-dir DATA --only wordnet --rounds 1
    python benchmarks/choice.py --data-dir DATA --links --epochs 3  # of links

Every way is `outgrow train`, in turn, several rounds over; what counts is the median epoch but the first. Before that
this machine is measured (`outgrow calibrate`). A strategy that would train all at once as `full` does is no way of its
own. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from tables import show  # noqa: E402
from workers import versions  # noqa: E402


class Case(NamedTuple):
    """What is trained, on how many workers, with how much memory.

    Attributes:
        graph: Its name.
        model: Its name.
        workers: On this machine.
        options: Further words of the command line that every way gets.
        memory: The most memory of one worker; empty for no limit.
    """

    graph: str
    model: str
    workers: int
    options: str = ""
    memory: str = ""

    @property
    def batches(self) -> bool:
        """Whether it is trained in mini-batches."""
        return "--batch-size" in self.options


_WHOLE, _BATCHES, _AUTO = ("full", "tensor", "offload"), ("sampled", "split", "migrate"), "auto"
_NEAR = 1.1
_SMALL, _LARGE = "--batch-size 256 --fanout 10,10", "--batch-size 1024 --fanout 10,10"
CASES = (
    Case("cora", "gcn", 2),
    Case("cora", "gat", 2),
    Case("amazon-photo", "gcn", 2),
    Case("coauthor-cs", "gcn", 2),
    Case("debian", "gcn", 2, "--hidden 128"),
    Case("wordnet", "sage", 2),
    Case("wordnet", "gcn", 1, "--hidden 64"),
    Case("products@0.02", "gcn", 1, "--hidden 64 --layers 3"),
    Case("products@0.02", "gcn", 2, "--hidden 64 --layers 3"),
    Case("products@0.02", "sage", 2, "--hidden 256"),
    Case("products@0.02", "gat", 2, "--hidden 32"),
    Case("products@0.02", "gin", 2, "--hidden 64"),
    Case("reddit@0.03", "gcn", 1, "--hidden 256"),
    Case("reddit@0.03", "gcn", 2, "--hidden 256"),
    Case("reddit@0.03", "decoupled", 2, "--hidden 256"),
    Case("arxiv@0.3", "gcn", 2, "--hidden 128 --layers 3"),
    Case("products@0.1", "gcn", 1, "--hidden 64 --layers 3", "700MiB"),
    Case("products@0.05", "sage", 1, "--hidden 64", "600MiB"),
    Case("amazon-photo", "sage", 2, _SMALL),
    Case("wordnet", "sage", 2, _LARGE),
    Case("products@0.02", "sage", 1, _SMALL),
    Case("products@0.02", "sage", 2, _SMALL),
    Case("products@0.02", "sage", 2, _LARGE),
    Case("products@0.02", "gat", 2, _LARGE),
    Case("reddit@0.03", "gcn", 2, _SMALL),
    Case("reddit@0.03", "sage", 2, _LARGE),
)


_SHARED = "--set link_loss=softmax --set negative_sampling=shared --set negatives=200"
LINK_CASES = tuple(
    case._replace(options=f"--task links --set ranking_candidates=100 {case.options}")
    for case in (
        Case("cora", "gcn", 2),
        Case("amazon-photo", "sage", 2, "--hidden 64"),
        Case("wordnet", "gcn", 2, "--hidden 64"),
        Case("products@0.02", "sage", 2, "--hidden 64 --set link_steps=2"),
        Case("wordnet", "rgcn", 2, "--hidden 32 --set bases=4"),
        Case("amazon-photo", "sage", 2, "--hidden 64 --batch-size 4096 --fanout 10,10"),
        Case("arxiv@0.3", "sage", 2, f"--hidden 64 --batch-size 8192 --fanout 10,10 {_SHARED}"),
        Case("wordnet", "sage", 2, "--hidden 64 --batch-size 16384 --fanout 5,5"),
    )
)
"""What is trained on links. `migrate`, whose models stay, trains them as `sampled` does."""


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Every way of every case, round by round: its epochs, what it held, what was chosen."""
    found: dict[tuple[Case, str], list[dict[str, Any]]] = {}
    known = LINK_CASES if options.links else CASES
    cases = [
        case for case in known if not options.only or any(each in " ".join(map(str, case)) for each in options.only)
    ]
    for turn in range(options.rounds):
        for case in cases:
            batched = _BATCHES[:2] if options.links else _BATCHES
            for way in (*(batched if case.batches else _WHOLE), _AUTO):
                reports = found.setdefault((case, way), [])
                if (case.memory and way == "full") or (reports and not _counts(reports[-1])):
                    continue
                reports.append(_trained(case, way, options))
                print(turn, *case, way, reports[-1], file=sys.stderr, flush=True)
    return [_row(case, way, reports) for (case, way), reports in found.items() if reports]


def _counts(report: Mapping[str, Any]) -> bool:
    return "seconds" in report and report["found"].get("chunks") != 0


def _row(case: Case, way: str, reports: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    last = reports[-1]
    if "seconds" not in last:
        return {**case._asdict(), "way": way, **last}
    seconds = [second for report in reports for second in report["seconds"]]
    plain = {"seconds": statistics.median(seconds), "spread": [min(seconds), max(seconds)], "rounds": len(reports)}
    return {**case._asdict(), "way": way, **last, **plain}


def _trained(case: Case, way: str, options: argparse.Namespace) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        words = f"train {case.graph} --model {case.model} --workers {case.workers} --strategy {way} {case.options}"
        words += f" --epochs {options.epochs} --seed 0 --set eval_every={1 << 30} --json --out {folder}/run"
        words += f" --memory {case.memory}" if case.memory else ""
        words += f" --data-dir {options.data_dir}" if options.data_dir else ""
        done = subprocess.run(
            [sys.executable, "-m", "outgrow", *words.split()], capture_output=True, text=True, check=False
        )
        if done.returncode:
            return {"failed": done.returncode, "message": done.stderr.strip().splitlines()[-4:]}
    summary = json.loads(done.stdout.splitlines()[-1])
    return {
        "strategy": summary["strategy"],
        "strategy_options": summary["strategy_options"],
        "seconds": summary["epoch_seconds"][1:],
        "peak_bytes": summary["peak_bytes"]["device"],
        "found": {name: value for name, value in summary["found"].items() if isinstance(value, int | float | str)},
    }


def score(rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each case the fastest way, what was chosen, and how many times as long that takes."""
    found = []
    for _, group in groupby(rows, key=lambda row: [row[name] for name in Case._fields]):
        ways = {row["way"]: row for row in group}
        auto = ways.pop(_AUTO)
        ran = {way: row["seconds"] for way, row in ways.items() if _counts(row)}
        if "seconds" not in auto:
            found.append({**{name: auto[name] for name in Case._fields}, "chosen": "nothing", "right": not ran})
            continue
        fastest = min(ran, key=lambda way: ran[way])
        chosen = ran.get(auto["strategy"], auto["seconds"])
        found.append(
            {
                **{name: auto[name] for name in Case._fields},
                "fastest": fastest,
                "seconds": ran[fastest],
                "chosen": auto["strategy"],
                "times": min(chosen, auto["seconds"]) / ran[fastest],
                "right": min(chosen, auto["seconds"]) <= _NEAR * ran[fastest],
            }
        )
    return found


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the files of named data sets")
    parser.add_argument("--only", nargs="*", help="cases that contain one of these words")
    parser.add_argument("--links", action="store_true", help="links in the place of nodes")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """Measure the machine, then all ways of all cases."""
    options = _parse()
    for workers in sorted({case.workers for case in (LINK_CASES if options.links else CASES)}):
        calibrate = f"calibrate --workers {workers} --json".split()
        subprocess.run([sys.executable, "-m", "outgrow", *calibrate], check=True, stdout=subprocess.DEVNULL)
    rows = measure(options)
    scored = score(rows)
    right = [each["right"] for each in scored if "right" in each]
    show("what was chosen", scored)
    print(f"{sum(right)} of {len(right)} choices are the fastest, or within a tenth of it")
    figures = {"versions": versions(), "right": sum(right), "cases": len(right), "score": scored, "rows": rows}
    print(record.write("choice_links" if options.links else "choice", figures, options.out))


if __name__ == "__main__":
    main()
