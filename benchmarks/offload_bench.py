"""Runs of `offload.py`: each is a process of its own, in turn with its rivals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import capped

HERE = Path(__file__).parent
Rows = list[dict[str, Any]]
"""One for each line of a table."""


class Bench:
    """Runs, in a folder where stores of graphs are made.

    Args:
        folder: The folder.
        rounds: How often each rival runs.
        epochs: Epochs that count in each run.
        scratch: Where scratch files go.
    """

    def __init__(self, folder: Path, rounds: int, epochs: int, scratch: Path) -> None:
        self.folder, self.rounds, self.epochs, self.scratch = folder, rounds, epochs, scratch

    def store(self, graph: str) -> Path:
        """The store of a generated graph."""
        path = self.folder / graph
        if not path.exists():
            subprocess.run([sys.executable, "-m", "outgrow", "convert", graph, str(path)], check=True)
        return path

    def run(
        self,
        graph: str,
        limit: int | None = None,
        threads: int | None = None,
        checkout: Path = HERE.parent,
        **what: Any,
    ) -> dict[str, Any]:
        """One run, of this commit or of the one in another checkout; what the workers measured, as one."""
        names = () if threads is None else ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
        environment = {**os.environ, **dict.fromkeys(names, str(threads)), "PYTHONPATH": str(checkout / "src")}
        if what.get("strategy") is not None:
            what["strategy"] = {"scratch_dir": str(self.scratch), **what["strategy"]}
        given = json.dumps({"store": str(self.store(graph)), "epochs": self.epochs, **what})
        command = [sys.executable, str(checkout / "benchmarks" / "offload_run.py"), given]
        if limit is None:
            done, group = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, env=environment), 0
        else:
            done, (_, group) = capped.run(command, limit, env=environment)
        if done.returncode:
            return {"failed": done.returncode}
        return {**_merged(json.loads(done.stdout.splitlines()[-1])), "group_bytes": group}

    def interleaved(self, rivals: Mapping[str, Callable[[], dict[str, Any]]]) -> dict[str, Rows]:
        """All rivals once in each round."""
        reports: dict[str, Rows] = {name: [] for name in rivals}
        for _ in range(self.rounds):
            for name, run in rivals.items():
                reports[name].append(run())
        return reports


def _merged(reports: Rows) -> dict[str, Any]:
    whole = dict(reports[0])
    edges = [report["counters"].get("edges_aggregated", 0) for report in reports]
    whole["speedup_of_edges"] = sum(edges) / max(1, *edges)
    whole["peak_bytes"] = max(report["peak_bytes"] for report in reports)
    for table in ("bytes", "counters", "spans"):
        names = sorted({name for report in reports for name in report[table]})
        whole[table] = {name: sum(report[table].get(name, 0) for report in reports) for name in names}
    return whole
