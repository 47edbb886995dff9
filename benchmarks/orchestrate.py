"""What the bottom layer on the CPU saves and costs: NeutronOrch's figures 12, 13, 16 and tables 5, 6.

    python benchmarks/orchestrate.py transfer                                      # figures 13 and 14
    python benchmarks/orchestrate.py accuracy --graphs amazon-photo --data-dir DATA    # figure 16
    python benchmarks/orchestrate.py accuracy --layers 3 4 5 --batch-sizes 256 1024 10000    # tables 5 and 6
    python benchmarks/orchestrate.py steps --graphs products@0.05 --device cuda    # figure 12, best on a GPU

See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import record
import torch
from orchestrate_counts import BEFORE, EPOCH, Costs, Epoch
from rivals.orchestra import Altered, ByLayer
from torch import Tensor
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.engine.batches import BatchConfig
from outgrow.engine.minibatch_loop import make_sampler
from outgrow.strategies.base import Strategy

Rows = list[dict[str, Any]]
FANOUT = (25, 10, 5, 5, 5)
LR = 0.003


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    rows: Rows = []
    for name in options.graphs:
        graph = og.load(name, data_dir=options.data_dir)
        if options.width:
            graph = replace(graph, features=_random(graph.num_nodes, options))
        for row in options.table(graph, options):
            rows.append({"graph": name, **row})
            print(" ".join(f"{key} {_short(value)}" for key, value in rows[-1].items()), flush=True)
    given = {name: value for name, value in vars(options).items() if name not in ("table", "out", "data_dir")}
    figures = {"parameters": given, "versions": versions(), "rows": rows}
    print(record.write(f"orchestrate_{options.command}", figures, options.out))


def transfer_rows(graph: og.Graph, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Figures 13, 14: what goes to the device, and what it computes, beside caches of as much memory, or nodes."""
    model = _model(graph, options, options.layers[0])
    batches = BatchConfig(size=options.batch_sizes[0], fanout=FANOUT[: options.layers[0]])
    sampler = make_sampler(graph.topology, model, batches, options.seed)
    of = {
        each: batches.seeds_of_epoch(graph.split.train, options.seed, each)[: options.batches]
        for each in (*BEFORE, EPOCH)
    }
    none = Epoch(topology=graph.topology, sampler=sampler, batches=of, super_batch=1).static(
        "degree", 0, _costs(model, graph, "none")
    )
    for size, ratio, gradient in product(options.super_batches, options.ratios, ("cpu", "device", "none")):
        epoch = Epoch(topology=graph.topology, sampler=sampler, batches=of, super_batch=size)
        costs = _costs(model, graph, gradient)
        ours = epoch.orchestrated(ratio, costs)
        case: dict[str, Any] = {
            "super_batch": size,
            "ratio": ratio,
            "gradient_on": gradient,
            "batches": len(of[EPOCH]),
            "no_cache_mb": none["bytes"] / 1e6,
        }
        case |= {"mb": ours["bytes"] / 1e6, "back_mb": ours["back"] / 1e6, "memory_mb": ours["memory"] / 1e6}
        case |= {"bottom_rows_computed": ours["computed"] / none["computed"], "raw_rows": ours["rows"] / none["rows"]}
        case["hits"] = ours["hits"] / max(1, ours["reused_rows"])
        same_memory, same_nodes = ours["memory"] // (4 * costs.features), round(ratio * graph.num_nodes)
        for by, (what, rows) in product(("degree", "presampling"), (("memory", same_memory), ("nodes", same_nodes))):
            static = epoch.static(by, rows, costs)
            case[f"over_{by}_same_{what}"] = ours["bytes"] / static["bytes"]
            case[f"both_ways_over_{by}_same_{what}"] = (ours["bytes"] + ours["back"]) / static["bytes"]
            if what == "nodes":
                case[f"memory_over_{by}"] = ours["memory"] / max(1, static["memory"])
        yield case


def _costs(model: og.nn.Model, graph: og.Graph, gradient: str) -> Costs:
    """For a gradient on the device sums of raw features travel with embeddings, and a node's own if the layer reads it.

    Parameters go to the CPU in any case, as embeddings are computed there.
    """
    layer = model.layers_list()[0]
    assert isinstance(graph.features, Tensor), "sums of sparse rows are another matter: give a --width"
    columns = layer.spec.in_features * (1 + layer.reads_target) if gradient == "device" else 0
    return Costs(
        features=graph.num_features,
        reused=layer.spec.out_features + columns,
        returned=layer.spec.out_features if gradient == "cpu" else 0,
        parameters=sum(each.numel() for each in layer.parameters()),
    )


def _random(num_nodes: int, options: argparse.Namespace) -> Tensor:
    """Features of which nothing is read where nothing is trained."""
    if options.command == "transfer":
        return torch.empty(1, options.width).expand(num_nodes, options.width)
    return torch.randn(num_nodes, options.width)


