"""What training saves that goes to the features: tables and figures of HopGNN, by count.

    python benchmarks/migrate.py locality --graphs products@0.1 --parts 2 4 8 16      # table 1: who lives with the root
    python benchmarks/migrate.py ratio --graphs products@0.1                          # figure 5: rows over parameters
    python benchmarks/migrate.py rows --graphs products@0.1 --fanouts 2,2,2 10,10,10  # figures 14, 16: rows and bytes
    python benchmarks/migrate.py spread --graphs products@0.1                         # sections 5.1, 7.4: how even

Workers are played in one process, and nothing is trained. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import groupby, product
from pathlib import Path
from typing import Any, NamedTuple

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
from migrate_counts import (  # noqa: E402
    LOCAL,
    MODEL_CENTRIC,
    Found,
    Workers,
    counted,
    dressed,
    local_shuffles,
    model_of,
    parameter_bytes,
    priced,
    sampler_of,
)
from migrate_local import Deal, difference, locality, longest, longest_at_random  # noqa: E402
from split_counts import Setting, features_of, row_bytes  # noqa: E402
from tables import show  # noqa: E402
from torch import Tensor  # noqa: E402

import outgrow as og  # noqa: E402
from outgrow.graph.partition.methods import WITHOUT_CHUNKS  # noqa: E402
from outgrow.graph.sampling.edge_sampler import FASTGCN  # noqa: E402
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler  # noqa: E402
from outgrow.ops.rng import fold_in  # noqa: E402

Rows = list[dict[str, Any]]
_SHARES = ("r_micro", "r_sub", "miss_rate", "difference", "largest_difference", "within_a_tenth")
_CASE = ("parts", "fanout", "batch_size", "hidden", "width")
_NOT_SHOWN = ("batches", "ids_mb", "topology_mb", "sums_mb", "seeds")
_EVEN = 0.1


class Kind(NamedTuple):
    """A model of figure 5: its kind, its layers, and the other options that it has."""

    kind: str
    layers: int
    options: Mapping[str, object] = {}


_KINDS = {
    "gcn": Kind("gcn", 3),
    "sage": Kind("sage", 3),
    "gat": Kind("gat", 3),
    "deepgcn": Kind("gcn", 7, {"residual": True, "norm": True}),
    "film": Kind("film", 10),
}


def locality_table(graph: og.Graph, options: argparse.Namespace) -> Rows:
    """Table 1: shares of the nodes of micrographs, and of whole subgraphs, that live with the root."""
    rows: Rows = []
    setting = Setting(graph=graph, fanout=(1,), seed=options.seed)
    micro_batches = setting.steps(options.micro_batch, options.subgraphs)
    deals = [Deal(*each) for each in product(options.partitions, options.parts)]
    owners = {deal: _owner(setting, *deal) for deal in deals}
    for sampling, (layers, fanout) in product(options.sampling, zip(options.layers, options.fanout, strict=True)):
        given = Setting(graph=graph, fanout=(fanout,) * layers, seed=options.seed)
        size = max(1, int(options.layer_share * graph.num_nodes))
        if sampling == "layer-wise":
            sampler = NeighborSampler([graph.topology] * layers, [size] * layers, options.seed, sampler=FASTGCN)
        else:
            sampler = given.sampler()
        found = locality(sampler.sample_blocks, micro_batches, owners, options.roots)
        nodes = {"micrograph": statistics.fmean(found.micrograph), "subgraph": statistics.fmean(found.subgraph)}
        draws = size if sampling == "layer-wise" else fanout
        for deal, shares in found.shares.items():
            row = {"sampling": sampling, **deal._asdict(), "layers": layers, "draws": draws, **nodes}
            micro, sub = (statistics.fmean(each) if each else None for each in (shares.micro, shares.sub))
            rows.append({**row, "micrographs": len(shares.micro), "r_micro": micro, "r_sub": sub})
    return rows


def ratio_table(graph: og.Graph, options: argparse.Namespace) -> Rows:
    """Figure 5: bytes of rows that a worker fetches for its micro-batch over those of the model's parameters."""
    rows: Rows = []
    for parts in options.parts:
        owner, known = None, dict[tuple[bool, int, int], float]()
        for name, fanout, hidden, width in product(
            options.models, options.fanout, options.hidden, options.width or [None]
        ):
            kind, seen = _KINDS[name], dressed(graph, width)
            setting = Setting(graph=graph, fanout=(fanout,) * kind.layers, parts=parts, seed=options.seed)
            owner = _owner(setting, options.partition, parts) if owner is None else owner
            model = model_of(kind.kind, seen, hidden, kind.layers, **kind.options)
            key = model.layers_list()[0].spec.self_loops, kind.layers, fanout
            if key not in known:
                workers = Workers(sampler=sampler_of(setting, model), owner=owner, size=parts)
                known[key] = _remote_rows(workers, setting, options)
            remote, whole = known[key] * row_bytes(features_of(seen)), parameter_bytes(model)
            row = {"parts": parts, "model": name, "layers": kind.layers, "fanout": str(fanout), "hidden": hidden}
            row |= {"width": seen.num_features, "remote_rows": known[key], "fetched_mb": remote / 1e6}
            rows.append({**row, "parameters_mb": whole / 1e6, "alpha": remote / whole})
    return rows


