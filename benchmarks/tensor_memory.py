"""`tensor` within a third of the memory that it takes without a limit: what it held, and its losses beside `full`.

Called by `tensor.py memory`. Every run is a process of its own. The graph has far more edges than nodes: what grows
with edges, and slices and rows of own nodes where needed, are in files within the limit.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

MIB = 1 << 20
RELATIONS = 4
CLASSES = 8
WIDTH = 16
CHUNK = 1 << 20
SHARE = 3
"""How many times the limit a run without one takes."""


MODELS = {"gcn": 64, "gat": 16, "rgcn": 40, "sage-max": 112, "decoupled-rgcn": 72}
"""Models, and the edges, in millions, that their graph must have to take three times a limit that leaves room for the
interpreter."""


class DenseGraph(GraphSource):
    """Random edges between few nodes, with relations.

    Args:
        nodes: Number of nodes.
        edges: Number of edges.
    """

    def __init__(self, nodes: int, edges: int) -> None:
        self.nodes = nodes
        self.edges = edges

    @property
    def name(self) -> str:
        """Name of the graph."""
        return f"dense {self.nodes} {self.edges}"

    def read_tables(self) -> NodeTableSource:
        """Return features that hint at the labels, and a split."""
        draws = np.random.default_rng(1)
        labels = draws.integers(0, CLASSES, self.nodes)
        features = draws.normal(size=(self.nodes, WIDTH)).astype(np.float32)
        features[np.arange(self.nodes), labels] += 1
        thirds = np.arange(self.nodes) % 3
        train, val, test = (thirds == part for part in range(3))
        return NodeTableSource(
            num_nodes=self.nodes,
            features=features,
            labels=labels,
            train=train,
            val=val,
            test=test,
            relation_names=tuple(f"r{number}" for number in range(RELATIONS)),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield the edges, a chunk of destinations at a time."""
        draws = np.random.default_rng(2)
        left = self.edges
        while left:
            count = min(CHUNK, left)
            src, dst = (draws.integers(0, self.nodes, count) for _ in range(2))
            yield EdgeChunk(src, dst, relation=draws.integers(0, RELATIONS, count).astype(np.int8))
            left -= count


def train(store: Path, model: str, workers: int, *options: str, epochs: int = 2) -> dict[str, Any]:
    """Return peak bytes of a worker, losses and facts of a run in a process of its own."""
    with tempfile.TemporaryDirectory() as out:
        given = [
            "--model",
            model,
            "--workers",
            str(workers),
            "--epochs",
            str(epochs),
            "--hidden",
            "16",
        ]
        command = [
            sys.executable,
            "-m",
            "outgrow",
            "train",
            str(store),
            *given,
            *options,
            "--out",
            f"{out}/run",
            "--json",
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
    summary = json.loads(done.stdout.splitlines()[-1])
    facts = summary["strategy_facts"]
    return {
        "peak_mib": round(summary["peak_bytes"]["device"] / MIB),
        "estimated_mib": round(facts.get("estimated_bytes", 0) / MIB),
        "in_files": facts.get("in_files"),
        "chunks": facts.get("chunks"),
        "losses": summary["loss"],
    }


def compare(store: Path, model: str, workers: int, reference: Sequence[float]) -> dict[str, Any]:
    """Return a run without a limit beside one within a third of what it took."""
    free = train(store, model, workers, "--strategy", "tensor")
    limit = free["peak_mib"] // SHARE
    scratch = ("--set", f"scratch_dir={store.parent}")
    within = train(store, model, workers, "--strategy", "tensor", "--memory", f"{limit}MiB", *scratch)
    apart = max(abs(mine - theirs) / abs(theirs) for mine, theirs in zip(within["losses"], reference, strict=True))
    return {
        "workers": workers,
        "free_mib": free["peak_mib"],
        "limit_mib": limit,
        "held_mib": within["peak_mib"],
        **{name: within[name] for name in ("estimated_mib", "in_files", "chunks")},
        "loss_difference": apart,
    }


def memory_table(
    folder: Path, names: Sequence[str], workers: Sequence[int], size: float, nodes: int
) -> list[dict[str, Any]]:
    """Return a row for each model and number of workers.

    Args:
        folder: Where stores are written.
        names: Models.
        workers: Numbers of workers.
        size: Factor of the numbers of edges.
        nodes: Nodes of the graphs.
    """
    rows = []
    for name in names:
        store = folder / name
        convert_to_store(DenseGraph(nodes, round(MODELS[name] * size * 1e6)), store)
        reference = train(store, name, 1, "--strategy", "full")["losses"]
        for count in workers:
            rows.append({"model": name, **compare(store, name, count, reference)})
            print(rows[-1], flush=True)
    return rows
