"""Vectors of nodes beyond memory: trained from files under a hard cap, saved, and gone on with.

    sudo python benchmarks/embedding_memory.py --folder DIR                                    # 20 million nodes, 4 GiB
    sudo python benchmarks/embedding_memory.py --folder DIR --nodes 1000000 --cap 1GiB --out small.json

Every run is a process in a control group (Linux, root) that caps its memory and the pages of files that are cached for
it. Vectors of 64 numbers and both moments of Adam take 768 bytes a node. Recorded are the most that a run held, seconds,
and the bytes that it read from the disk and wrote to it, as the kernel counts them. `offload` predicts links, and
`sampled` classes in mini-batches. A run that was ended after an epoch goes on from its checkpoint, and is compared with
one that was not ended, which a smaller graph is used for. The folder needs 55 GB.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import capped
import numpy as np
import record
from tables import show

DIM, CLASSES = 64, 16
BLOCK_NODES = 500
"""Nodes whose edges are between one another."""
CHUNK_EDGES = 1 << 20
INSIDE, MAKE = "--inside", "--make"


@dataclass(frozen=True, kw_only=True)
class Training:
    """A run under the cap.

    Attributes:
        name: What it shows.
        store: The graph.
        out: Directory of the run.
        strategy: Its name.
        options: Of the strategy.
        config: Of the loop.
        epochs: Number of the last one.
        links: Whether links are predicted, else classes.
        resume: Whether it goes on from a checkpoint.
    """

    name: str
    store: str
    out: str
    strategy: str
    options: dict[str, Any] = field(default_factory=dict)
    config: dict[str, Any] = field(default_factory=dict)
    epochs: int = 1
    links: bool = True
    resume: bool = False

    def run(self) -> dict[str, Any]:
        """Train in this process; gives what was measured."""
        import torch

        import outgrow as og

        graph = og.load(self.store)
        torch.manual_seed(0)
        if self.links:
            model = og.nn.Embedding(0, DIM, DIM).with_decoder(og.nn.Dot())
        else:
            model = og.nn.SAGE(DIM, DIM, CLASSES, layers=1).with_encoder(og.nn.NodeEmbedding(DIM))
        strategy = {"offload": og.Offload, "sampled": og.Sampled}[self.strategy](**self.options)
        before, began = disk_bytes(), time.perf_counter()
        done = og.train(
            graph,
            model,
            strategy=strategy,
            out=self.out,
            resume=self.resume,
            progress=False,
            epochs=self.epochs,
            eval_every=1000,
            **self.config,
        )
        after, summary = disk_bytes(), done.summary
        return {
            "loss": summary["loss"],
            "epoch_seconds": summary["epoch_seconds"],
            "seconds": time.perf_counter() - began,
            "read_bytes": after[0] - before[0],
            "written_bytes": after[1] - before[1],
            "counters": summary["counters"],
            "spans": summary["seconds"],
            "facts": summary["strategy_facts"],
        }


def disk_bytes() -> tuple[int, int]:
    """What this process read from disks and wrote to them so far."""
    lines = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(lines["read_bytes"]), int(lines["write_bytes"])


def make_store(num_nodes: int, num_edges: int, dest: Path) -> None:
    """Write a graph of blocks of nodes: an edge joins two nodes of a block; a hundredth of the nodes has classes."""
    from outgrow.graph.builders.to_store import convert_to_store
    from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

    class Blocks(GraphSource):
        name = "blocks"

        def read_tables(self) -> NodeTableSource:
            block = np.arange(num_nodes) // BLOCK_NODES
            train = np.sort(np.random.default_rng(1).choice(num_nodes, num_nodes // 100, replace=False))
            return NodeTableSource(num_nodes=num_nodes, labels=(block % CLASSES).astype(np.int32), train=train)

        def read_edges(self) -> Iterator[EdgeChunk]:
            rng = np.random.default_rng(0)
            for first in range(0, num_edges, CHUNK_EDGES):
                count = min(CHUNK_EDGES, num_edges - first)
                src, other = rng.integers(0, num_nodes, count), rng.integers(0, BLOCK_NODES, count)
                yield EdgeChunk(src=src, dst=np.minimum(src - src % BLOCK_NODES + other, num_nodes - 1))

    convert_to_store(Blocks(), dest)


class Runs:
    """Runs under a cap, and what they took.

    Args:
        folder: Folder on a disk.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.rows = folder, list[dict[str, Any]]()

    def run(self, training: Training, cap: int, **more: Any) -> dict[str, Any]:
        """Run a training under a cap."""
        command = [sys.executable, __file__, INSIDE, json.dumps(asdict(training))]
        began = time.perf_counter()
        done, peaks = capped.run(command, cap, env={**os.environ, "TMPDIR": str(self.folder)})
        if done.returncode:
            sys.exit(f"{training.name} ended with {done.returncode}")
        found = json.loads(done.stdout.splitlines()[-1])
        row = {
            "run": training.name,
            "strategy": training.strategy,
            "cap_bytes": cap,
            "held_bytes": peaks.held,
            "group_bytes": peaks.group,
            "wall_seconds": time.perf_counter() - began,
            **more,
            **found,
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        self.rows.append(row)
        return row


if __name__ == "__main__":
    if sys.argv[1] == INSIDE:
        print(json.dumps(Training(**json.loads(sys.argv[2])).run()))
    elif sys.argv[1] == MAKE:
        make_store(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
