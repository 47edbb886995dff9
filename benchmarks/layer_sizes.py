"""What each layer of a mini-batch costs: its nodes, its edges, and the bytes of the rows that it reads.

    python benchmarks/layer_sizes.py --graphs reddit@0.2 --fanouts 4,4 --batch-size 10000    # NeutronOrch's figure 7
    python benchmarks/layer_sizes.py --fanouts 10,10,10 10,10,10,10 10,10,10,10,10           # its section 5.7

Nothing is trained. Counts are means of the first batches of an epoch; the bottom layer reads features, the others rows
as wide as hidden layers. Bytes of sparse features are not counted. See README.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import product
from pathlib import Path
from typing import Any

import record
from torch import Tensor
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.engine.batches import BatchConfig
from outgrow.engine.minibatch_loop import make_sampler

_NUMBER = 4  # bytes of float32


def main() -> None:
    """Count, print, write."""
    options = _parser().parse_args()
    rows = [row for name, fanout in product(options.graphs, options.fanouts) for row in count(name, fanout, options)]
    for row in rows:
        print(" ".join(f"{key} {value}" for key, value in row.items()), flush=True)
    given = {name: value for name, value in vars(options).items() if name != "out"}
    print(record.write("layer_sizes", {"parameters": given, "versions": versions(), "rows": rows}, options.out))


def count(name: str, fanout: tuple[int, ...], options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """One row for each layer, the bottom one first."""
    graph = og.load(name)
    model = build_model(options.model, graph, {"hidden": options.hidden, "layers": len(fanout)})
    batches = BatchConfig(size=options.batch_size, fanout=fanout)
    sampler = make_sampler(graph.topology, model, batches, options.seed)
    seeds = batches.seeds_of_epoch(graph.split.train, options.seed, 1)[: options.batches]
    drawn = [sampler.sample_blocks(each, 1, step) for step, each in enumerate(seeds)]
    edges = sum(block.edges.num_edges for sample in drawn for block in sample)
    for layer in range(len(fanout)):
        blocks = [sample[layer] for sample in drawn]
        width = options.hidden if layer else graph.num_features
        dense = layer > 0 or isinstance(graph.features, Tensor)
        computed = statistics.fmean(block.edges.num_dst for block in blocks)
        read = statistics.fmean(block.edges.num_src for block in blocks)
        yield {
            "graph": name,
            "layers": len(fanout),
            "fanout": fanout,
            "layer": layer + 1,
            "nodes_read": read,
            "nodes_computed": computed,
            "edges": statistics.fmean(block.edges.num_edges for block in blocks),
            "share_of_edges": sum(block.edges.num_edges for block in blocks) / edges,
            "read_mb": read * width * _NUMBER / 1e6 if dense else None,
        }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["products@0.05", "papers100M@0.005", "wordnet"])
    add("--fanouts", nargs="+", type=_numbers, default=[(10, 10, 10)], help="what each hop draws, from the seeds on")
    add("--model", default="gcn")
    add("--hidden", type=int, default=128)
    add("--batch-size", type=int, default=1024)
    add("--batches", type=int, default=4, help="the first ones of an epoch")
    add("--seed", type=int, default=0)
    add("--out", type=Path, help="file of the figures")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split(",")))


if __name__ == "__main__":
    main()