def _ways(options: argparse.Namespace) -> Mapping[str, Strategy]:
    given: Any = {"hot_ratio": options.ratios[0], "super_batch": options.super_batch}
    orchestrate = partial(og.Orchestrate, **given)
    return {
        "sampled": og.Sampled(),
        "orchestrate": orchestrate(),
        "constants": orchestrate(hot_gradient=False),
        **{f"n={size}": orchestrate(super_batch=size) for size in (1, 2, 4, 8, 16)},
        **{f"ratio={ratio}": partial(og.Orchestrate, **{**given, "hot_ratio": ratio})() for ratio in (0.1, 0.3)},
        "aggregates": orchestrate(reuse="aggregate"),
        "unbounded": Altered(inner=orchestrate(hot_gradient=False), bounded=False),
        "L": ByLayer(),
        "L+HE": Altered(inner=orchestrate(), pipeline=False),
        "L+HE+HH": Altered(inner=orchestrate(cache=options.cache), pipeline=False),
        "L+HE+HH+S": orchestrate(cache=options.cache),
    }


def accuracy_rows(graph: og.Graph, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Figure 16, tables 5 and 6: test accuracy of the epoch that was best in validation, after equally many epochs."""
    for layers, batch_size, way in product(options.layers, options.batch_sizes, options.ways):
        runs = [_trained(graph, options, way, layers, batch_size, seed) for seed in range(options.seeds)]
        tests = [run.test_accuracy for run in runs]
        row = {"layers": layers, "batch_size": batch_size, "way": way, "test": statistics.fmean(tests), "tests": tests}
        stale = max(run.summary["counters"].get("staleness_max", 0) for run in runs)
        yield row | {"loss": runs[0].loss, "staleness_max": stale}


def step_rows(graph: og.Graph, options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Figure 12: seconds of an epoch as the parts are added, in turns; the first epoch of each run is not counted."""
    found: dict[str, list[float]] = {way: [] for way in options.ways}
    runs = {}
    for turn, way in product(range(options.seeds), options.ways):
        runs[way] = _trained(graph, options, way, options.layers[0], options.batch_sizes[0], turn)
        found[way] += runs[way].summary["epoch_seconds"][1:]
    for way, seconds in found.items():
        ledger, counters = runs[way].summary["ledger"]["host_to_device"], runs[way].summary["counters"]
        row: dict[str, Any] = {"way": way, "seconds": statistics.median(seconds), "all": seconds, "crossed": ledger}
        yield row | {name: counters.get(name, 0) for name in ("rows_loaded", "rows_computed", "hot_rows_computed")}


def _trained(graph: og.Graph, options: argparse.Namespace, way: str, layers: int, batch_size: int, seed: int) -> og.Run:
    torch.manual_seed(seed)
    model = _model(graph, options, layers)
    return og.train(
        graph,
        model,
        strategy=_ways(options)[way],
        batch_size=batch_size,
        fanout=FANOUT[:layers],
        workers=options.workers,
        device=options.device,
        epochs=options.epochs,
        seed=seed,
        lr=LR,
        progress=False,
    )


def _model(graph: og.Graph, options: argparse.Namespace, layers: int) -> og.nn.Model:
    return build_model(options.model, graph, {"hidden": options.hidden, "layers": layers, "dropout": 0.5})


def _short(value: object) -> object:
    if isinstance(value, float):
        return f"{value:.4g}"
    return [_short(each) for each in value] if isinstance(value, list) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    tables = {"transfer": transfer_rows, "accuracy": accuracy_rows, "steps": step_rows}
    for name, table in tables.items():
        add = (command := commands.add_parser(name, help=table.__doc__)).add_argument
        command.set_defaults(table=table)
        graphs = {"accuracy": ["amazon-photo", "coauthor-cs", "wordnet", "reddit@0.02"]}
        add("--graphs", nargs="+", default=graphs.get(name, ["products@0.1", "reddit@0.05"]))
        add("--data-dir", type=Path, help="where files of real graphs are looked for")
        add("--width", type=int, help="width of random features, instead of the graph's own")
        add("--model", choices=("gcn", "sage", "gat"), default="gcn" if name == "transfer" else "sage")
        add("--hidden", type=int, default=128)
        add("--layers", nargs="+", type=int, default=[3])
        add("--batch-sizes", nargs="+", type=int, default=[1024], help="seeds of all workers")
        add("--super-batch", type=int, default=1)
        add("--ratios", nargs="+", type=float, default=[0.1, 0.2, 0.3] if name == "transfer" else [0.2])
        add("--seed", type=int, default=0)
        add("--out", type=Path)
        if name == "transfer":
            add("--super-batches", nargs="+", type=int, default=[1, 2, 4, 8, 16])
            add("--batches", type=int, help="the first ones of the epochs only")
        else:
            ways = ["L", "L+HE", "L+HE+HH", "L+HE+HH+S"] if name == "steps" else []
            add("--ways", nargs="+", default=["sampled", *(ways or ["orchestrate", "constants", "unbounded"])])
            add("--cache", default="64MiB", help="of features on the device, where hot nodes may move there")
            add("--epochs", type=int, default=5 if name == "steps" else 10)
            add("--seeds", type=int, default=1, help="runs of each way")
            add("--workers", type=int, default=1)
            add("--device", default="cpu")
    return parser


if __name__ == "__main__":
    main()
