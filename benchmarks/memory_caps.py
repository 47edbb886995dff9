"""Every strategy under a hard cap on memory: what it held beside its estimate, whether it ends, whether it refuses.

    sudo python benchmarks/memory_caps.py                      # all strategies on all workloads
    sudo python benchmarks/memory_caps.py --strategies full --workloads sage --out caps.json

Of each strategy and workload: the estimate of the planner for all workers and the process that starts them; what they
held at most, all together, without a cap; then the same run in a control group with 1.1 times the estimate, where it
must end, and with 0.7 times, where it must be refused before it starts (exit code 2). Files that are cached count in
the group, and go when it is full. Graphs are stores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capped
import psutil
import record
from tables import show

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.app.plan.question import PlanSite, query_for_graph
from outgrow.app.strategy_registry import resolve_strategy
from outgrow.planning.estimators.registry import estimate_strategy
from outgrow.planning.hardware.profile import find_profile
from outgrow.planning.planner import cost_model_for
from outgrow.planning.traffic import WorkerLayout
from outgrow.training.config import TrainConfig

MORE, LESS = 1.1, 0.7
STARTER_BYTES = 190 << 20
"""Of the process that starts several workers."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is trained.

    Attributes:
        graph: Name of a data set.
        model: Name of a model.
        options: Of the model.
        memory: The limit for strategy offload.
        batch_size: Of mini-batches.
    """

    graph: str
    model: str
    options: Mapping[str, Any]
    memory: str
    batch_size: int = 1024


WORKLOADS = {
    "gcn": Workload(graph="products@0.05", model="gcn", options={"hidden": 256, "layers": 2}, memory="560MiB"),
    "sage": Workload(graph="products@0.05", model="sage", options={"hidden": 128, "layers": 2}, memory="460MiB"),
    "gat": Workload(
        graph="products@0.02", model="gat", options={"hidden": 64, "layers": 2}, memory="380MiB", batch_size=256
    ),
    "dense graph": Workload(graph="reddit@0.1", model="gcn", options={"hidden": 256, "layers": 2}, memory="420MiB"),
    "sparse features": Workload(graph="wordnet", model="sage", options={"hidden": 128, "layers": 2}, memory="420MiB"),
    "web graph": Workload(graph="it-2004@0.001", model="sage", options={"hidden": 256, "layers": 2}, memory="380MiB"),
}
WORKERS = {"full": 1, "offload": 1, "tensor": 2, "sampled": 1, "split": 2, "migrate": 2, "orchestrate": 1}
IN_BATCHES = ("sampled", "split", "migrate", "orchestrate")


@dataclass(frozen=True, kw_only=True)
class Case:
    """A strategy on a workload.

    Attributes:
        strategy: Its name.
        name: Of the workload.
        store: Of its graph.
    """

    strategy: str
    name: str
    store: Path

    @property
    def work(self) -> Workload:
        """What is trained."""
        return WORKLOADS[self.name]

    @property
    def batches(self) -> dict[str, Any]:
        """Of mini-batches."""
        return {"batch_size": self.work.batch_size, "fanout": "10,10"} if self.strategy in IN_BATCHES else {}

    @property
    def ways(self) -> dict[str, Any]:
        """Options of the strategy."""
        return {"memory": self.work.memory} if self.strategy == "offload" else {}

    def estimated_bytes(self) -> int:
        """Of all workers, and of the process that starts several."""
        graph, workers = og.load(self.store), WORKERS[self.strategy]
        model = build_model(self.work.model, graph, self.work.options)
        strategy, _ = resolve_strategy(self.strategy, self.ways)
        place = WorkerLayout(workers=workers, hosts=1)
        site = PlanSite(find_profile("2-core-cpu"), [place], self.ways.get("memory"))
        asked = query_for_graph(graph, model, TrainConfig(**self.batches), site)
        each = estimate_strategy(strategy, asked.work, cost_model_for(asked, place)).peak_bytes
        return workers * each + STARTER_BYTES * (workers > 1)

    def command(self, out: Path, epochs: int = 3) -> list[str]:
        """Some epochs."""
        options = {**self.work.options, **self.batches, **self.ways, "workers": WORKERS[self.strategy]}
        options["epochs"] = epochs
        given = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
        named = ["--model", self.work.model, "--strategy", self.strategy, "--out", str(out), "--json"]
        return [sys.executable, "-m", "outgrow", "train", str(self.store), *named, *given]


def free_run(command: list[str]) -> tuple[dict[str, Any], int]:
    """Summary of a run without a cap, and the most that its processes held together."""
    done, peaks = capped.run(command, psutil.virtual_memory().total, stderr=subprocess.DEVNULL)
    if done.returncode:
        raise SystemExit(f"failed: {' '.join(command)}")
    return json.loads(done.stdout.splitlines()[-1]), peaks.held


def measured(case: Case, folder: Path) -> dict[str, Any]:
    """The three runs of a case."""
    estimated = case.estimated_bytes()
    free_run(case.command(folder / "warm", epochs=1))  # kernels that are compiled take memory too, once
    summary, held = free_run(case.command(folder / "free"))
    held = max(held, summary["peak_bytes"]["device"])  # which is looked at more often
    found = {
        "strategy": case.strategy,
        "workload": case.name,
        "workers": WORKERS[case.strategy],
        "estimated_bytes": estimated,
        "held_bytes": held,
        "worker_peak_bytes": summary["peak_bytes"]["device"],
        "estimated_over_held": estimated / held,
    }
    for share in (MORE, LESS):
        out = folder / f"capped-{share}"
        done, peaks = capped.run(case.command(out), round(share * estimated), stderr=subprocess.PIPE)
        refused = done.returncode == 2 and "more memory" in done.stderr
        found |= {f"code_{share}": done.returncode, f"group_peak_{share}": peaks.group, f"refused_{share}": refused}
        found[f"errors_{share}"] = "" if done.returncode == 0 or refused else done.stderr[-1500:]
    found["as_promised"] = found[f"code_{MORE}"] == 0 and found[f"refused_{LESS}"]
    return found


def cases(options: argparse.Namespace, folder: Path) -> Iterator[Case]:
    """All that are asked for, workload by workload."""
    given = ["--data-dir", options.data_dir] if options.data_dir else []
    for name in options.workloads:
        store = folder / name.replace(" ", "-")
        command = [sys.executable, "-m", "outgrow", "convert", WORKLOADS[name].graph, str(store), *given]
        subprocess.run(command, check=True, stderr=subprocess.DEVNULL)
        yield from (Case(strategy=strategy, name=name, store=store) for strategy in options.strategies)


def main() -> None:
    """Run what is asked for, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strategies", nargs="+", default=list(WORKERS), choices=WORKERS)
    parser.add_argument("--workloads", nargs="+", default=list(WORKLOADS), choices=WORKLOADS)
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (why := capped.unavailable()) is not None:
        sys.exit(why)
    rows = []
    with tempfile.TemporaryDirectory(prefix="outgrow-caps-") as folder:
        for number, case in enumerate(cases(options, Path(folder))):
            place = Path(folder, f"runs-{number}")
            place.mkdir()
            rows.append(measured(case, place))
            print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    hidden = [name for name in rows[0] if name.startswith(("errors", "group"))]
    show("memory under a cap", rows, hidden=hidden)
    print(record.write("memory_caps", {"more": MORE, "less": LESS, "rows": rows}, options.out))
    if not all(row["as_promised"] for row in rows):
        sys.exit(1)


if __name__ == "__main__":
    main()
