"""Accuracy after each epoch of mini-batches: `sampled` on one worker, and other ways on several.

    python benchmarks/batch_accuracy.py --data-dir DATA
    python benchmarks/batch_accuracy.py --graphs wordnet --epochs 5 --workers 2 --ways split local-shuffles
    python benchmarks/batch_accuracy.py --models sage gat --ways split --seeds 3 --workers 2 --data-dir DATA

GSplit's figure 10 and HopGNN's table 3. `split` and `migrate` compute what `sampled` does, so curves differ by rounding
alone; batches of local shuffles are others, and biased. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import product
from pathlib import Path
from typing import Any

import record
import torch
from rivals import micro_batches
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.strategies.base import Strategy

LR = 0.003
WAYS: dict[str, Strategy] = {
    "sampled": og.Sampled(),
    "split": og.SplitParallel(),
    "migrate": og.Migrate(),
    "migrate-travel": og.Migrate(move_model=True),
    "local-shuffles": micro_batches.LocalShuffles(),
}


def run_of(
    graph: og.Graph, options: argparse.Namespace, model_name: str, way: str, workers: int, seed: int
) -> dict[str, Any]:
    """Scores of the validation nodes by epoch, the losses, and the test accuracy of the best epoch."""
    torch.manual_seed(seed)
    fanout = tuple(options.fanout)
    model = build_model(model_name, graph, {"hidden": options.hidden, "layers": len(fanout), "dropout": 0.5})
    given = {"batch_size": options.batch_size, "fanout": fanout, "lr": LR, "epochs": options.epochs}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = og.train(graph, model, strategy=WAYS[way], workers=workers, seed=seed, out=out, progress=False, **given)
        scores = [line["val_score"] for line in run.metrics]
    return {
        "model": model_name,
        "way": way,
        "workers": workers,
        "seed": seed,
        "val_accuracy": scores,
        "loss": run.loss,
        "test": run.test_accuracy,
    }


def rows_of(graph: og.Graph, options: argparse.Namespace) -> list[dict[str, Any]]:
    """All models and ways with all seeds; how far losses are from those of `sampled` on one worker."""
    rows = []
    for model, seed in product(options.models, range(options.seeds)):
        alone = run_of(graph, options, model, "sampled", 1, seed)
        for found in (alone, *(run_of(graph, options, model, way, options.workers, seed) for way in options.ways)):
            pairs = zip(alone["loss"], found["loss"], strict=True)
            apart = max(abs(mine - other) / other for other, mine in pairs)
            rows.append({"graph": graph.name, **found, "largest_difference_of_losses": apart})
            curve = " ".join(f"{100 * score:.1f}" for score in found["val_accuracy"])
            name = f"{graph.name} {model} {found['way']} on {found['workers']}, seed {seed}"
            print(f"{name:<48} val {curve}  test {100 * found['test']:.2f}, losses apart {apart:.1e}", flush=True)
    return rows


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["amazon-photo", "coauthor-cs", "wordnet"])
    add("--ways", nargs="*", choices=WAYS, default=["split", "migrate", "local-shuffles"])
    add("--models", nargs="+", choices=("sage", "gat"), default=["sage"])
    add("--fanout", nargs="+", type=int, default=[10, 10], help="hops outward; a layer for each")
    add("--hidden", type=int, default=128)
    add("--workers", type=int, default=4)
    add("--epochs", type=int, default=10)
    add("--batch-size", type=int, default=512)
    add("--seeds", type=int, default=1)
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    rows = [row for name in options.graphs for row in rows_of(og.load(name, data_dir=options.data_dir), options)]
    parameters = {
        name: getattr(options, name) for name in ("workers", "epochs", "batch_size", "seeds", "fanout", "hidden")
    }
    figures = {"parameters": {**parameters, "lr": LR}, "versions": versions(), "rows": rows}
    print(record.write("batch_accuracy", figures, options.out))


if __name__ == "__main__":
    main()
