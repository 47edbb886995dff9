"""Memory of models with modules per type, and of attention with features of edges, as planned and as held.

    python benchmarks/typed_memory.py --folder DIR
    python benchmarks/typed_memory.py --folder DIR --cases hgt:full:1 sage:full:2 --scale 0.02

Models, two layers 64 wide: HGT and R-GCN with matrices on ``ogbn-mag@SCALE``, whose types without features have
learned rows; `to_hetero` of SAGE, and GATv2 with 16 features of each edge, on that graph with random features of all
types. A case is trained for three epochs from a store in the folder, after one that compiles kernels. See README.md.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.plan.question import PlanRequest, answer_request
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.ops.block_rows import BlockRows

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "hgt": ("mag", {"model": "hgt"}),
    "rgcn-typed": ("mag", {"model": "rgcn-typed"}),
    "sage": ("filled", {"model": "sage", "hetero": True}),
    "gatv2": ("edges", {"model": "gatv2"}),
}
STRATEGIES = {"full": {}, "sampled": {"batch_size": 1024, "fanout": "10,10"}}
CASES = tuple(f"{model}:{strategy}:{workers}" for strategy in STRATEGIES for workers in (1, 2) for model in MODELS)
HIDDEN, EDGE_FEATURES = 64, 16


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    _write_graphs(options.folder, options.scale)
    rows = []
    for case in options.cases:
        rows.append(_measure(case, options))
        print(rows[-1], flush=True)
    given = {"cases": options.cases, "scale": options.scale, "hidden": HIDDEN, "edge_features": EDGE_FEATURES}
    print(record.write("typed_memory", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _write_graphs(folder: Path, scale: str) -> None:
    if (folder / "edges").exists():
        return
    graph, rng = og.load(f"ogbn-mag@{scale}"), np.random.default_rng(0)
    write_store(graph, folder / "mag")
    filled = _fill_rows(graph, rng)
    write_store(filled, folder / "filled")
    drawn = torch.from_numpy(rng.standard_normal((graph.num_edges, EDGE_FEATURES), dtype=np.float32))
    write_store(replace(filled, topology=replace(filled.topology, edge_features=drawn)), folder / "edges")


def _fill_rows(graph: Graph, rng: np.random.Generator) -> Graph:
    """The graph with dense rows of one matrix; nodes without features get random ones."""
    assert isinstance(graph.features, BlockRows)
    dense, papers = graph.features.to_dense(), graph.types.borders[1]
    drawn = rng.standard_normal(dense[papers:].shape, dtype=np.float32)
    dense[papers:] = torch.from_numpy(drawn).to(dense.dtype)
    kinds = tuple(replace(kind, num_columns=0) for kind in graph.node_types)
    return replace(graph, features=dense, node_types=kinds)


def _measure(case: str, options: argparse.Namespace) -> dict[str, Any]:
    name, strategy, workers = case.split(":")
    graph, given = MODELS[name]
    store = options.folder / graph
    batches = STRATEGIES[strategy]
    asked = PlanRequest(
        graph=str(store),
        model=given["model"],
        options={"hidden": HIDDEN, **batches} | ({"hetero": True} if given.get("hetero") else {}),
        workers=int(workers),
        hardware="2-core-cpu",
    )
    [found] = [each for each in answer_request(asked)[0].candidates if each.name == strategy]
    assert found.estimate is not None
    words = [f"--{word.replace('_', '-')}={value}" for word, value in batches.items()]
    words += ["--set", "hetero=true"] if given.get("hetero") else []
    command = ["train", str(store), "--model", given["model"], "--hidden", str(HIDDEN), "--strategy", strategy, *words]
    command += ["--workers", workers, "--json"]
    for epochs in ("1", "3"):
        shutil.rmtree(options.folder / "run", ignore_errors=True)
        summary = _outgrow(*command, "--epochs", epochs, "--out", str(options.folder / "run"))
    planned, held = found.estimate.peak_bytes, summary["peak_bytes"]["device"]
    return {
        "model": name,
        "strategy": strategy,
        "workers": int(workers),
        "planned_bytes": planned,
        "held_bytes": held,
        "planned_by_held": planned / held,
    }


def _outgrow(*arguments: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "outgrow", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(done.stderr)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="folder on a disk, where stores are made unless they are there")
    add("--cases", nargs="+", default=list(CASES), metavar="MODEL:STRATEGY:WORKERS")
    add("--scale", default="0.02", help="scale of ogbn-mag")
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
