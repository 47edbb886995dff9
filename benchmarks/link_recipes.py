"""Link prediction: recipes, found by validation alone, and what each part of them is worth (an ablation).

    python benchmarks/link_recipes.py wordnet --rows untrained,vectors,layer --minutes 10 --seeds 3
    python benchmarks/link_recipes.py DATA/kg_wn18rr --rows complex,distmult,compgcn --minutes 20
    python benchmarks/link_recipes.py DATA/kg_codex_s --rows complex --options link_steps=32 regularizer_weight=0.01
    python benchmarks/link_recipes.py DATA/kg_codex_s --try complex --options lr=0.05,0.1 regularizer_weight=1e-4,1e-3

Each row has a name in `ROWS`; `--minutes` ends its training after
that much time, evaluations excluded. Epochs are compared by validation MRR, and the test links are ranked once, with
the model of the best epoch. `--try` runs a row with each combination of some options, and ranks no test links at all:
this is how `ROWS` was found, and what differs between graphs: the weight of the regulariser, and the number of steps
with which a step asks about 1,000 links.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from argparse import Namespace
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.link_run import make_link_evaluation
from outgrow.app.link_task import make_link_split
from outgrow.app.model_registry import build_model, model_options
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.ops.sparse import SparseRows

SHARED: Mapping[str, Any] = {
    "link_loss": "softmax",
    "negative_sampling": "shared",
    "negatives": 512,
    "link_steps": 64,
    "lr": 0.01,
    "embedding_lr": 0.01,
    "eval_every": 3,
    "epochs": 1000,
}

PENALTY = {"regularizer": "n3", "regularizer_weight": 0.005}
VECTORS = {**SHARED, **PENALTY, "model": "embedding", "hidden": 200, "decoder": "distmult", "dropout": 0.2}
LAYER = {
    **{**SHARED, **PENALTY, "link_steps": 7, "hide": 0.15},
    **{"model": "rgcn", "layers": 1, "hidden": 200, "embedding": 200, "decoder": "distmult", "dropout": 0.2},
}
KNOWLEDGE = {
    **{**SHARED, "link_steps": 80, "negatives": 1000, "filter_negatives": False},
    **{"optimizer": "adagrad", "embedding_optimizer": "adagrad", "lr": 0.1, "embedding_lr": 0.1},
    **{"regularizer": "n3", "regularizer_weight": 0.05},
}
ALONE = {"model": "embedding", "hidden": 400, "std": 0.05}
LAYERED = {
    **{**KNOWLEDGE, "optimizer": "adam", "lr": 0.002, "link_steps": 40, "inverse_relations": True},
    **{"layers": 1, "hidden": 200, "embedding": 200, "embedding_std": 0.05, "residual": True},
}
ROWS: Mapping[str, Mapping[str, Any]] = {
    "vectors": VECTORS,
    "layer": LAYER,
    "layer-not-hidden": {**LAYER, "hide": 0.0},
    "bce": {**VECTORS, "link_loss": "bce", "negative_sampling": "uniform", "negatives": 1},
    "negatives-64": {**VECTORS, "negatives": 64},
    "one-step": {**VECTORS, "link_steps": 1},
    "two-layers": {**LAYER, "layers": 2},
    "complex": {**KNOWLEDGE, **ALONE, "decoder": "complex"},
    "distmult": {**KNOWLEDGE, **ALONE, "decoder": "distmult"},
    "compgcn": {**LAYERED, "model": "compgcn", "decoder": "complex"},
    "compgcn-hidden": {**LAYERED, "model": "compgcn", "decoder": "complex", "hide": 0.05},
    "rgcn": {**LAYERED, "model": "rgcn", "bases": None, "num_blocks": 50, "decoder": "distmult"},
    "no-penalty": {**VECTORS, "regularizer": None},
    "features": {**SHARED, "model": "mlp", "layers": 1, "hidden": 200, "decoder": "distmult", "dropout": 0.2},
    "without-features": {**VECTORS, "combine": "replace"},
}
"""Options of the model and of training, by name of the row."""


class StopAfter(og.Callback):
    """Stops training after so many seconds of it, evaluations excluded; keeps the validation curve."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.curve: list[tuple[float, float]] = []
        self.spent = 0.0

    def on_epoch(self, report: Any) -> None:
        self.spent += report.seconds
        if report.val_score is not None:
            self.curve.append((round(self.spent, 1), report.val_score))
            print(
                f"  {self.spent:7.1f} s  epoch {report.epoch}  loss {report.loss:.4f}  {report.val_score:.4f}",
                flush=True,
            )
        if self.spent > self.seconds:
            report.stop()


