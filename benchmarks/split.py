"""What `split` saves of what `sampled` does twice, and what it costs: tables 1, 2, 4 and 5 of GSplit.

    python benchmarks/split.py loads --graphs products@0.1 --caches 0 0.1 0.25    # table 1: rows loaded
    python benchmarks/split.py loads --models sage gat --batch-sizes 1024 4096    # bytes of figures 6 to 9
    python benchmarks/split.py redundancy --graphs products@0.1 papers100M@0.01   # table 2: edges drawn
    python benchmarks/split.py sampling --rounds 5                                # table 4: seconds, in one thread
    python benchmarks/split.py quality --partitions metis hash                    # table 5: how even, how local

Workers are played in one process, and nothing is trained. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

from outgrow.runtime.system.environment import set_thread_environment

set_thread_environment()  # before torch is loaded

import record  # noqa: E402
import torch  # noqa: E402
from split_counts import (  # noqa: E402
    BEFORE,
    DEALS,
    EPOCH,
    Setting,
    caches,
    crossed,
    crossing_bytes,
    features_of,
    row_bytes,
    split_work,
    together,
    work,
)
from tables import show  # noqa: E402
from torch import Tensor  # noqa: E402

import outgrow as og  # noqa: E402
from outgrow.engine.features.cache import count_accesses  # noqa: E402
from outgrow.graph.partition.methods import WITHOUT_CHUNKS  # noqa: E402
from outgrow.graph.partition.presampled import PresampledMetis  # noqa: E402

Rows = list[dict[str, Any]]
BY_ACCESS = PresampledMetis.name
PARTITIONS = (BY_ACCESS, *WITHOUT_CHUNKS)
_SHARES = ("cache", "local_edges", "redundant_edges", "redundant_rows_computed", "redundant_rows_loaded")
_NOT_SHOWN = ("load", "min_seconds")


def loads_table(setting: Setting, options: argparse.Namespace) -> Rows:
    """Table 1, figures 6 to 9: what an iteration loads from the host, and from other workers, by system and cache."""
    return [row for size in options.batch_sizes for row in _loads_of_batches(setting, options, size)]


def _loads_of_batches(setting: Setting, options: argparse.Namespace, size: int) -> Rows:
    graph, owner = setting.graph, setting.owner(options.partition, size)
    sampler, samplers = setting.sampler(), setting.split_samplers(owner)
    systems = caches(setting, owner, options.caches, _asked_for(setting, owner, size))
    totals = [Counter[str]() for _ in systems]
    models = {name: _model(setting, name, options.hidden) for name in options.models}
    costs = {name: crossing_bytes(model, features_of(graph)) for name, model in models.items()}
    passed = {name: Counter[str]() for name in models}
    steps = setting.whole_steps(size, options.batches)
    for step, seeds in enumerate(steps):
        inputs = {}
        for how in DEALS:
            micro = [sampler.sample_blocks(mine, EPOCH, step) for mine in setting.deal(seeds, how, owner)]
            inputs[how] = [blocks[0].src_nodes for blocks in micro]
        hops = together(samplers, setting.deal(seeds, "by part", owner), EPOCH, step)
        inputs["split"] = [each[0].own_nodes for each in hops]
        for name, rows_of in costs.items():
            passed[name] += sum((crossed(each, rows_of) for each in hops), Counter())
        for total, cached in zip(totals, systems, strict=True):
            total.update(cached.loads(inputs[cached.seeds]))
    each_row = row_bytes(features_of(graph))
    rows: Rows = []
    for total, cached in zip(totals, systems, strict=True):
        row = {"batch_size": size, "system": cached.system, "seeds": cached.seeds, "cache": cached.cache}
        row |= {"iterations": len(steps)}
        row |= {name: total[name] / len(steps) for name in ("host_rows", "peer_rows")}
        row |= {f"{name}_mb": row[f"{name}_rows"] * each_row / 1e6 for name in ("host", "peer")}
        for name, found in passed.items() if cached.seeds == "split" else ():
            row |= {f"{name}_{what}": found[what] / len(steps) for what in ("crossing_sources", "crossing_rows")}
            row[f"{name}_crossing_mb"] = found["crossing_bytes"] / len(steps) / 1e6
        rows.append(row)
    return rows


def _asked_for(setting: Setting, owner: Tensor, batch_size: int) -> Tensor:
    """``[V]``: how often each node is an input in the epoch before."""
    samplers = setting.split_samplers(owner)
    drawn = (
        together(samplers, setting.deal(seeds, "by part", owner), BEFORE, step)
        for step, seeds in enumerate(setting.steps(batch_size, epoch=BEFORE))
    )
    return count_accesses((hops[0].own_nodes for each in drawn for hops in each), setting.graph.num_nodes)


def _model(setting: Setting, name: str, hidden: int) -> og.nn.Model:
    graph = setting.graph
    build = {"sage": og.nn.SAGE, "gat": og.nn.GAT}[name]
    return build(graph.num_features, hidden, max(2, graph.num_classes), layers=len(setting.fanout))


def redundancy_table(setting: Setting, options: argparse.Namespace) -> Rows:
    """Table 2: work of an epoch in micro-batches, over that of whole mini-batches."""
    owner = setting.owner(options.partition, options.batch_size)
    sampler, samplers = setting.sampler(), setting.split_samplers(owner)
    whole, split, micro = Counter[str](), Counter[str](), {how: Counter[str]() for how in DEALS}
    for step, seeds in enumerate(setting.steps(options.batch_size, options.batches)):
        whole += work(sampler.sample_blocks(seeds, EPOCH, step))
        hops = together(samplers, setting.deal(seeds, "by part", owner), EPOCH, step)
        split += sum(map(split_work, hops), Counter())
        for how in DEALS:
            for mine in setting.deal(seeds, how, owner):
                micro[how] += work(sampler.sample_blocks(mine, EPOCH, step))
    assert split == whole, (split, whole)
    parts = setting.parts
    named = {"1 mini-batch": whole, f"split over {parts}": split}
    named |= {f"{parts} micro-batches, {how}": found for how, found in micro.items()}
    return [{"batch": name, **found, **_more(found, whole)} for name, found in named.items()]


def _more(found: Counter[str], whole: Counter[str]) -> dict[str, float]:
    return {f"redundant_{name}": found[name] / whole[name] - 1 for name in whole}


def quality_table(setting: Setting, options: argparse.Namespace) -> Rows:
    """Table 5: how even the parts of a mini-batch are, and how many of its edges lie within one."""
    rows: Rows = []
    for partition, size in product(options.partitions, options.batch_sizes):
        owner = setting.owner(partition, size)
        samplers = setting.split_samplers(owner)
        found = []
        for step, seeds in enumerate(setting.whole_steps(size, options.batches)):
            hops = together(samplers, setting.deal(seeds, "by part", owner), EPOCH, step)
            found.append(_quality([sum((_ends(hop) for hop in each), Counter()) for each in hops]))
        means = {name: statistics.fmean(each[name] for each in found) for name in found[0]}
        means["local_edges"] /= means["edges"]
        rows.append({"partition": partition, "batch_size": size, "iterations": len(found), **means})
    return rows


def _ends(hop: Any) -> Counter[str]:
    return Counter(edges=hop.block.edges.num_edges, local=hop.num_local_edges)


def _quality(counts: Sequence[Counter[str]]) -> dict[str, float]:
    edges = [count["edges"] for count in counts]
    mean = statistics.fmean(edges)
    return {
        "edge_skew": (max(edges) - min(edges)) / mean,
        "most_over_mean": max(edges) / mean,
        "local_edges": sum(count["local"] for count in counts),
        "edges": sum(edges),
    }


def sampling_table(setting: Setting, options: argparse.Namespace) -> Rows:
    """Table 4: seconds to draw an epoch in one thread."""
    torch.set_num_threads(1)
    rows: Rows = []
    for size in options.batch_sizes:
        owner = setting.owner(options.partition, size)
        steps = setting.steps(size, options.batches)
        ways = _ways(setting, owner, steps)
        taken: dict[str, list[float]] = {name: [] for name in ways}
        for draw in ways.values():
            draw(1)
        for turn in range(options.rounds):
            names = list(ways)
            for name in names[turn % len(names) :] + names[: turn % len(names)]:
                start = time.perf_counter()
                ways[name](len(steps))
                taken[name].append(time.perf_counter() - start)
        for name, seconds in taken.items():
            row: dict[str, Any] = {"batch_size": size, "iterations": len(steps), "draws": name}
            row |= {"median_seconds": statistics.median(seconds), "min_seconds": min(seconds)}
            for how in DEALS:
                pairs = zip(seconds, taken[f"{setting.parts} micro-batches, {how}"], strict=True)
                row[f"over_{how}"] = statistics.median(mine / theirs for mine, theirs in pairs)
            rows.append({**row, "load": os.getloadavg()[0]})
    return rows


def _ways(setting: Setting, owner: Tensor, steps: Sequence[Tensor]) -> dict[str, Callable[[int], None]]:
    """What is timed; each draws the first steps, as many as it is told."""

    def alone(shares: Sequence[Sequence[Tensor]]) -> Callable[[int], None]:
        sampler = setting.sampler()

        def draw(most: int) -> None:
            for step, share in enumerate(shares[:most]):
                for seeds in share:
                    sampler.sample_blocks(seeds, EPOCH, step)

        return draw

    def joint(owner: Tensor, shares: Sequence[Sequence[Tensor]]) -> Callable[[int], None]:
        samplers = setting.split_samplers(owner)

        def draw(most: int) -> None:
            for step, share in enumerate(shares[:most]):
                together(samplers, share, EPOCH, step)

        return draw

    by_deal = {how: [setting.deal(seeds, how, owner) for seeds in steps] for how in DEALS}
    ways = {f"{setting.parts} micro-batches, {how}": alone(shares) for how, shares in by_deal.items()}
    ways["1 mini-batch"] = alone([[seeds] for seeds in steps])
    ways["1 mini-batch, split over 1"] = joint(torch.zeros_like(owner), [[seeds] for seeds in steps])
    ways[f"1 mini-batch, split over {setting.parts}"] = joint(owner, by_deal["by part"])
    return ways


TABLES = {"loads": loads_table, "redundancy": redundancy_table, "sampling": sampling_table, "quality": quality_table}


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    tables = parser.add_subparsers(dest="table", required=True)
    for name, table in TABLES.items():
        add = tables.add_parser(name, help=table.__doc__).add_argument
        add("--graphs", nargs="+", default=["products@0.1", "papers100M@0.01"])
        add("--data-dir", type=Path, help="where files of real graphs are looked for")
        add("--parts", type=int, default=4, help="workers")
        add("--fanout", nargs="+", type=int, default=[20, 20, 20], help="hops outward; a layer for each")
        add("--batches", type=int, help="the first ones of the epoch only")
        add("--seed", type=int, default=0)
        add("--out", type=Path)
        if name == "redundancy":
            add("--batch-size", type=int, default=4096)
        else:
            sizes = [4096] if name == "loads" else [1024, 4096, 16384]
            add("--batch-sizes", nargs="+", type=int, default=sizes)
        if name == "quality":
            add("--partitions", nargs="+", choices=PARTITIONS, default=["metis", BY_ACCESS, "hash"])
        else:
            add("--partition", choices=PARTITIONS, default=BY_ACCESS)
        if name == "loads":
            add("--caches", nargs="+", type=float, default=[0, 0.1, 0.25], help="of a worker, as shares of all rows")
            add("--models", nargs="+", choices=("sage", "gat"), default=["sage"], help="for what crosses")
            add("--hidden", type=int, default=16, help="width of hidden layers, for what crosses")
        if name == "sampling":
            add("--rounds", type=int, default=5)
    return parser.parse_args()


def main() -> None:
    """Load, count or time, show, write."""
    options = _parse()
    graphs, rows = [], []
    for name in options.graphs:
        graph = og.load(name, data_dir=options.data_dir)
        setting = Setting(graph=graph, fanout=tuple(options.fanout), parts=options.parts, seed=options.seed)
        facts = {"nodes": graph.num_nodes, "edges": graph.num_edges, "train_nodes": len(setting.train)}
        found = TABLES[options.table](setting, options)
        sizes = ", ".join(f"{count:,} {fact.replace('_', ' ')}" for fact, count in facts.items())
        show(f"{options.table}: {name}: {sizes}", found, shares=_SHARES, hidden=_NOT_SHOWN)
        graphs.append({"graph": name, **facts, "features": graph.num_features})
        rows += [{"graph": name, **row} for row in found]
    hidden = ("table", "graphs", "data_dir", "out")
    parameters = {key: value for key, value in vars(options).items() if key not in hidden}
    figures = {"parameters": parameters, "versions": {"pymetis": version("pymetis")}, "graphs": graphs, "rows": rows}
    print(record.write(f"split_{options.table}", figures, options.out))


if __name__ == "__main__":
    main()
