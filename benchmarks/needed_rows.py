"""Evaluations that compute what few scored nodes need, beside those that compute all rows but of the last layer.

    python benchmarks/needed_rows.py --graph wordnet --scored 0.03 0.1 0.25 0.35

All ways alternate in one process; figures are medians of the seconds of its cores, which depend less on what else runs
than seconds of the clock, and the largest difference between outputs. The model is the recipe's SAGE of two layers. See
docs/full.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any
from unittest.mock import patch

import record
import torch
from workers import versions

import outgrow as og
from outgrow.engine.features.inputs import fetch_shard_inputs
from outgrow.engine.inference import infer_shard
from outgrow.engine.layer_rows import NeededRows
from outgrow.engine.shard import FullGraphShard
from outgrow.inference import needed_rows


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    graph = og.load(options.graph)
    model = og.nn.SAGE(graph.num_features, options.hidden, graph.num_classes, norm=True, sparse_input=graph.sparse)
    shard = FullGraphShard(graph.topology)
    inputs = fetch_shard_inputs(model, shard, graph.features)
    order = torch.randperm(graph.num_nodes, generator=torch.Generator().manual_seed(0))
    rows = []
    for share in options.scored:
        scored = order[: round(share * graph.num_nodes)].sort().values
        ways: dict[str, NeededRows | None] = {"all rows": None}
        for way, most in (("last layer", 0.0), ("every layer", needed_rows.NEEDED_ROWS)):
            with patch.object(needed_rows, "NEEDED_ROWS", most):
                ways[way] = needed_rows.find_needed_rows(model, shard, scored)
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        with model.evaluating():
            whole = infer_shard(model, shard, inputs)[scored]
            for _ in range(options.rounds):
                for way, needed in ways.items():
                    began = time.process_time()
                    out = infer_shard(model, shard, inputs, needed=needed)
                    seconds[way].append(time.process_time() - began)
        row: dict[str, Any] = {"scored": share, "largest_difference": float((out - whole).abs().max())}
        row |= {way: statistics.median(each[1:]) for way, each in seconds.items()}
        row["every_over_last"] = row["every layer"] / row["last layer"]
        print(row, flush=True)
        rows.append(row)
    given = {name: value for name, value in vars(options).items() if name != "out"}
    print(record.write("needed_rows", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graph", default="wordnet")
    add("--hidden", type=int, default=256)
    add("--scored", type=float, nargs="+", default=[0.03, 0.1, 0.25, 0.35])
    add("--rounds", type=int, default=12)
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
