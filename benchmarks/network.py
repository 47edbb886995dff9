"""Hosts that are joined by a slow network: epoch times and bytes of `full` under several partitions, and of others.

    sudo python benchmarks/network.py --data-dir DATA     # debian and products@0.05, GCN and GAT, 4 hosts at 200 Mbit/s
    sudo python benchmarks/network.py --graphs products@0.002 --models gcn --epochs 2
    sudo python benchmarks/network.py --graphs reddit@0.1 --models gcn,decoupled --ways tensor:chunks=4
    sudo python benchmarks/network.py --graphs products@0.05 --models sage --partitions "" --batch-sizes 1024,4096 \
        --fanout 20,20,20 --layers 3 --ways split:cache=0.1 sampled:cache=0.1 sampled:cache=0.1:cache_over=host
    sudo python benchmarks/network.py --graphs it-2004@0.003 --width 600 --models sage,gcn,gat --partitions "" \
        --fanout 10,10,10 --layers 3 --batch-sizes 4096 --ways model-centric p3 migrate migrate:travel=true
    sudo python benchmarks/network.py --graphs reddit@0.05 --models gcn --partitions metis --ways tensor auto
    python benchmarks/network.py --one-host ...           # the same with all workers on this machine, without a network

The hosts are those of `netlab.py`. Every cell of the table is `outgrow train` under torchrun, one worker on each host,
once for one epoch and then for more: the difference is what epochs send. The table goes to the terminal, all figures
to benchmarks/results/. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import netlab
import record
from netlab_links import UnavailableError
from network_stores import own_store, prepare
from network_table import show, summarise
from workers import versions

from outgrow.app.strategy_registry import STRATEGIES
from outgrow.runtime.system.environment import available_cores

RIVALS = Path(__file__).parent / "rivals" / "train.py"
_TAIL = 15
# The log of a host, then the command.
_BOUND = ("unshare", "--mount", "sh", "-c", 'mount --bind "$1" "$2" && shift 2 && exec "$@"', "sh")
_LOGGED = 'log="$1" && shift && exec "$@" 2> "$log"'


class Cell(NamedTuple):
    """What one line of the table is about: a strategy and what is set of it, such as ``cache=0.1:ahead=2``.

    Attributes:
        graph: Its name.
        model: Its name.
        strategy: Its name.
        setting: What is set, joined by colons; may be empty.
        batch: Seeds of a step; 0 for the whole graph.
    """

    graph: str
    model: str
    strategy: str
    setting: str
    batch: int = 0


@dataclass(frozen=True, kw_only=True)
class Hosts:
    """The lab and what all its runs have in common.

    Attributes:
        lab: The simulated hosts; None for all workers on this machine.
        folder: Where graphs and runs go.
        options: Of `_parse`.
    """

    lab: netlab.Lab | None
    folder: Path
    options: argparse.Namespace

    def train(self, cell: Cell, store: Path, epochs: int, name: str) -> dict[str, Any]:
        """Train on all hosts; the run's own figures, and what each interface has counted meanwhile."""
        out = self.folder / name
        before = self._counted()
        code, host = self._run([*self._apart(store), *self._train(cell, store, epochs, out)], out)
        after = self._counted()
        load = os.getloadavg()[0]
        if code or not (out / "summary.json").exists():
            return {"failed": f"exit code {code}", "message": self._last_words(out, host)}
        summary = json.loads((out / "summary.json").read_text())
        return {
            "strategy": summary["strategy"],
            "epochs": summary["epochs"],
            "seconds": summary["epoch_seconds"],
            "losses": summary["loss"],
            "ledger": summary["ledger"],
            "counters": summary["counters"],
            "spent": summary["seconds"],
            "sent": [new.sent - old.sent for new, old in zip(after, before, strict=True)],
            "received": [new.received - old.received for new, old in zip(after, before, strict=True)],
            "load": load,
        }

    def _run(self, train: list[str], out: Path) -> tuple[int, int]:
        """Run a command on all hosts; the exit code, and the host that it is of."""
        hosts, limit = self.options.hosts, ["timeout", "--kill-after=10", str(self.options.timeout_minutes * 60)]
        logged = ["sh", "-c", _LOGGED, "sh", f"{out}-{{host}}.log"]
        if self.lab is None:
            here = [word.format(host=0) for word in logged]
            return subprocess.run([*here, *limit, *train, "--workers", str(hosts)], check=False).returncode, 0
        threads = [f"{name}={value}" for name, value in share_of_cores(hosts).items()]
        started = netlab.torchrun(train, hosts, 1)
        outcome = self.lab.run([[*logged, "env", *threads, *limit, *started]] * hosts, echo=False)
        return outcome.code, outcome.host or 0

    def _apart(self, store: Path) -> list[str]:
        """What makes each host see its own folder where the others see theirs, if they are apart."""
        return [*_BOUND, str(own_store(store)), str(store)] if self.options.apart else []

    def _train(self, cell: Cell, store: Path, epochs: int, out: Path) -> list[str]:
        options = self.options
        words = f"--strategy {cell.strategy} --model {cell.model} --layers {options.layers} --hidden {options.hidden}"
        words += f" --seed 0 --epochs {epochs}"
        words += f" --batch-size {cell.batch} --fanout {options.fanout}" if cell.batch else ""
        words += f" {options.train}"
        # No evaluation but the last one, which both runs have.
        settings = [*filter(None, cell.setting.split(":")), f"eval_every={1 << 30}"]
        settings += [f"overlap={options.overlap}"] if cell.strategy == "full" else []
        set_ = [word for setting in settings for word in ("--set", setting)]
        program = ["-m", "outgrow"] if cell.strategy in (*STRATEGIES, "auto") else [str(RIVALS)]
        return [sys.executable, *program, "train", str(store), *words.split(), *set_, "--out", str(out)]

    def _counted(self) -> list[netlab.Traffic]:
        return [] if self.lab is None else [self.lab.interface_bytes(host) for host in range(self.lab.hosts)]

    def _last_words(self, out: Path, host: int) -> str:
        lines = Path(f"{out}-{host}.log").read_text().splitlines()
        return "\n".join(lines[-_TAIL:])


