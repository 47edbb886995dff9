"""Graphs of hundreds of millions of edges within 8 GiB: read, partitioned, trained from the disk.

    sudo python benchmarks/scale.py rmat                    # 33.6 million nodes, 302 million edges
    sudo python benchmarks/scale.py rmat --scale 20         # smaller
    sudo python benchmarks/scale.py rmat --scale 24 --cap 4 --memory 3GiB    # half of that, with half of the memory
    sudo python benchmarks/scale.py debian                  # the files of Debian; needs apt-file update, lz4

Every step is a process in a control group (Linux, root) that caps its memory, that of its children, and the pages of
files that are cached for it. Recorded are seconds, the most anonymous and shared memory of its processes together, and
the most that the group held, cached pages included. R-MAT graphs are dealt out by ranges of nodes, Debian's by METIS.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import capped
import record
from tables import show


def convert(kind: str, dest: Path, scale: int, edge_factor: int) -> None:
    """Read or draw a graph, and write its store."""
    from debian_files import DebianFiles

    from outgrow.graph.builders.to_store import convert_to_store as write
    from outgrow.graph.readers.source import GraphSource
    from outgrow.graph.synthetic.node_features import SyntheticNodes
    from outgrow.graph.synthetic.rmat import RMat

    signal = SyntheticNodes(classes=16, features=32)
    source: GraphSource = (
        RMat(scale=scale, edge_factor=edge_factor, node_spec=signal) if kind == "rmat" else DebianFiles()
    )
    write(source, dest, undirected=kind != "rmat")


def cap_bytes(options: argparse.Namespace) -> int:
    """Most bytes of a step."""
    return int(options.cap * (1 << 30))


class Steps:
    """Steps under a cap, and what they took.

    Args:
        cap: Most bytes of a step.
        scratch: Folder on a disk.
    """

    def __init__(self, cap: int, scratch: Path) -> None:
        self.cap, self.scratch, self.rows = cap, scratch, list[dict[str, Any]]()

    def run(self, step: str, *command: object) -> str:
        """Do a step; gives what it wrote to standard output."""
        began = time.perf_counter()
        done, peaks = capped.run([sys.executable, *map(str, command)], self.cap, env=self.environment)
        row = {
            "step": step,
            "seconds": time.perf_counter() - began,
            "held_bytes": peaks.held,
            "group_bytes": peaks.group,
        }
        print(json.dumps(row), file=sys.stderr, flush=True)
        if done.returncode:
            sys.exit(f"{step} ended with {done.returncode}")
        self.rows.append(row)
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        """Temporary files go to the same disk."""
        return {**os.environ, "TMPDIR": str(self.scratch)}


def steps_of(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """All steps of a graph."""
    steps, store = Steps(cap_bytes(options), folder), folder / f"{options.graph}.store"
    method = "range-edges" if options.graph == "rmat" else "metis"
    steps.run("convert", __file__, options.graph, "--scale", options.scale, "--edges", options.edges, "--into", store)
    info = json.loads(steps.run("info", "-m", "outgrow", "info", store, "--json"))
    cut = steps.run("partition", "-m", "outgrow", "partition", store, "--parts", 4, "--method", method, "--json")
    words = (
        f"--model {options.model} --hidden 32 --layers 2 --epochs 2 --strategy offload --memory {options.memory} --json"
    )
    ways = ["--set", "partition=range-edges", "--set", "eval_every=2", "--set", f"scratch_dir={folder}"]
    trained = steps.run("train", "-m", "outgrow", "train", store, *words.split(), *ways, "--out", folder / "run")
    run = json.loads(trained.splitlines()[-1])
    return {
        "graph": info,
        "store_bytes": sum(file.stat().st_size for file in store.rglob("*") if file.is_file()),
        "partition": json.loads(cut),
        "run": run,
        "amplification": amplification(run),
        "steps": steps.rows,
    }


def amplification(run: dict[str, Any]) -> dict[str, float]:
    """Bytes that were asked of files beside those that were needed: rows alone, and rows with the edges of waves."""
    needed, asked = run["ledger"]["host_to_device"], run["counters"]["disk_read_bytes"]
    rows = sum(count for kind, count in needed.items() if kind != "topology")
    return {
        "disk_read_bytes": asked,
        "row_bytes": rows,
        "topology_bytes": needed.get("topology", 0),
        "of_rows": (asked - needed.get("topology", 0)) / rows,
        "of_all": asked / (rows + needed.get("topology", 0)),
    }


def main() -> None:
    """Run what is asked for, print a table, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("graph", choices=("rmat", "debian"))
    parser.add_argument("--scale", type=int, default=25, help="of R-MAT: logarithm of the number of nodes")
    parser.add_argument("--edges", type=int, default=9, help="of R-MAT: for each node")
    parser.add_argument("--model", default="gcn")
    parser.add_argument("--cap", type=float, default=8, help="GiB of a step")
    parser.add_argument("--memory", default="6GiB", help="limit of strategy offload")
    parser.add_argument("--folder", type=Path, help="on a disk; a temporary one by default")
    parser.add_argument("--into", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.into:
        convert(options.graph, options.into, options.scale, options.edges)
        return
    if (why := capped.unavailable()) is not None:
        sys.exit(why)
    with tempfile.TemporaryDirectory(prefix="outgrow-scale-", dir=options.folder) as folder:
        found = steps_of(options, Path(folder))
    show(f"{options.graph}, at most {options.cap} GiB", found["steps"])
    print(json.dumps(found["amplification"]))
    print(record.write(f"scale_{options.graph}", {"cap_bytes": cap_bytes(options), **found}, options.out))


if __name__ == "__main__":
    main()
