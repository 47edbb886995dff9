"""Accuracy after each epoch of the same mini-batches, by `sampled` on one worker and by `split` on several.

    python benchmarks/split_accuracy.py --data-dir DATA
    python benchmarks/split_accuracy.py --graphs wordnet --epochs 5 --workers 2

GSplit's figure 10. Both compute the same, so curves differ by rounding alone. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og

HIDDEN, LR = 128, 0.003


def run_of(graph: og.Graph, options: argparse.Namespace, strategy: str, workers: int) -> dict[str, Any]:
    """Scores of the validation nodes by epoch, the losses, and the test accuracy of the best epoch."""
    torch.manual_seed(options.seed)
    model = og.nn.SAGE(graph.num_features, HIDDEN, graph.num_classes, layers=2, dropout=0.5)
    given = {"batch_size": options.batch_size, "fanout": (10, 10), "lr": LR, "epochs": options.epochs}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        run = og.train(
            graph, model, strategy=strategy, workers=workers, seed=options.seed, out=out, progress=False, **given
        )
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return {"val_accuracy": [line["val_score"] for line in lines], "loss": run.loss, "test": run.test_accuracy}


def main() -> None:
    """Train, compare, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["amazon-photo", "coauthor-cs", "wordnet"])
    add("--workers", type=int, default=4)
    add("--epochs", type=int, default=10)
    add("--batch-size", type=int, default=512)
    add("--seed", type=int, default=0)
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    rows = []
    for name in options.graphs:
        graph = og.load(name, data_dir=options.data_dir)
        alone, split = run_of(graph, options, "sampled", 1), run_of(graph, options, "split", options.workers)
        pairs = zip(alone["loss"], split["loss"], strict=True)
        apart = max(abs(mine - other) / other for other, mine in pairs)
        rows.append({"graph": name, "sampled": alone, "split": split, "largest_difference_of_losses": apart})
        for strategy, found in (("sampled", alone), ("split", split)):
            curve = " ".join(f"{100 * score:.1f}" for score in found["val_accuracy"])
            print(f"{name:<14} {strategy:<8} val {curve}  test {100 * found['test']:.2f}")
        print(f"{name:<14} losses differ by at most {apart:.1e}")
    parameters = {name: getattr(options, name) for name in ("workers", "epochs", "batch_size", "seed")}
    figures = {"parameters": {**parameters, "hidden": HIDDEN, "lr": LR}, "versions": versions(), "rows": rows}
    print(record.write("split_accuracy", figures, options.out))


if __name__ == "__main__":
    main()