def share_of_cores(hosts: int) -> dict[str, str]:
    """Threads of the worker on each host: all hosts share the cores of this machine, but take them for their own."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS")
    return dict.fromkeys(names, str(max(1, available_cores() // hosts)))


def measure(hosts: Hosts, stores: Mapping[str, Path]) -> dict[Cell, list[dict[str, Any]]]:
    """Reports by cell: that of the short run, then one a round; a cell that failed is not asked again."""
    options = hosts.options
    ways = [("full", f"partition={name}") for name in options.partitions]
    ways += [(strategy, setting) for strategy, _, setting in (way.partition(":") for way in options.ways)]
    models, sizes = options.models, options.batch_sizes or [0]
    cells = [Cell(graph, model, *way, size) for graph in stores for model in models for size in sizes for way in ways]
    found: dict[Cell, list[dict[str, Any]]] = {cell: [] for cell in cells}
    for turn in range(options.rounds + 1):
        for number, cell in enumerate(cells):
            reports = found[cell]
            if reports and "failed" in reports[-1]:
                continue
            epochs = 1 + (options.epochs if turn else 0)
            reports.append(hosts.train(cell, stores[cell.graph], epochs, f"run-{turn}-{number}"))
            print(f"{_turn(turn)}: {' '.join(map(str, cell))}: {_one_line(reports[-1])}", file=sys.stderr, flush=True)
    return found


def _turn(turn: int) -> str:
    return f"round {turn}" if turn else "one epoch"


def _one_line(report: Mapping[str, Any]) -> str:
    if "failed" in report:
        return f"{report['failed']}\n{report['message']}"
    return f"{statistics.median(report['seconds'][1:] or report['seconds']):.3f} s an epoch"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hosts", type=int, default=4)
    add("--mbit", type=float, default=200.0, help="speed of each link in each direction, in Mbit/s")
    add("--graphs", type=_names, default=["debian", "products@0.05"], help="see `outgrow datasets`")
    add("--models", type=_names, default=["gcn", "gat"], help="see `outgrow train --help`")
    add("--partitions", type=_names, default=["metis", "range", "hash"], help="see `outgrow partition --help`")
    add(
        "--ways",
        nargs="*",
        default=[],
        help="other strategies and their settings, such as tensor:chunks=4; or model-centric, local-shuffles, p3",
    )
    add(
        "--batch-sizes", type=lambda text: [*map(int, _names(text))], default=[], help="seeds of a step; else all nodes"
    )
    add("--fanout", default="10,10", help="what each hop draws, with batches")
    add("--width", type=int, default=0, help="random features of this width, instead of the graph's own")
    add(
        "--apart",
        default="",
        help="mini-batches: each host has a folder of its own, with its own features by this partition",
    )
    add("--one-host", action="store_true", help="all workers on this machine, without a network")
    add("--train", default="", help="further options of `outgrow train`, in one text: such as '--task links'")
    add("--overlap", choices=("true", "false"), default="true", help="see `full`")
    add("--layers", type=int, default=2)
    add("--hidden", type=int, default=128)
    add("--rounds", type=int, default=2)
    add("--epochs", type=int, default=5, help="epochs of each round that count; one more precedes them")
    add("--timeout-minutes", type=float, default=15.0, help="time for all of a run")
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--scratch", type=Path, help="keep and reuse the stores here; else they go to a temporary folder")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    if options.apart and options.one_host:
        parser.error("--apart is for hosts: leave out --one-host")
    return options


def _names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def _numbers(text: str) -> list[int]:
    return [*map(int, _names(text))]


def main() -> None:
    """Measure, show, write; fails if a ledger is far from what the interfaces have counted."""
    options = _parse()
    with ExitStack() as stack:
        try:
            joined = netlab.network(options.hosts, f"{options.mbit:g}mbit")
            lab = None if options.one_host else stack.enter_context(joined)
        except UnavailableError as error:
            print(error, file=sys.stderr)
            sys.exit(netlab.UNAVAILABLE_CODE)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        kept = options.scratch or folder
        kept.mkdir(parents=True, exist_ok=True)
        stores, missing, cuts = prepare(options, kept.resolve())
        found = measure(Hosts(lab=lab, folder=folder, options=options), stores)
    rows = summarise(found, cuts, options.mbit)
    where = "workers of one host" if options.one_host else f"hosts at {options.mbit:g} Mbit/s"
    show(rows, f"{options.hosts} {where}, {options.layers} layers, hidden {options.hidden}")
    names = ("hosts", "one_host", "mbit", "layers", "hidden", "rounds", "epochs", "overlap", "fanout", "width", "apart")
    figures = {
        "parameters": {name: getattr(options, name) for name in names} | {"threads": share_of_cores(options.hosts)},
        "versions": versions(),
        "left_out": missing,
        "partitions": cuts,
        "rows": rows,
        "reports": [{**cell._asdict(), "runs": reports} for cell, reports in found.items()],
    }
    print(record.write("network", figures, options.out))
    if any(not row.get("ledger_agrees", True) for row in rows):
        sys.exit("the ledger of some run is more than 10 % from what the interfaces have counted")


if __name__ == "__main__":
    main()
