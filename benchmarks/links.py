"""Link prediction on WordNet: MRR and Hits@k of Outgrow's models and of PyG's example recipe, and what an epoch takes.

    python benchmarks/links.py --data-dir DATA                       # all rows, 3 seeds
    python benchmarks/links.py --rows rgcn,pyg --seeds 1 --epochs 20

All rows have the same split, which leaves no edge between two nodes whose link is asked for, the same kind of
negatives, one for each link, and the same ranking, which is ours. PyG's rows are its example of R-GCN with DistMult
(two layers of `RGCNConv` in blocks, dropout, Adam, a penalty on rows and relations, clipped gradients) as it is, with a
trained vector for each node, and the same with our features, projected at random to the width of the hidden layer,
since `RGCNConv` takes dense rows. The best of the evaluated epochs by validation MRR counts. `--minutes` ends a row of
PyG's after that much training, whatever is left of its epochs, and then evaluates. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.link_task import make_link_split, node_type_offsets
from outgrow.app.model_registry import build_model
from outgrow.app.recipes import find_recipe
from outgrow.engine.link_ranking import KnownLinks, LinkRanker
from outgrow.engine.shard import FullGraphShard
from outgrow.graph.graph import Graph
from outgrow.ops.sparse import SparseRows

BLOCKS, PENALTY, CLIP, PYG_DROPOUT = 4, 1e-2, 1.0, 0.2


class Figures(NamedTuple):
    """What a row came to: scores of the best epoch, seconds of an epoch, and how many there were."""

    val: dict[str, float]
    test: dict[str, float]
    best_epoch: int
    epoch_seconds: float
    epochs: int


def ours(name: str) -> Callable[[Graph, argparse.Namespace, int], Figures]:
    """A model of ours under its recipe."""

    def run(graph: Graph, options: argparse.Namespace, seed: int) -> Figures:
        recipe = find_recipe(graph.name, name, links=True)
        torch.manual_seed(seed)
        model = build_model(name, graph, {**recipe.model, "hidden": options.hidden, "decoder": "distmult"})
        training = {**recipe.train, "epochs": options.epochs, "eval_every": options.eval_every, "seed": seed}
        summary = og.train(graph, model, progress=False, **training).summary
        seconds = statistics.median(summary["epoch_seconds"])
        scores, epochs = summary["scores"], summary["epochs"]
        return Figures(scores["val"], scores["test"], summary["best_epoch"], seconds, epochs)

    return run


def pyg(*, features: bool) -> Callable[[Graph, argparse.Namespace, int], Figures]:
    """PyG's example, with a trained vector for each node or with features."""

    def run(graph: Graph, options: argparse.Namespace, seed: int) -> Figures:
        from rivals.pyg_links import Recipe, epoch, rows_of

        torch.manual_seed(seed)
        split = make_link_split(graph, og.TrainConfig())
        given = _projected(graph, options.hidden) if features else None
        recipe = Recipe(graph.num_nodes, options.hidden, graph.num_relations, given, BLOCKS, PYG_DROPOUT)
        optimizer = torch.optim.Adam(recipe.parameters(), lr=0.01)
        decoder = og.nn.DistMult(options.hidden, graph.num_relations)
        decoder.relation = recipe.relation
        best, seconds = Figures({}, {}, 0, 0.0, 0), list[float]()
        for number in range(1, options.epochs + 1):
            began = time.perf_counter()
            epoch(recipe, optimizer, split.topology, penalty=PENALTY, clip=CLIP)
            seconds.append(time.perf_counter() - began)
            ended = sum(seconds) > 60 * options.minutes
            if ended or number % options.eval_every == 0:
                rows = rows_of(recipe, split.topology)
                val, test = (_ranked(graph, split, links, decoder, rows) for links in (split.val, split.test))
                if not best.val or val["mrr"] > best.val["mrr"]:
                    best = Figures(val, test, number, 0.0, 0)
            if ended:
                break
        return best._replace(epoch_seconds=statistics.median(seconds), epochs=len(seconds))

    return run


ROWS = {
    "rgcn": ours("rgcn"),
    "sage": ours("sage"),
    "decoupled": ours("decoupled"),
    "pyg": pyg(features=False),
    "pyg-features": pyg(features=True),
}


def _ranked(graph: Graph, split: Any, links: Any, decoder: og.nn.Decoder, rows: torch.Tensor) -> dict[str, float]:
    share = FullGraphShard(split.topology)
    answers = KnownLinks(split.known, graph.num_nodes, directed=True)
    return LinkRanker(share, decoder, links, answers, node_type_offsets(graph)).rank_links(rows).compute_metrics()


def _projected(graph: Graph, columns: int) -> torch.Tensor:
    assert isinstance(graph.features, SparseRows)
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(graph.num_features, columns, generator=generator)
    return graph.features.to(torch.float32) @ directions


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--rows", default=",".join(ROWS), help="which rows, such as rgcn,pyg")
    add("--seeds", type=int, default=3)
    add("--epochs", type=int, default=100)
    add("--eval-every", type=int, default=20)
    add("--minutes", type=float, default=float("inf"), help="of training, for each row of PyG's")
    add("--hidden", type=int, default=128)
    add("--data-dir", type=Path, help="folder of the files of named data sets")
    add("--out", type=Path, help="file of the figures")
    return parser.parse_args()


def main() -> None:
    """Train, rank, show, write."""
    options = _parse()
    graph = og.load("wordnet", data_dir=options.data_dir)
    found: dict[str, list[dict[str, Any]]] = {}
    for name in options.rows.split(","):
        for seed in range(options.seeds):
            figures = ROWS[name](graph, options, seed)
            found.setdefault(name, []).append(figures._asdict())
            scores = "  ".join(f"{key} {value:.4f}" for key, value in figures.test.items())
            line = f"{name:<13} seed {seed}  {scores}  {figures.epochs} epochs of {figures.epoch_seconds:.2f} s"
            print(line, file=sys.stderr, flush=True)
    for name, runs in found.items():
        mrr = [run["test"]["mrr"] for run in runs]
        print(f"{name:<13} MRR {statistics.mean(mrr):.4f} ({min(mrr):.4f} to {max(mrr):.4f})")
    parameters = {name: getattr(options, name) for name in ("seeds", "epochs", "eval_every", "minutes", "hidden")}
    print(record.write("links", {"parameters": parameters, "versions": versions(), "rows": found}, options.out))


if __name__ == "__main__":
    main()
