"""Time steps and seconds of the epochs in which `migrate` finds out how many of them are fastest: HopGNN's figure 17.

    python benchmarks/merging.py --data-dir DATA

Workers are those of one machine. A run ends some epochs after the number is settled; see benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is trained.

    Attributes:
        graph: Name of the graph.
        width: Width of random features, instead of the graph's own; None for these.
        model: Name of the model.
        batch_size: Seeds of all workers.
        fanout: For each hop, outward.
        workers: Workers.
    """

    graph: str
    width: int | None
    model: str
    batch_size: int
    fanout: tuple[int, ...]
    workers: int


CASES = (
    Case(graph="it-2004@0.001", width=600, model="gat", batch_size=1024, fanout=(5, 5, 5), workers=4),
    Case(graph="cora", width=None, model="sage", batch_size=50, fanout=(5, 5), workers=3),
)


def epochs_of(case: Case, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Number of time steps and seconds of each epoch until the number was settled."""
    graph = og.load(case.graph, data_dir=options.data_dir)
    torch.manual_seed(options.seed)
    if case.width is not None:
        graph = replace(graph, features=torch.randn(graph.num_nodes, case.width))
    model = build_model(case.model, graph, {"hidden": options.hidden, "layers": len(case.fanout)})
    strategy = og.Migrate(move_model=True)
    given: Any = {"batch_size": case.batch_size, "fanout": case.fanout, "workers": case.workers}
    run = og.train(graph, model, strategy=strategy, epochs=options.epochs, seed=options.seed, progress=False, **given)
    found: Any = run.summary["found"]
    return [{"time_steps": steps, "seconds": seconds} for steps, seconds in found["time_steps"]]


def main() -> None:
    """Train, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--hidden", type=int, default=16)
    add("--epochs", type=int, default=24)
    add("--rounds", type=int, default=3, help="how often each case is trained")
    add("--seed", type=int, default=0)
    add("--data-dir", type=Path, help="where files of real graphs are looked for")
    add("--out", type=Path)
    options = parser.parse_args()
    rows = []
    for case in CASES:
        for turn in range(options.rounds):
            rows.append({**vars(case), "round": turn, "epochs": epochs_of(case, options)})
            told = " ".join(f"{each['time_steps']}: {each['seconds']:.2f} s" for each in rows[-1]["epochs"])
            print(f"{case.graph} {case.model} on {case.workers}: {told}", flush=True)
    given = {name: getattr(options, name) for name in ("hidden", "epochs", "seed")}
    print(record.write("merging", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


if __name__ == "__main__":
    main()
