"""WordNet links by R-GCN, in mini-batches and in steps over the whole graph: test scores beside seconds of training.

    taskset -c 0 python benchmarks/link_batch_scores.py --data-dir DATA

Both train the same model with the same loss, negatives and learning rate, ten epochs each, one after the other on the
same cores. Links are ranked among all nodes. See README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import record
from tables import show
from workers import versions

MODEL = "--task links --model rgcn --hidden 64 --layers 2 --dropout 0 --set bases=4 --set norm=false"
LOSS = "--set link_loss=softmax --set negative_sampling=shared --set negatives=512 --lr 0.01 --set optimizer=adam"
SPLIT = "--set val_links=0.002 --set test_links=0.01 --seed 0"
WAYS = {
    "sampled": "--strategy sampled --batch-size 4096 --fanout 10,10",
    "full": "--strategy full --set link_steps=32",
}


def train(way: str, options: argparse.Namespace) -> dict[str, Any]:
    """Train in one way; return its scores and its seconds."""
    with tempfile.TemporaryDirectory() as folder:
        words = f"train wordnet {MODEL} {LOSS} {SPLIT} {WAYS[way]} --epochs {options.epochs} --json --out {folder}/run"
        words += f" --set eval_every={options.epochs}"
        words += f" --data-dir {options.data_dir}" if options.data_dir else ""
        done = subprocess.run(
            [sys.executable, "-m", "outgrow", *words.split()], capture_output=True, text=True, check=True
        )
    summary = json.loads(done.stdout.splitlines()[-1])
    seconds = summary["epoch_seconds"]
    return {
        "way": way,
        "seconds": sum(seconds),
        "epoch_seconds": seconds,
        "test": summary["test_score"],
        "ranks": {name: summary["links"]["test"][name] for name in ("links", "mrr", "hits@1", "hits@3", "hits@10")},
    }


def main() -> None:
    """Train in both ways, and write their scores."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the files of named data sets")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    rows = [train(way, options) for way in WAYS]
    show("test links of WordNet", [{name: row[name] for name in ("way", "seconds", "test")} for row in rows])
    print(record.write("link_batch_scores", {"versions": versions(), "rows": rows}, options.out))


if __name__ == "__main__":
    main()
