"""Vectors of nodes beyond memory: trained from files under a hard cap, saved, and gone on with.

    sudo python benchmarks/embedding_memory.py --folder DIR                                    # 20 million nodes, 4 GiB
    sudo python benchmarks/embedding_memory.py --folder DIR --nodes 1000000 --cap 1GiB --out small.json

Every run is a process in a control group (Linux, root) that caps its memory and the pages of files that are cached for
it. Vectors of 64 numbers and both moments of Adam take 768 bytes a node. Recorded are the most that a run held,
seconds, and the bytes that it read from the disk and wrote to it, as the kernel counts them. `offload` predicts links,
and `sampled` classes in mini-batches. A run that was ended after an epoch goes on from its checkpoint, and is compared
with one that was not ended, which a smaller graph is used for. The folder needs 55 GB; stores stay in it, and a run
``run-STRATEGY-NODES`` there is gone on with.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
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

from outgrow.core.memory_limits import parse_bytes

DIM, CLASSES = 64, 16
BLOCK_NODES = 500
"""Nodes whose edges are between one another."""
CHUNK_EDGES = 1 << 20
TRAIN_SHARE = 400
"""One of so many nodes is trained on."""
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
    """Write a graph of blocks of nodes, in which edges are; one of ``TRAIN_SHARE`` nodes is trained on."""
    from outgrow.graph.builders.to_store import convert_to_store
    from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

    class Blocks(GraphSource):
        name = "blocks"

        def read_tables(self) -> NodeTableSource:
            block = np.arange(num_nodes) // BLOCK_NODES
            train = np.sort(np.random.default_rng(1).choice(num_nodes, num_nodes // TRAIN_SHARE, replace=False))
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


COMPARED_CAP = 3 << 29
LINKS = {"val_links": 0, "test_links": 0, "link_loss": "softmax", "negative_sampling": "shared", "negatives": 256}


class Plan:
    """All runs on graphs of a size.

    Args:
        runs: Runs under a cap.
        cap: Most bytes of a run.
        options: Of the command.
    """

    def __init__(self, runs: Runs, cap: int, options: argparse.Namespace) -> None:
        self.runs, self.cap, self.options = runs, cap, options

    def make(self, name: str, num_nodes: int, num_edges: int) -> str:
        """Make a store; returns where."""
        store: Path = self.options.folder / f"{name}-{num_nodes}-{num_edges}.store"
        if not store.exists():
            command = [sys.executable, __file__, MAKE, str(num_nodes), str(num_edges), str(store)]
            subprocess.run(command, check=True)
        return str(store)

    def training(self, strategy: str, store: str, epochs: int, **more: Any) -> Training:
        """A run of a strategy."""
        options, config = {"memory": f"{self.cap * 3 // 4}B"}, dict[str, Any]()
        if strategy == "offload":
            config = {**LINKS, "link_steps": self.options.link_steps, "embedding_optimizer": "sparse-adam"}
        else:
            config = {"batch_size": self.options.batch_size, "fanout": (10,), "eval": "none"}
        config |= more.pop("config", {})
        given = {"name": f"{strategy}, epoch {epochs}", "out": str(self.runs_of(strategy)), **more}
        return Training(
            store=store,
            strategy=strategy,
            options=options,
            config=config,
            epochs=epochs,
            links=strategy == "offload",
            **given,
        )

    def runs_of(self, strategy: str) -> Path:
        """Directory of the runs of a strategy."""
        return self.runs.folder / f"run-{strategy}"

    def run_strategy(self, strategy: str, num_nodes: int, num_edges: int) -> None:
        """An epoch and its checkpoint; a second epoch by another process that goes on from it."""
        store, out = self.make(strategy, num_nodes, num_edges), self.runs_of(strategy)
        given = self.options.folder / f"run-{strategy}-{num_nodes}"
        if given.exists():
            given.rename(out)
        for epoch in (1, 2):
            if not [*out.glob(f"checkpoint/epoch-{epoch:08d}.pt")]:
                self.runs.run(self.training(strategy, store, epoch, resume=epoch == 2), self.cap, nodes=num_nodes)
        shutil.rmtree(out)

    def compare_resumed(self, strategy: str, num_nodes: int, num_edges: int) -> dict[str, Any]:
        """Losses of two epochs of one run, and of one that was ended after the first."""
        self.run_strategy(strategy, num_nodes, num_edges)
        resumed = self.runs.rows[-1]["loss"]
        store = self.make(strategy, num_nodes, num_edges)
        training = self.training(strategy, store, 2, name=f"{strategy}, not ended")
        whole = self.runs.run(training, self.cap, nodes=num_nodes)
        shutil.rmtree(self.runs_of(strategy))
        return {"strategy": strategy, "nodes": num_nodes, "resumed": resumed, "whole": whole["loss"]}


def rates(row: dict[str, Any], targets: int) -> dict[str, Any]:
    """Seconds and bytes of a link or seed of the epoch that a run has trained; bytes of the disk are of all the run."""
    seconds, counters = row["epoch_seconds"][-1], row["counters"]
    # All rows are written once before the epoch, drawn or restored, and read once after it for the checkpoint.
    every = row["nodes"] * 3 * DIM * 4
    read = counters["embedding_read_bytes"] - every
    written = counters["embedding_written_bytes"] - every
    return {
        "run": row["run"],
        "strategy": row["strategy"],
        "targets": targets,
        "held_gib": row["held_bytes"] / (1 << 30),
        "group_gib": row["group_bytes"] / (1 << 30),
        "epoch_seconds": seconds,
        "seconds_per_target": seconds / targets,
        "read_bytes_per_target": read / targets,
        "written_bytes_per_target": written / targets,
        "disk_read_gb": row["read_bytes"] / 1e9,
        "disk_written_gb": row["written_bytes"] / 1e9,
        "checkpoint_seconds": row["spans"]["checkpoint"],
        "wall_seconds": row["wall_seconds"],
    }


def main() -> None:
    """Run what is asked for, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", type=Path, required=True, help="folder on a disk")
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--links", type=int, default=500_000, help="edges of the graph whose links are predicted")
    parser.add_argument("--edges", type=int, default=40_000_000, help="edges of the graph of mini-batches")
    parser.add_argument("--link-steps", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=4096)
    parser.add_argument("--cap", default="4GiB", help="most memory of a run, cached pages of files included")
    parser.add_argument("--strategies", nargs="*", default=["offload", "sampled"], choices=("offload", "sampled"))
    parser.add_argument(
        "--compared-nodes",
        type=int,
        default=500_000,
        help="nodes of the graphs that resuming is checked on; 0 for none",
    )
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if (why := capped.unavailable()) is not None:
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="embedding-memory-", dir=options.folder) as name:
        runs = Runs(Path(name))
        edges = {"offload": options.links, "sampled": options.edges}
        plan = Plan(runs, parse_bytes(options.cap), options)
        for strategy in options.strategies:
            plan.run_strategy(strategy, options.nodes, edges[strategy])
        measured, runs.rows = runs.rows, []
        compared = []
        for strategy in options.strategies if options.compared_nodes else ():
            share = options.compared_nodes / options.nodes
            # So many nodes that their vectors are in files as well.
            small = Plan(runs, COMPARED_CAP, options)
            compared.append(small.compare_resumed(strategy, options.compared_nodes, round(edges[strategy] * share)))
    targets = {"offload": options.links, "sampled": options.nodes // TRAIN_SHARE}
    table = [rates(row, targets[row["strategy"]]) for row in measured]
    show("vectors beyond memory", table)
    parameters = {name: value for name, value in vars(options).items() if name not in ("out", "folder")}
    found = {"table": table, "resumed": compared, "runs": measured}
    if options.out is not None and options.out.exists():
        # Strategies may be measured one after another.
        before = json.loads(options.out.read_text())
        for name, rows in found.items():
            rows[:0] = [row for row in before[name] if row["strategy"] not in options.strategies]
    print(record.write("embedding_memory", {"parameters": parameters, **found}, options.out))
    if any(each["resumed"] != each["whole"] for each in compared):
        sys.exit("a run that was ended and resumed has other losses")


if __name__ == "__main__":
    if sys.argv[1:2] == [INSIDE]:
        print(json.dumps(Training(**json.loads(sys.argv[2])).run()))
    elif sys.argv[1:2] == [MAKE]:
        make_store(int(sys.argv[2]), int(sys.argv[3]), Path(sys.argv[4]))
    else:
        main()
