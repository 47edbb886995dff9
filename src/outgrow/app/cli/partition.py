"""``outgrow partition``: partitions a graph and shows the quality of the partition."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from outgrow.app.cli.options import parse_assignments

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph
    from outgrow.graph.partition.partitioner import Partitioner


_SHOWN_PARTS = 32


def partition(
    graph: Annotated[str, typer.Argument(help="A data set, a store directory or a graph file.")],
    parts: Annotated[int, typer.Option(help="Number of parts.")],
    method: Annotated[
        str, typer.Option(help="metis, metis-edges, metis-both, fennel, range, range-edges, hash or two-level.")
    ] = "metis",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="An option of the method (balance, imbalance, seed, memory_bytes, passes, chunks); may be given "
            "several times.",
        ),
    ] = None,
    out_parts: Annotated[
        Path | None,
        typer.Option(
            help="Folder to write a store for each part to, part-0, part-1, ..., with the features of its own nodes "
            "alone: one for each host.",
            show_default="none are written",
        ),
    ] = None,
    balance_seeds: Annotated[
        bool,
        typer.Option(
            "--balance-seeds", help="Balance nodes to train on, too, as strategies for mini-batches do (metis, fennel)."
        ),
    ] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace stores of parts that are there.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Partition a graph and show what that cuts: edges, balance, replication. Kept with the graph if it is a store."""
    from outgrow.graph.datasets import load_graph
    from outgrow.graph.partition.methods import make_partitioner
    from outgrow.graph.store.reader import is_store

    chosen = make_partitioner(method, parse_assignments(set_ or []))
    path = Path(graph).expanduser()
    loaded = load_graph(graph, data_dir=data_dir)
    chosen = chosen.with_seeds(loaded.split.train) if balance_seeds else chosen
    facts = describe_partition(
        loaded, chosen, parts, store=path if is_store(path) else None, out_parts=out_parts, overwrite=overwrite
    )
    if as_json:
        print(json.dumps(facts))
    else:
        _print_partition(facts)


def describe_partition(
    graph: Graph,
    method: Partitioner,
    num_parts: int,
    *,
    store: Path | None,
    out_parts: Path | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Partition a graph, and write stores of its parts if a folder is given.

    Args:
        graph: Graph to partition.
        method: Partitioner to use.
        num_parts: Number of parts.
        store: Directory of the graph's store, which keeps the partition; None to keep it nowhere.
        out_parts: Folder of the stores; None to write none.
        overwrite: Whether to replace stores that are there.

    Returns:
        Facts on the result, by name. Tuples have a number for each part.
    """
    from outgrow.graph.partition.partition_cache import load_or_make_partition
    from outgrow.graph.partition.quality import measure_quality
    from outgrow.graph.store.part_stores import write_part_stores

    # A partition that the store already keeps takes no time: the seconds then show the reading.
    started = time.perf_counter()
    found = load_or_make_partition(graph.topology, method, num_parts, store=store)
    seconds = time.perf_counter() - started
    facts: dict[str, Any] = {
        "name": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "method": method.cache_key,
        "parts": num_parts,
        "seconds": round(seconds, 3),
    }
    quality = asdict(measure_quality(graph.topology, found))
    facts |= {f"part_{name}" if isinstance(value, tuple) else name: value for name, value in quality.items()}
    if out_parts is not None:
        written = write_part_stores(graph, found, method.cache_key, out_parts, overwrite=overwrite)
        facts["stores"] = f"{written[0]} to {written[-1].name}"
    # Two-level partitions only: chunks bound the memory of a step, parts the traffic of a worker.
    if found.chunk is not None:
        by_chunk = measure_quality(graph.topology, found.chunks_as_parts)
        facts |= {
            "chunks_of_a_part": found.num_chunks,
            "chunk_edge_balance": by_chunk.edge_balance,
            "chunk_replication_factor": by_chunk.replication_factor,
        }
    return facts


def _print_partition(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    whole = Table(title=facts["name"], show_header=False, title_justify="left")
    whole.add_column()
    whole.add_column(overflow="fold")
    for key, value in facts.items():
        if key != "name" and not isinstance(value, tuple):
            whole.add_row(key.replace("_", " "), _format_value(key, value))
    console = Console()
    console.print(whole)
    columns = facts["part_nodes"], facts["part_edges"], facts["part_halo"]
    each = Table("part", "nodes", "in-edges", "rows of other parts that it needs")
    for part, row in enumerate(zip(*columns, strict=True)):
        if part < _SHOWN_PARTS:
            each.add_row(str(part), *(f"{count:,}" for count in row))
    console.print(each)
    if facts["parts"] > _SHOWN_PARTS:
        console.print(f"and {facts['parts'] - _SHOWN_PARTS:,} parts more; --json gives all")


def _format_value(key: str, value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2%}" if key.endswith("share") else f"{value:.3f}"
    return f"{value:,}" if isinstance(value, int) else str(value)