@cache
def load(source: str, data_dir: Path | None, *, inverse_relations: bool) -> Graph:
    """Return the graph, with inverse relations if it is a folder of triples and a row wants them."""
    if Path(source).is_dir():
        return og.load(source, inverse_relations=inverse_relations)
    return og.load(source, data_dir=data_dir)


def train(options: Namespace, row: Mapping[str, Any], seed: int, *, tests: bool) -> dict[str, Any]:
    """Train a row; return its scores and its curve over seconds."""
    given = dict(row)
    graph = load(options.graph, options.data_dir, inverse_relations=given.pop("inverse_relations", False))
    known = model_options(row["model"])
    of_model = {name: value for name, value in given.items() if name in known}
    training = {name: value for name, value in given.items() if name not in known and name != "model"}
    torch.manual_seed(seed)
    model = build_model(row["model"], graph, of_model)
    stop = StopAfter(60 * options.minutes)
    began = time.perf_counter()
    run = og.train(
        graph, model, seed=seed, callbacks=[stop], progress=False, test="auto" if tests else "none", **training
    )
    return {
        "seed": seed,
        "val": run.scores["val"],
        "test": run.scores["test"] if tests else {},
        "best_epoch": run.summary["best_epoch"],
        "epochs": run.summary["epochs"],
        "training_seconds": round(stop.spent, 1),
        "wall_seconds": round(time.perf_counter() - began, 1),
        "curve": stop.curve,
    }


def untrained(graph: Graph) -> dict[str, Any]:
    """Return the scores of nothing trained: the cosine of the features, by random projection to 256 columns."""
    assert isinstance(graph.features, SparseRows)
    directions = torch.randn(graph.num_features, 256, generator=torch.Generator().manual_seed(0))
    rows = torch.nn.functional.normalize(graph.features.to(torch.float32) @ directions)
    config = og.TrainConfig()
    split = make_link_split(graph, config)
    model = og.nn.MLP(graph.num_features, 2, 2).with_decoder(og.nn.Dot())
    evaluation = make_link_evaluation(graph, model, split, FullGraphShard(split.topology), config)
    found = {}
    for part, evaluator in zip(("val", "test"), evaluation.final_evaluators(), strict=True):
        evaluator.update(split.topology.nodes, rows)
        found[part] = dict(evaluator.compute().figures)
    return found


def _parse() -> Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("graph", help="a named data set, or a folder of triples")
    add("--rows", default="", help="which rows, such as untrained,vectors")
    add("--try", dest="tried", help="a row of which options are tried, on validation links alone")
    add(
        "--options",
        nargs="*",
        default=[],
        help="of --try values of an option, such as lr=0.01,0.1; of --rows other ones",
    )
    add("--seeds", type=int, default=1)
    add("--minutes", type=float, default=10.0, help="of training, for each row")
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    return parser.parse_args()


def _read(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return text


def main() -> None:
    """Train, rank, show, write."""
    options = _parse()
    found: dict[str, Any] = {}
    if options.tried:
        names, values = (
            zip(*(each.split("=") for each in options.options), strict=True) if options.options else ((), ())
        )
        for chosen in itertools.product(*(map(_read, text.split(",")) for text in values)):
            row = {**ROWS[options.tried], **dict(zip(names, chosen, strict=True))}
            name = " ".join(f"{key}={value}" for key, value in zip(names, chosen, strict=True))
            print(name, flush=True)
            found[name] = train(options, row, 0, tests=False)
            print(f"{name}: validation {found[name]['val']}", flush=True)
    changed = dict(each.split("=") for each in options.options)
    changed = {} if options.tried else {name: _read(text) for name, text in changed.items()}
    for name in filter(None, options.rows.split(",")):
        print(name, flush=True)
        if name == "untrained":
            found[name] = untrained(load(options.graph, options.data_dir, inverse_relations=False))
        else:
            seeds = range(options.seeds)
            found[name] = [train(options, {**ROWS[name], **changed}, seed, tests=True) for seed in seeds]
        print(f"{name}: {json.dumps(found[name])[:600]}", flush=True)
    where = record.write(
        f"link_recipes_{Path(options.graph).name}",
        {
            "versions": versions(),
            "minutes": options.minutes,
            "changed": changed,
            "rows": {k: dict(v) for k, v in ROWS.items()},
            "found": found,
        },
        options.out,
    )
    print(where)


if __name__ == "__main__":
    main()
