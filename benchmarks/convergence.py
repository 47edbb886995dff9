"""Accuracy by epoch of coupled and decoupled models on the whole graph: NeutronTP's figure 16.

    python benchmarks/convergence.py --data-dir DATA
    python benchmarks/convergence.py --graphs reddit@0.02 --models gcn decoupled --epochs 60

All strategies compute the same losses, so one process trains by `full`. Curves are means over seeds. See README.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model

_PLATEAU = 0.99
"""Share of its best accuracy at which a curve has arrived."""


def main() -> None:
    """Train, print, write."""
    options = _parser().parse_args()
    rows = []
    for name in options.graphs:
        graph = og.load(name, data_dir=options.data_dir)
        for model in options.models:
            rows.append({"graph": name, "model": model, **_summarise(graph, model, options)})
            print({key: value for key, value in rows[-1].items() if key != "curve"}, flush=True)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "data_dir")}
    print(record.write("convergence", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _summarise(graph: og.Graph, model: str, options: argparse.Namespace) -> dict[str, Any]:
    curves = [_curve(graph, model, seed, options) for seed in range(options.seeds)]
    mean = [statistics.fmean(scores) for scores in zip(*curves, strict=True)]
    best = max(mean)
    arrived = next(epoch for epoch, score in enumerate(mean, 1) if score >= _PLATEAU * best)
    return {"best": best, "last": mean[-1], "epochs_to_plateau": arrived, "curve": mean}


def _curve(graph: og.Graph, model_name: str, seed: int, options: argparse.Namespace) -> list[float]:
    """Validation accuracy after each epoch."""
    torch.manual_seed(seed)
    given = {"hidden": options.hidden, "layers": options.layers, "dropout": 0.5}
    model = build_model(model_name, graph, given)
    with tempfile.TemporaryDirectory() as folder:
        run = og.train(
            graph,
            model,
            strategy=og.Full(),
            epochs=options.epochs,
            seed=seed,
            lr=options.lr,
            out=Path(folder) / "run",
            progress=False,
        )
        return [line["val_score"] for line in run.metrics]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["cora", "amazon-photo", "wordnet"])
    add("--models", nargs="+", default=["gcn", "decoupled"])
    add("--layers", type=int, default=2)
    add("--hidden", type=int, default=64)
    add("--lr", type=float, default=0.01)
    add("--epochs", type=int, default=100)
    add("--seeds", type=int, default=3)
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
