"""Test accuracy of HGT and `to_hetero(SAGE)` on HeCo ACM: ours and PyG's own, same split, several seeds.

    python benchmarks/typed_accuracy.py --data-dir DATA --seeds 5

Both are trained on the whole graph with Adam, the same widths, rates and epochs, each from its own initial values; the
test accuracy is that of the epoch with the best validation accuracy. Needs torch_geometric. DBLP, the other graph of
PyG's examples, is not among the data at hand.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
import torch  # noqa: E402
from rivals import ours_typed, pyg_typed  # noqa: E402
from rivals.typed_data import Facts, TypedArrays, read_facts, read_typed, write  # noqa: E402

import outgrow as og  # noqa: E402

MODELS = ("hgt", "sage")
RATE, DECAY = 0.005, 0.001


class Score(NamedTuple):
    """Test accuracy of the epoch with the best validation accuracy, and that epoch, from 1."""

    test: float
    epoch: int


def train_ours(name: str, graph: og.Graph, facts: Facts, epochs: int) -> Score:
    """Train our model."""
    model = ours_typed.make_model(name, graph, facts)
    run = og.train(graph, model, epochs=epochs, lr=RATE, weight_decay=DECAY, patience=None)
    return Score(float(run.test_accuracy), int(run.summary["best_epoch"]))


def train_pyg(name: str, arrays: TypedArrays, split: og.Split, facts: Facts, epochs: int) -> Score:
    """Train PyG's model, in the loop of its examples."""
    target = pyg_typed.target_type(facts, arrays)
    module = pyg_typed.make_module(facts, name, target)
    inputs = pyg_typed.make_inputs(facts, arrays, name, "edge-index")
    first = facts.type_nodes(target).start
    labels = torch.from_numpy(arrays.labels)

    def logits() -> torch.Tensor:
        out: Any = module(*inputs)
        found: torch.Tensor = out if name == "hgt" else out[target]
        return found

    with torch.no_grad():
        logits()  # lazy parameters get their shapes
    optimizer = torch.optim.Adam(module.parameters(), lr=RATE, weight_decay=DECAY)
    best, found = -1.0, Score(0.0, 0)
    for epoch in range(1, epochs + 1):
        out = logits()
        loss = torch.nn.functional.cross_entropy(out[split.train - first], labels[split.train])
        optimizer.zero_grad()
        torch.autograd.backward(loss)
        optimizer.step()
        with torch.no_grad():
            guess = logits().argmax(1)
        val, test = (
            float((guess[nodes - first] == labels[nodes]).double().mean()) for nodes in (split.val, split.test)
        )
        if val > best:
            best, found = val, Score(test, epoch)
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--models", type=lambda text: text.split(","), default=list(MODELS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=60)
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    split = og.load("heco-acm", data_dir=options.data_dir).split
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder), "acm", options.hidden, 1, options.data_dir)
        facts, arrays = read_facts(Path(folder)), read_typed(Path(folder), edge_features=False)
    graph = replace(ours_typed.make_graph(facts, arrays, edge_features=False), split=split)
    rows = []
    for name in options.models:
        scores: dict[str, list[Score]] = {"outgrow": [], "pyg": []}
        for seed in range(options.seeds):
            began = time.process_time()
            torch.manual_seed(seed)
            scores["outgrow"].append(train_ours(name, graph, facts, options.epochs))
            torch.manual_seed(seed)
            scores["pyg"].append(train_pyg(name, arrays, split, facts, options.epochs))
            print(name, seed, {who: each[-1] for who, each in scores.items()}, time.process_time() - began, flush=True)
        tests = {who: [score.test for score in each] for who, each in scores.items()}
        best_epochs = {who: [score.epoch for score in each] for who, each in scores.items()}
        means = {who: statistics.mean(each) for who, each in tests.items()}
        deviations = {who: statistics.stdev(each) if len(each) > 1 else 0.0 for who, each in tests.items()}
        within = means["outgrow"] >= means["pyg"] - deviations["pyg"]
        found = {"test": tests, "best_epoch": best_epochs, "mean": means, "deviation": deviations}
        rows.append({"model": name, **found, "within": within})
        print(rows[-1], flush=True)
    parameters = {"graph": "heco-acm", "lr": RATE, "weight_decay": DECAY, "layers": 2, "dropout": 0.0}
    given = {name: getattr(options, name) for name in ("seeds", "epochs", "hidden")}
    versions = {"torch": torch.__version__, "torch_geometric": __import__("torch_geometric").__version__}
    print(
        record.write(
            "typed_accuracy", {"parameters": parameters | given, "versions": versions, "rows": rows}, options.out
        )
    )


if __name__ == "__main__":
    main()
