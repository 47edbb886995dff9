"""Columns against nodes: what `as_tensor` and `full` send in an epoch, and how evenly they work.

    python benchmarks/tensor.py bytes --graph reddit@0.02      # by workers, layers and widths (figs. 12 to 14)
    python benchmarks/tensor.py balance --graph reddit@0.1     # work and seconds of two pinned workers
    python benchmarks/tensor.py memory                         # within a third of the memory, on dense graphs

Times over a network are those of `network.py`. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
import tensor_memory  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from outgrow.graph.builders.to_store import convert_to_store  # noqa: E402
from outgrow.graph.datasets import resolve_source  # noqa: E402
from outgrow.runtime.distributed.launch import run_workers  # noqa: E402

Rows = list[dict[str, Any]]
WAYS: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("full, METIS", "full", "gcn", {}),
    ("tensor, textbook", "tensor", "textbook", {"constant": False}),
    ("tensor", "tensor", "gcn", {}),
    ("full, METIS, decoupled", "full", "decoupled", {}),
    ("tensor, decoupled", "tensor", "decoupled", {}),
)
"""Name, strategy, model and options. *Textbook* aggregates at the input width of each layer, in every epoch."""


@dataclass(frozen=True, kw_only=True)
class Run:
    """What workers train.

    Attributes:
        store: Directory of the graph's store.
        strategy: ``full`` or ``as_tensor``.
        model: ``gcn``, ``textbook`` or ``decoupled``.
        options: Of the strategy.
        layers: Layers of the model.
        hidden: Width of hidden layers.
        epochs: Epochs that count; one more comes first.
        pinned: Whether each worker runs on a core of its own.
    """

    store: str
    strategy: str
    model: str
    options: dict[str, Any]
    layers: int = 2
    hidden: int = 256
    epochs: int = 1
    pinned: bool = False

    def __call__(self, place: Any) -> dict[str, Any]:
        """Train on one worker; what it counted in an epoch, and what its aggregations took."""
        import torch

        from outgrow.app.runs.session import make_problem
        from outgrow.app.strategy_registry import STRATEGIES
        from outgrow.graph.store.reader import open_store

        comm = place.comm
        if self.pinned:
            os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[comm.rank]})
            torch.set_num_threads(1)
        graph = open_store(Path(self.store))
        torch.manual_seed(0)
        strategy = STRATEGIES[self.strategy](**self.options)
        model = self._model(graph)
        problem = make_problem(graph, model, 0, strategy.shard_graph(graph, comm, model))
        execution = strategy.prepare(problem)
        for epoch in range(self.epochs + 1):
            if epoch == 1:
                before, counted = comm.ledger.crossed.copy(), comm.ledger.counters.copy()
                comm.barrier()
                spent, spans = os.times(), dict(problem.timeline.seconds)
            for _ in execution.steps(epoch):
                problem.model.zero_grad()
        cpu = os.times()
        sent = {f"{link}.{kind}": n - before[link, kind] for (link, kind), n in comm.ledger.crossed.items()}
        execution.close()
        return {
            "bytes": {name: n / self.epochs for name, n in sent.items() if n},
            "counters": {k: (n - counted[k]) / self.epochs for k, n in comm.ledger.counters.items()},
            "cpu_seconds": (cpu.user + cpu.system - spent.user - spent.system) / self.epochs,
            "spans": {k: (s - spans.get(k, 0)) / self.epochs for k, s in problem.timeline.seconds.items()},
        }

    def _model(self, graph: Any) -> Any:
        import outgrow as og

        widths = graph.num_features, self.hidden, graph.num_classes
        options: dict[str, Any] = {"layers": self.layers, "dropout": 0.5}
        if self.model == "decoupled":
            return og.nn.Decoupled(*widths, **options)
        if self.model == "textbook":
            stack = og.nn.Stack(**options)
            return stack.build(widths, lambda i, o, place: og.nn.GCNConv(i, o, project_first=False))
        return og.nn.GCN(*widths, **options)


def bytes_table(store: Path, options: argparse.Namespace) -> Rows:
    """Megabytes of rows that cross in an epoch, by number of workers, of layers, and by width."""
    cases = [(workers, 2, 256) for workers in options.workers]
    cases += [(4, layers, 256) for layers in options.layers] + [(4, 2, hidden) for hidden in options.hidden]
    rows: Rows = []
    for workers, layers, hidden in dict.fromkeys(cases):
        row: dict[str, Any] = {"workers": workers, "layers": layers, "hidden": hidden}
        for name, strategy, model, given in WAYS:
            run = Run(store=str(store), strategy=strategy, model=model, options=given, layers=layers, hidden=hidden)
            found = run_workers(run, workers)
            row[name] = sum(n for each in found for kind, n in each["bytes"].items() if _is_row(kind)) / 1e6
        row["textbook over decoupled"] = row["tensor, textbook"] / row["tensor, decoupled"]
        row["tensor over decoupled"] = row["tensor"] / row["tensor, decoupled"]
        rows.append(row)
        print(row, flush=True)
    return rows


def balance_table(store: Path, options: argparse.Namespace) -> Rows:
    """What each of two workers does in an epoch, each on a core of its own."""
    rows: Rows = []
    for name, strategy, model, given in WAYS:
        run = Run(store=str(store), strategy=strategy, model=model, options=given, epochs=5, pinned=True)
        for rank, found in enumerate(run_workers(run, 2)):
            counters = found["counters"]
            work = counters.get("edge_columns", counters["edges_aggregated"])
            rows.append({"run": name, "worker": rank, "work": work, **found})
    return rows


def memory_rows(store: Path, options: argparse.Namespace) -> Rows:
    """What workers hold without a limit and within a third of that, on dense graphs."""
    given = options.models, options.limited_workers, options.size, options.nodes
    return tensor_memory.memory_table(store.parent, *given)


def _is_row(kind: str) -> bool:
    return kind.rpartition(".")[2] in ("features", "activations", "gradients")


def _show(title: str, rows: Rows) -> None:
    names = [name for name, value in rows[0].items() if not isinstance(value, dict)]
    table = Table(title=title)
    for name in names:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(f"{row[n]:,.2f}" if isinstance(row[n], float) else str(row[n]) for n in names))
    Console(width=200).print(table)


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


def main() -> None:
    """Run the tables that are asked for."""
    tables = {"bytes": bytes_table, "balance": balance_table, "memory": memory_rows}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="+", choices=tables)
    parser.add_argument("--graph", default="reddit@0.02")
    parser.add_argument("--workers", type=_numbers, default=[2, 4, 8])
    parser.add_argument("--layers", type=_numbers, default=[2, 3, 4, 5])
    parser.add_argument("--hidden", type=_numbers, default=[64, 256, 1024])
    parser.add_argument("--models", type=lambda text: text.split(","), default=[*tensor_memory.MODELS])
    parser.add_argument("--limited-workers", type=_numbers, default=[1, 2, 4])
    parser.add_argument("--nodes", type=int, default=20_000, help="of dense graphs")
    parser.add_argument("--size", type=float, default=1.0, help="factor of the edges of dense graphs")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        store = Path(folder) / "store"
        generated = set(options.tables) - {"memory"}
        if generated:
            found = resolve_source(options.graph)
            convert_to_store(found.source, store, undirected=found.undirected)
        figures: dict[str, Any] = {"graph": options.graph} if generated else {}
        for name in options.tables:
            figures[name] = tables[name](store, options)
            _show(f"{name}: {'dense graphs' if name == 'memory' else options.graph}", figures[name])
    print(record.write("tensor", figures, options.out))


if __name__ == "__main__":
    main()
