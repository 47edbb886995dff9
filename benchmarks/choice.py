"""Which strategy is fastest, case by case, and which one the planner chooses.

    python benchmarks/choice.py measure --data-dir DATA              # every way of every case, on this machine
    python benchmarks/choice.py measure --data-dir DATA --only wordnet
    sudo python benchmarks/choice.py measure --data-dir DATA --mbit 200 --hosts 4      # on hosts of a slow network
    python benchmarks/choice.py score --data-dir DATA --measured RESULT.json [...]     # against what is estimated

Every way is `outgrow train`, in turn, several times; what counts is the median epoch but the first. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.threads import set_threads

set_threads()  # before torch is loaded

import record  # noqa: E402
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


_WHOLE, _BATCHES = ("full", "tensor", "offload"), ("sampled", "split", "migrate")
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
    Case("products@0.1", "sage", 1, "--hidden 64", "600MiB"),
    Case("amazon-photo", "sage", 2, _SMALL),
    Case("wordnet", "sage", 2, _LARGE),
    Case("products@0.02", "sage", 1, _SMALL),
    Case("products@0.02", "sage", 2, _SMALL),
    Case("products@0.02", "sage", 2, _LARGE),
    Case("products@0.02", "gat", 2, _LARGE),
    Case("reddit@0.03", "gcn", 2, _SMALL),
    Case("reddit@0.03", "sage", 2, _LARGE),
)


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Every way of every case: its epochs, what it held and what crossed."""
    for case in CASES:
        if options.only and not any(each in f"{case.graph} {case.model}" for each in options.only):
            continue
        for way in _BATCHES if case.batches else _WHOLE:
            if case.memory and way == "full":
                continue
            row = {**case._asdict(), "strategy": way, **_trained(case, way, options)}
            print(" ".join(f"{name} {value}" for name, value in row.items()), file=sys.stderr, flush=True)
            yield row


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
    seconds = summary["epoch_seconds"]
    return {
        "seconds": statistics.median(seconds[1:]),
        "spread": [min(seconds[1:]), max(seconds[1:])],
        "peak_bytes": summary["peak_bytes"]["device"],
        "found": {name: value for name, value in summary["found"].items() if isinstance(value, int | float | str)},
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    measuring = commands.add_parser("measure")
    measuring.add_argument("--data-dir", type=Path, help="folder of the files of named data sets")
    measuring.add_argument("--only", nargs="*", help="cases whose graph and model contain one of these")
    measuring.add_argument("--epochs", type=int, default=6)
    measuring.add_argument("--out", type=Path)
    return parser.parse_args()


def main() -> None:
    """Do what is asked for."""
    options = _parse()
    rows = list(measure(options))
    record.write("choice", {"versions": versions(), "rows": rows}, options.out)


if __name__ == "__main__":
    main()
