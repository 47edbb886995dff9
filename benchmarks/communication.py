"""Rows that a full-graph layer loads from the host, chunk by chunk: what sharing, reuse and reorganisation save.

    python benchmarks/communication.py it-2004@0.01:4:8 wordnet:4:8 --data-dir FOLDER

Each task is a data set, the number of parts, and of chunks in each part. The graph is cut by the two-level method
(METIS, then ranges of even computation); a chunk reads its own nodes and their in-neighbours. Volumes are counted, not
measured, in rows per node of the graph: for the waves as the ranges give them, and as HongTu's reorganisation
(Algorithm 4) does. The figures that HongTu prints for its own graphs (Table 8) stand beside those of the presets of the
same names.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import record
import torch
from rich.console import Console
from rich.table import Table

from outgrow.graph.datasets import load_graph
from outgrow.graph.partition.methods import make_partitioner
from outgrow.graph.partition.partition import Partition
from outgrow.graph.topology import Topology
from outgrow.ops.backend import num_threads
from outgrow.ops.subgraph import mark_sources, row_slices
from outgrow.ops.subgraph_kernels import IS_SOURCE, NOT_PRESENT
from outgrow.strategies.offload.reorder import TransferVolumes, count_transfer_volumes, node_bitsets, reorganize_chunks

T = TypeVar("T")


class Row(NamedTuple):
    """A line of HongTu's Table 8, in rows per node; inter and intra are what sharing and then reuse save."""

    alpha: float
    inter: float
    intra: float


PAPER = {
    "it-2004": Row(1.6, 0.26, 0.15),
    "papers100M": Row(8.5, 0.77, 4.1),
    "friendster": Row(10.7, 2.50, 5.09),
}


class Task(NamedTuple):
    """A data set, and how it is cut."""

    data: str
    parts: int
    chunks: int

    @staticmethod
    def of(text: str) -> Task:
        """Read ``DATA:PARTS:CHUNKS``."""
        data, parts, chunks = text.rsplit(":", 2)
        return Task(data, int(parts), int(chunks))


def timed(seconds: dict[str, float], name: str, function: Callable[..., T], *given: Any) -> T:
    """Call a function and note how long it took."""
    start = time.perf_counter()
    result = function(*given)
    seconds[name] = round(time.perf_counter() - start, 4)
    return result


def sources_of(topology: Topology, partition: Partition) -> list[list[torch.Tensor]]:
    """For each part, the ids that each of its chunks reads, ascending."""
    place_V = torch.empty(topology.num_nodes, dtype=torch.int32)
    flat = partition.chunks_as_parts

    def read_by(chunk: int) -> torch.Tensor:
        nodes = flat.nodes_of_part(chunk)
        place_V.fill_(NOT_PRESENT)
        place_V[nodes] = IS_SOURCE
        mark_sources(row_slices(topology.indptr, nodes), topology.indices, place_V)
        return (place_V == IS_SOURCE).nonzero()[:, 0]

    count = partition.num_chunks
    return [[read_by(part * count + chunk) for chunk in range(count)] for part in range(partition.num_parts)]


def figures_of(row: Row) -> dict[str, float]:
    """A line of Table 8 with what follows from it. All nodes are read: ``alpha - 1`` rows per node are redundant."""
    saved = row.inter + row.intra
    return {
        **row._asdict(),
        "inter_share": row.inter / row.alpha,
        "intra_share": row.intra / row.alpha,
        "saved_share": saved / row.alpha,
        "redundant_removed": saved / (row.alpha - 1) if row.alpha > 1 else 0.0,
    }


def counted(rows: TransferVolumes, num_nodes: int) -> dict[str, Any]:
    """The figures of one order of chunks, with the counts that they come from."""
    inter, intra = rows.vanilla - rows.shared, rows.shared - rows.reused
    return {**figures_of(Row(*(count / num_nodes for count in (rows.vanilla, inter, intra)))), "rows": asdict(rows)}


def measure(task: Task, data_dir: Path | None) -> dict[str, Any]:
    """Cut a graph, and count the rows of both orders."""
    seconds: dict[str, float] = {}
    topology = timed(seconds, "load", lambda: load_graph(task.data, data_dir=data_dir).topology)
    method = make_partitioner("two-level", {"chunks": task.chunks})
    partition = timed(seconds, "partition", method.partition_nodes, topology, task.parts)
    num_nodes = topology.num_nodes
    sources = timed(seconds, "sources", sources_of, topology, partition)
    bits = timed(seconds, "bits", lambda: np.stack([node_bitsets(row, num_nodes, None) for row in sources]))
    owners = node_bitsets([partition.nodes_of_part(part) for part in range(task.parts)], num_nodes, None)
    order = timed(seconds, "reorganise", reorganize_chunks, bits)
    given = np.tile(np.arange(task.chunks), (task.parts, 1))
    return {
        **task._asdict(),
        "method": method.cache_key,
        "nodes": num_nodes,
        "edges": topology.num_edges,
        "seconds": seconds,
        "ranges": counted(count_transfer_volumes(bits, owners, given), num_nodes),
        "reorganised": counted(count_transfer_volumes(bits, owners, order), num_nodes),
        "paper": PAPER[name]._asdict() if (name := task.data.split("@")[0]) in PAPER else None,
    }


def show(results: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows saved, and the time that it took."""
    title = "rows from the host, per node and layer"
    columns = ("graph", "parts x chunks", "order", "alpha", "inter-device", "intra-device", "saved", "of redundant")
    table = Table(*columns, title=title)
    for result in results:
        cut = f"{result['parts']} x {result['chunks']}"
        for order in ("ranges", "reorganised"):
            table.add_row(result["data"], cut, order, *_cells(result[order]))
        if result["paper"]:
            paper = Row(**result["paper"])
            table.add_row(result["data"].split("@")[0], "", "HongTu, Table 8", *_cells(figures_of(paper)))
    times = Table("graph", "nodes", "edges", *results[0]["seconds"], title="seconds")
    for result in results:
        counts = (f"{result[name]:,}" for name in ("nodes", "edges"))
        times.add_row(result["data"], *counts, *(f"{s:.2f}" for s in result["seconds"].values()))
    console = Console(width=max(120, Console().width))
    console.print(table)
    console.print(times)


def _cells(figures: Mapping[str, Any]) -> tuple[str, ...]:
    pairs = (f"{figures[name]:.2f} ({figures[name + '_share']:.1%})" for name in ("inter", "intra"))
    return f"{figures['alpha']:.2f}", *pairs, f"{figures['saved_share']:.1%}", f"{figures['redundant_removed']:.1%}"


def main() -> None:
    """Count, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", type=Task.of, metavar="DATA:PARTS:CHUNKS")
    parser.add_argument("--data-dir", type=Path, help="folder of the files of real data sets")
    parser.add_argument("--out", type=Path, default=record.HERE / "results" / "communication.json")
    options = parser.parse_args()
    measure(Task("rmat-6", 2, 2), None)  # compiles
    results = [measure(task, options.data_dir) for task in options.tasks]
    show(results)
    print(record.write("communication", {"threads": num_threads(), "results": results}, options.out))


if __name__ == "__main__":
    main()