def _remote_rows(workers: Workers, setting: Setting, options: argparse.Namespace) -> float:
    """Of an iteration, in the mean over the workers."""
    steps, found = setting.whole_steps(options.batch_size, options.batches), 0
    for step, seeds in enumerate(steps):
        micro = workers.micro_batches(seeds, step)
        found += workers.all_fetched(blocks[0].src_nodes for blocks in micro)["remote_rows"]
    return found / len(steps) / workers.size


def rows_table(graph: og.Graph, options: argparse.Namespace) -> Rows:
    """Figures 14 and 16, section 7.8: rows, requests and bytes of an epoch, by ways to train."""
    rows: Rows = []
    for parts in options.parts:
        owner = _owner(Setting(graph=graph, fanout=(1,), seed=options.seed), options.partition, parts)
        for hops, batch_size in product(options.fanouts, options.batch_size):
            fanout = tuple(map(int, hops.split(",")))
            setting = Setting(graph=graph, fanout=fanout, parts=parts, seed=options.seed)
            found, batches = _of_ways(setting, owner, batch_size, options)
            for hidden, width in product(options.hidden, options.width or [None]):
                seen = dressed(graph, width)
                case = dict(zip(_CASE, (parts, hops, batch_size, hidden, seen.num_features), strict=True))
                case["batches"] = batches
                model = model_of(options.model, seen, hidden, len(fanout))
                rows += [{**case, **row} for row in _rows_of_ways(found, model, seen, setting)]
    return rows


def _of_ways(setting: Setting, owner: Tensor, batch_size: int, options: argparse.Namespace) -> tuple[Found, int]:
    """Counts, and of how many batches."""
    model = model_of(
        options.model, dressed(setting.graph, (options.width or [None])[0]), options.hidden[0], len(setting.fanout)
    )
    workers = Workers(sampler=sampler_of(setting, model), owner=owner, size=setting.parts)
    steps = setting.steps(batch_size, options.batches)
    found = counted(workers, steps, [fewer for fewer in options.dropped if fewer < setting.parts])
    local = local_shuffles(workers, setting, batch_size, options.batches)
    return {MODEL_CENTRIC: found.pop(MODEL_CENTRIC), LOCAL: local, **found}, len(steps)


def _rows_of_ways(found: Found, model: og.nn.Model, seen: og.Graph, setting: Setting) -> Rows:
    """A row for each way; counts of the first batches are taken for those of all seeds of an epoch."""
    rows: Rows = []
    for way, counts in found.items():
        times = len(setting.train) / counts["seeds"]
        amounts = {name: counts[name] for name in ("rows", "remote_rows", "requests")}
        amounts |= {"moves": counts["parameters"], "partial_rows": _partial_rows(counts)}
        row: dict[str, Any] = {"way": way, "seeds": counts["seeds"]}
        row |= {name: round(amount * times) for name, amount in amounts.items()}
        row["miss_rate"] = counts["remote_rows"] / counts["rows"]
        bytes_of = priced(counts, model, seen, setting.parts)
        rows.append(row | {f"{kind}_mb": amount * times / 1e6 for kind, amount in bytes_of.items()})
    for row in rows:
        for name in ("remote_rows", "total_mb"):
            row[f"{name}_over"] = row[name] / rows[0][name] if rows[0][name] else None
    return rows


def _partial_rows(counts: Counter[str]) -> int:
    return counts["activations"] + sum(count for name, count in counts.items() if name.startswith("partial_"))


def spread_table(graph: og.Graph, options: argparse.Namespace) -> Rows:
    """Sections 5.1 and 7.4: how evenly seeds fall to workers, and what is waited for when time steps are merged."""
    rows: Rows = []
    for partition, parts in product(options.partitions, options.parts):
        owner = _owner(Setting(graph=graph, fanout=(1,), seed=options.seed), partition, parts)
        for batch_size in options.batch_size:
            setting = Setting(graph=graph, fanout=(1,), parts=parts, seed=options.seed)
            steps = setting.whole_steps(batch_size, options.batches)
            case = {"partition": partition, "parts": parts, "batch_size": batch_size, "iterations": len(steps)}
            counts = [owner[seeds].bincount(minlength=parts) for seeds in steps]
            apart = [difference(each) for each in counts]
            case |= {"difference": statistics.fmean(apart), "largest_difference": max(apart)}
            case["within_a_tenth"] = statistics.fmean(each < _EVEN for each in apart)
            case |= {"even": len(steps[0]) / parts, "at_once": statistics.fmean(int(each.max()) for each in counts)}
            rows += [{**case, **_merged(steps, owner, parts, dropped, options.seed)} for dropped in range(parts)]
    return rows


