"""Epochs, memory and bytes of many cells: a case trained in one way. `planner_score.py` holds the planner against them.

    sudo python benchmarks/planner_cells.py --folder DIR --out cells.json
    sudo python benchmarks/planner_cells.py --folder DIR --out cells.json --only wordnet 200mbit

Every cell is `outgrow train` in a process of its own, from a store in the folder. First each place is measured by
`outgrow calibrate`: so many workers on this machine, or hosts in a network of `netlab.py`. Cells that the file has are
kept, so that measuring goes on where it stopped; with --rounds 2 each is measured once more. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import groupby
from pathlib import Path
from typing import Any

import netlab
import record
from network import share_of_cores
from planner_cases import Case, list_cases, list_held_out, list_sizes
from workers import versions

_SECONDS_OF_EPOCHS, _LEAST_EPOCHS, _MOST_EPOCHS = 6.0, 4, 30
_TAIL = 8


class Place:
    """Where cells run: so many workers on this machine, or one on each host of a network."""

    def __init__(self, workers: int, lab: netlab.Lab | None) -> None:
        self.workers = workers
        self.lab = lab

    def run(self, words: list[str]) -> subprocess.CompletedProcess[str]:
        """Run the command with the workers."""
        command = [sys.executable, "-m", "outgrow", *words]
        if self.lab is None:
            given = [*command, "--workers", str(self.workers)]
            return subprocess.run(given, capture_output=True, text=True, check=False)
        threads = [f"{name}={value}" for name, value in share_of_cores(self.workers).items()]
        started = ["env", *threads, *netlab.torchrun(command, self.workers, 1)]
        logged = self.lab.run([started] * self.workers, echo=False)
        return subprocess.CompletedProcess(started, logged.code, logged.stdout[0], logged.stdout[logged.host or 0])


@contextmanager
def _open_place(workers: int, rate: str) -> Iterator[Place]:
    if not rate:
        yield Place(workers, None)
        return
    with netlab.network(workers, rate) as lab:
        yield Place(workers, lab)


def measure(options: argparse.Namespace) -> None:
    """Measure what the file does not have yet; it is written after every cell."""
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    figures = {"profiles": known.get("profiles", {}), "cells": known.get("cells", [])}
    for turn in range(1, options.rounds + 1):
        listed = list_sizes() if options.sizes else list_cases()
        cases = [case for case in listed if not options.only or any(each in case.name for each in options.only)]
        for (workers, rate), group in groupby(
            sorted(cases, key=lambda case: (case.rate, case.workers)), lambda case: (case.workers, case.rate)
        ):
            missing = [
                (case, way)
                for case in group
                for way in case.list_ways()
                if len(_find(figures, case, way).get("rounds", ())) < turn
            ]
            key = f"{workers}x{rate}" if rate else str(workers)
            calibrates = key not in figures["profiles"] or (options.calibrate and turn == 1)
            if not missing and not calibrates:
                continue
            with _open_place(workers, rate) as place:
                if calibrates:
                    figures["profiles"][key] = _calibrate(place, options.folder)
                    record.write("planner_cells", {**figures, "versions": versions()}, options.out)
                for case, way in missing:
                    _add(figures, case, way, _train(place, case, way, options.folder))
                    record.write("planner_cells", {**figures, "versions": versions()}, options.out)


def _calibrate(place: Place, folder: Path) -> dict[str, Any]:
    file = folder / "profile.json"
    done = place.run(["calibrate", "--out", str(file), "--scratch", str(folder), "--name", "here"])
    if done.returncode:
        raise SystemExit(done.stderr)
    profile: dict[str, Any] = json.loads(file.read_text())
    return profile


def _find(figures: dict[str, Any], case: Case, way: str) -> dict[str, Any]:
    return next((each for each in figures["cells"] if (each["case"], each["way"]) == ([*case], way)), {})


def _add(figures: dict[str, Any], case: Case, way: str, found: dict[str, Any]) -> None:
    cell = _find(figures, case, way)
    if not cell:
        cell = {"case": [*case], "way": way, "held_out": case in list_held_out(), "rounds": []}
        figures["cells"].append(cell)
    cell["rounds"].append(found)
    seconds = [each for one in cell["rounds"] for each in one.get("epoch_seconds", [])]
    cell["seconds"] = statistics.median(seconds) if seconds else None
    print(
        time.strftime("%H:%M:%S"), case.name, way, cell["seconds"], found.get("failed", ""), file=sys.stderr, flush=True
    )


def _train(place: Place, case: Case, way: str, folder: Path) -> dict[str, Any]:
    store, out = folder / case.graph, folder / "run"
    if not store.exists():
        subprocess.run([sys.executable, "-m", "outgrow", "convert", case.graph, str(store)], check=True)
    strategy, *settings = way.split(":")
    words = ["train", str(store), "--model", case.model, "--strategy", strategy, *case.options.split()]
    # The second epoch tells how many there should be; the evaluation after the last one is measured with them.
    words += ["--seed", "0", "--out", str(out)]
    words += ["--memory", case.memory] if case.memory else []
    words += [word for each in (*settings, f"eval_every={1 << 30}") for word in ("--set", each)]
    epochs = _LEAST_EPOCHS
    for _ in range(2):
        shutil.rmtree(out, ignore_errors=True)
        done = place.run([*words, "--epochs", str(epochs)])
        if done.returncode:
            return {"failed": done.returncode, "message": done.stderr.strip().splitlines()[-_TAIL:]}
        found = _read(out)
        seconds = statistics.median(found["epoch_seconds"])
        wanted = min(_MOST_EPOCHS, int(_SECONDS_OF_EPOCHS / seconds))
        # Epochs that are long enough, or too long, are not repeated.
        if epochs > _LEAST_EPOCHS or wanted <= 3 * _LEAST_EPOCHS or seconds > 0.1:
            return found
        epochs = wanted
    return found


def _read(out: Path) -> dict[str, Any]:
    summary = json.loads((out / "summary.json").read_text())
    return {
        "commit": summary["commit"]["outgrow"],
        "epoch_seconds": summary["epoch_seconds"][1:],
        "phases": summary["seconds"],
        "epochs": summary["epochs"],
        "peak_bytes": summary["peak_bytes"]["device"],
        "found": {
            name: value for name, value in summary["strategy_facts"].items() if isinstance(value, int | float | str)
        },
        "options": summary["strategy_options"],
        "ledger": {link: kinds for link, kinds in summary["ledger"].items() if kinds},
    }


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="folder on a disk, where stores are made unless they are there")
    add("--sizes", action="store_true", help="cases of growing graphs, whose memory is measured")
    add("--only", nargs="*", help="cases whose names contain one of these words")
    add("--rounds", type=int, default=1)
    add("--calibrate", action="store_true", help="measure the places anew, not the cells that the file has")
    add("--out", type=Path, required=True, help="file of the figures")
    return parser.parse_args()


def main() -> None:
    """Measure all cells."""
    options = _parse()
    options.folder.mkdir(parents=True, exist_ok=True)
    measure(options)


if __name__ == "__main__":
    main()
