"""One run of `offload.py`, in processes of its own: epochs of a model under a strategy, and all that is measured.

python benchmarks/offload_run.py '{"store": "DIR", "model": "gcn", "strategy": {"chunks": 8}, "epochs": 3}'
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

from outgrow.runtime.distributed.launch import run_workers  # noqa: E402

HIDDEN, LAYERS, HEADS = 128, 3, 4


@dataclass(frozen=True, kw_only=True)
class Run:
    """What is run.

    Attributes:
        store: Directory of the graph's store.
        model: ``gcn`` or ``gat``.
        strategy: Options of `Offload`; None for `Full`.
        epochs: Epochs that count; one more comes first.
        workers: Number of workers.
        layers: Layers of the model.
        device: What workers compute on.
    """

    store: str
    model: str = "gcn"
    strategy: dict[str, Any] | None = field(default_factory=dict)
    epochs: int = 3
    workers: int = 1
    layers: int = LAYERS
    device: str = "cpu"

    def __call__(self, place: Any) -> dict[str, Any]:
        """Train on one worker; gives its measurements."""
        from outgrow.runtime.distributed.comm import SingleProcessComm
        from outgrow.runtime.system.device import DevicePeakMemory, use_device
        from outgrow.runtime.system.process_memory import PeakMemorySampler

        comm = place.comm if self.workers > 1 else SingleProcessComm()
        use_device(self.device, comm)
        peak = DevicePeakMemory(comm.device)
        with PeakMemorySampler() as memory:
            report = self._train(comm)
        return {**report, "peak_bytes": peak.peak_bytes or memory.peak_bytes}

    def _train(self, comm: Any) -> dict[str, Any]:
        import torch

        import outgrow as og
        from outgrow.app.runs.session import make_problem
        from outgrow.graph.store.reader import open_store

        graph = open_store(Path(self.store))
        torch.manual_seed(0)
        kind, width = (og.nn.GAT, HIDDEN // HEADS) if self.model == "gat" else (og.nn.GCN, HIDDEN)
        heads = {"heads": HEADS} if self.model == "gat" else {}
        model = kind(graph.num_features, width, graph.num_classes, layers=self.layers, **heads).to(comm.device)
        strategy = og.Full() if self.strategy is None else og.Offload(**self.strategy)
        problem = make_problem(graph, model, 0, strategy.shard_graph(graph, comm, model))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        execution, losses, seconds = strategy.prepare(problem), [], []
        for epoch in range(self.epochs + 1):
            if epoch == 1:
                counts, bytes_, spans = (
                    comm.ledger.counters.copy(),
                    comm.ledger.bytes_by_link.copy(),
                    Counter(_spans(problem)),
                )
            began = time.perf_counter()
            for step in execution.steps(epoch + 1):
                optimizer.step()
                optimizer.zero_grad()
                losses.append(step.loss)
            seconds.append(time.perf_counter() - began)
        found = {
            "epoch_seconds": seconds[1:],
            "first_epoch_seconds": seconds[0],
            "loss": losses,
            "facts": problem.run_facts,
            "spans": {name: (spent - spans[name]) / self.epochs for name, spent in _spans(problem).items()},
            "bytes": {
                f"{link} {kind}": (moved - bytes_[link, kind]) / self.epochs
                for (link, kind), moved in comm.ledger.bytes_by_link.items()
            },
            "counters": {name: (count - counts[name]) / self.epochs for name, count in comm.ledger.counters.items()},
        }
        execution.close()
        return found


def _spans(problem: Any) -> dict[str, float]:
    return dict(problem.timeline.seconds)


def main() -> None:
    """Run what the argument says, and print what was measured."""
    run = Run(**json.loads(sys.argv[1]))
    reports = run_workers(run, run.workers) if run.workers > 1 else [run(None)]
    print(json.dumps(reports))


if __name__ == "__main__":
    main()