def _merged(steps: Sequence[Tensor], owner: Tensor, parts: int, dropped: int, seed: int) -> dict[str, float]:
    """Seeds of the worker with the most, summed over the time steps of an iteration; means over iterations."""
    fewest = [longest(seeds, owner[seeds], parts, dropped) for seeds in steps]
    at_random = [
        longest_at_random(len(seeds), owner[seeds], parts, dropped, fold_in(seed, step, dropped) >> 1)
        for step, seeds in enumerate(steps)
    ]
    means = {"dropped": dropped, "fewest": statistics.fmean(fewest), "random": statistics.fmean(at_random)}
    return {**means, "random_over_fewest": means["random"] / means["fewest"]}


def _owner(setting: Setting, partition: str, parts: int) -> Tensor:
    """``[V]``: the worker of each node. No method here weighs nodes by batches."""
    dealt = Setting(graph=setting.graph, fanout=setting.fanout, parts=parts, seed=setting.seed)
    return dealt.owner(partition, 1).long()


TABLES = {"locality": locality_table, "ratio": ratio_table, "rows": rows_table, "spread": spread_table}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    for name, table in TABLES.items():
        add = tables.add_parser(name, help=table.__doc__).add_argument
        add("--graphs", nargs="+", default=["products@0.1", "papers100M@0.01"])
        add("--data-dir", type=Path, help="where files of real graphs are looked for")
        add("--parts", nargs="+", type=int, default=[4] if name == "ratio" else [2, 4, 8, 16], help="workers")
        add("--seed", type=int, default=0)
        add("--out", type=Path)
        if name in ("locality", "spread"):
            add("--partitions", nargs="+", choices=WITHOUT_CHUNKS, default=["metis", "hash"])
        else:
            add("--partition", choices=WITHOUT_CHUNKS, default="metis")
            add("--hidden", nargs="+", type=int, default=[16, 128], help="widths of hidden layers")
            add("--width", nargs="+", type=int, help="widths of features, float32, instead of the graph's own")
        if name != "locality":
            add("--batches", type=int, help="the first ones of the epoch only")
        _ADD[name](add)
    return parser.parse_args()


def _add_locality(add: Any) -> None:
    add("--layers", nargs="+", type=int, default=[2, 10])
    add("--fanout", nargs="+", type=int, default=[10, 2], help="of each hop, for each number of layers, node-wise")
    add("--layer-share", type=float, default=0.1, help="nodes drawn for a layer, as a share of all, layer-wise")
    add("--sampling", nargs="+", choices=("node-wise", "layer-wise"), default=["node-wise", "layer-wise"])
    add("--micro-batch", type=int, default=256, help="seeds of a subgraph")
    add("--subgraphs", type=int, default=4, help="the first ones of the epoch")
    add("--roots", type=int, default=64, help="micrographs of each subgraph that are looked at")


def _add_ratio(add: Any) -> None:
    add("--models", nargs="+", choices=_KINDS, default=[*_KINDS])
    add("--fanout", nargs="+", type=int, default=[2, 10], help="of each hop")
    add("--batch-size", type=int, default=4096, help="seeds of all workers")


def _add_rows(add: Any) -> None:
    add("--model", choices=("gcn", "sage", "gat"), default="sage", help="a layer for each hop")
    add("--fanouts", nargs="+", default=["2,2,2", "10,10,10"], help="hops outward")
    add("--batch-size", nargs="+", type=int, default=[4096], help="seeds of all workers")
    add("--dropped", nargs="+", type=int, default=[1, 2, 3, 7, 15], help="merged time steps, where there are more")


def _add_spread(add: Any) -> None:
    add("--batch-size", nargs="+", type=int, default=[1024, 4096], help="seeds of all workers")


_ADD = {"locality": _add_locality, "ratio": _add_ratio, "rows": _add_rows, "spread": _add_spread}


def main() -> None:
    """Load, count, show, write."""
    options = _parse()
    graphs, rows = [], []
    for name in options.graphs:
        graph = og.load(name, data_dir=options.data_dir)
        train = Setting(graph=graph, fanout=(1,), seed=options.seed).train
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "train_nodes": len(train)}
        found = TABLES[options.table](graph, options)
        sizes = ", ".join(f"{count:,} {fact.replace('_', ' ')}" for fact, count in facts.items())
        in_title = _CASE if options.table == "rows" else ()
        for case, some in groupby(found, key=lambda row: {name: row[name] for name in in_title}):
            of_case = "".join(f"; {name.replace('_', ' ')} {value}" for name, value in case.items())
            show(f"{options.table}: {name}: {sizes}{of_case}", [*some], shares=_SHARES, hidden=(*_NOT_SHOWN, *in_title))
        graphs.append({"graph": name, **facts, "features": graph.num_features})
        rows += [{"graph": name, **row} for row in found]
    hidden = ("table", "graphs", "data_dir", "out")
    parameters = {key: value for key, value in vars(options).items() if key not in hidden}
    figures = {"parameters": parameters, "versions": {"pymetis": version("pymetis")}, "graphs": graphs, "rows": rows}
    print(record.write(f"migrate_{options.table}", figures, options.out))


if __name__ == "__main__":
    main()
