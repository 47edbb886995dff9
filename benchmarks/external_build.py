"""Builds a store from an edge list many times larger than the memory that the building process may use.

    python benchmarks/external_build.py --scratch FOLDER

Writes an edge list of random edges below FOLDER (removed afterwards), converts it in a process under a hard memory
limit of the kernel (a control group; swap counts), checks that every edge arrived, and writes the figures to
benchmarks/results/external_build.json. Needs the right to create control groups: usually root.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).parent.parent
MIB = 1 << 20
_EDGES_AT_ONCE = 1 << 21
_INSIDE = "--inside"


@dataclass(frozen=True, kw_only=True)
class Group:
    """A control group with a memory limit, of version 1 or 2.

    Attributes:
        folder: Its folder in the control file system.
        limit: Files that limit memory, with swap.
        peak: File with the most that was used.
    """

    folder: Path
    limit: tuple[str, ...]
    peak: str

    def cap(self, num_bytes: int) -> None:
        """Set the limit. Swap is out of reach, where the kernel can tell."""
        for name in self.limit:
            file = self.folder / name
            if file.exists():
                file.write_text("0" if name == "memory.swap.max" else str(num_bytes))

    def peak_bytes(self) -> int:
        """The most that was used, cached file pages included."""
        return int((self.folder / self.peak).read_text())


@contextmanager
def group() -> Iterator[Group]:
    """A new control group inside the one that this process is in."""
    lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    names = {kind: path for _, kinds, path in lines for kind in kinds.split(",")}
    first = Path("/sys/fs/cgroup/memory"), ("memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
    second = Path("/sys/fs/cgroup"), ("memory.max", "memory.swap.max")
    (base, limit), peak = (first, "memory.max_usage_in_bytes") if "memory" in names else (second, "memory.peak")
    folder = base / names.get("memory", names.get("", "/")).lstrip("/") / f"outgrow-{os.getpid()}"
    try:
        folder.mkdir()
    except OSError as error:
        sys.exit(f"cannot create a control group ({error}); run as root, where memory groups are available")
    try:
        if not (folder / limit[0]).exists():
            sys.exit(f"{folder} has no memory controller; delegate it to this group first")
        yield Group(folder=folder, limit=limit, peak=peak)
    finally:
        folder.rmdir()


def write_edges(path: Path, num_bytes: int, num_nodes: int) -> dict[str, int]:
    """Write random edges as text until the file is large enough; count them, and sum up their ids."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv

    rng = np.random.default_rng(0)
    totals = {"edges": 0, "sum_src": 0, "sum_dst": 0}
    with path.open("wb") as file:
        file.write(b"# random edges\n")
        while file.tell() < num_bytes:
            src = rng.integers(0, num_nodes, _EDGES_AT_ONCE)
            dst = (rng.random(_EDGES_AT_ONCE) ** 3 * num_nodes).astype(np.int64)
            table = pa.table({"src": src, "dst": dst})
            options = csv.WriteOptions(include_header=False, delimiter="\t")
            csv.write_csv(table, file, options)
            totals["edges"] += len(src)
            totals["sum_src"] += int(src.sum())
            totals["sum_dst"] += int(dst.sum())
    return totals


def build(procs: str, text: str, store: str, num_nodes: str, memory_bytes: str) -> None:
    """What runs under the limit: enters the group first, imports afterwards."""
    Path(procs).write_text(str(os.getpid()))
    from outgrow.graph.builders.to_store import convert_to_store
    from outgrow.graph.readers.tables.edge_table import EdgeTableSource
    from outgrow.graph.readers.tables.options import TableOptions

    convert_to_store(
        EdgeTableSource(Path(text), TableOptions(num_nodes=int(num_nodes))), Path(store), memory_bytes=int(memory_bytes)
    )


def run_under(cap: Group, command: list[str]) -> dict[str, float]:
    """Run a command in the group; its time and the most anonymous memory that it held."""
    began, anonymous = time.perf_counter(), 0
    with subprocess.Popen(command, stdout=sys.stderr) as process:
        while process.poll() is None:
            status = Path(f"/proc/{process.pid}/status").read_text()
            found = re.search(r"RssAnon:\s+(\d+)", status)
            anonymous = max(anonymous, int(found[1]) * 1024 if found else 0)
            time.sleep(0.02)
    seconds = time.perf_counter() - began
    if process.returncode:
        sys.exit(f"the build failed with exit code {process.returncode}; under the limit it was killed if that is -9")
    return {"seconds": round(seconds, 1), "peak_anonymous_bytes": anonymous, "peak_group_bytes": cap.peak_bytes()}


def check(store: Path, totals: dict[str, int], num_nodes: int) -> None:
    """Every edge is there, and every row is sorted."""
    import numpy as np

    from outgrow.graph.store.reader import open_store

    graph = open_store(store, verify=True)
    degrees = np.diff(graph.topology.indptr.numpy())
    sum_dst = int((degrees * np.arange(num_nodes)).sum())
    sum_src = int(graph.topology.indices.numpy().sum(dtype=np.int64))
    got = {"edges": graph.num_edges, "sum_src": sum_src, "sum_dst": sum_dst}
    if got != totals:
        sys.exit(f"the store does not hold the edges of the text: {got} instead of {totals}")


def machine() -> dict[str, object]:
    """Where the figures come from."""
    model = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return {
        "cpu": model[1] if model else platform.processor(),
        "cores": os.cpu_count(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
    }


def commit() -> str:
    """The commit that is measured, with a mark if files have changed since."""
    run = subprocess.run(
        ["git", "describe", "--always", "--dirty", "--abbrev=40"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return run.stdout.strip()


def main() -> None:
    """Generate, build under the limit, check, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scratch", type=Path, required=True, help="folder with room for text, spill and store")
    parser.add_argument("--cap-mib", type=int, default=256, help="hard limit of memory")
    parser.add_argument("--sort-mib", type=int, default=64, help="what convert is given to sort in")
    parser.add_argument("--times", type=float, default=20.5, help="size of the text in limits")
    parser.add_argument("--nodes", type=int, default=20_000_000)
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "external_build.json")
    options = parser.parse_args()
    measured = commit()
    with tempfile.TemporaryDirectory(dir=options.scratch) as name, group() as cap:
        text, store = Path(name) / "edges.tsv", Path(name) / "store"
        totals = write_edges(text, int(options.cap_mib * MIB * options.times), options.nodes)
        cap.cap(options.cap_mib * MIB)
        print(f"{totals['edges']:,} edges, {text.stat().st_size:,} bytes of text; building", file=sys.stderr)
        command = [sys.executable, __file__, _INSIDE, str(cap.folder / "cgroup.procs")]
        command += [str(text), str(store), str(options.nodes), str(options.sort_mib * MIB)]
        figures = run_under(cap, command)
        text_bytes = text.stat().st_size
        store_bytes = sum(file.stat().st_size for file in store.iterdir())
        check(store, totals, options.nodes)
    result = {
        "benchmark": "external_build",
        "date": time.strftime("%Y-%m-%d"),
        "commit": measured,
        "versions": {"python": platform.python_version(), **{n: version(n) for n in ("numpy", "pyarrow", "torch")}},
        "machine": machine(),
        "cap_bytes": options.cap_mib * MIB,
        "sort_bytes": options.sort_mib * MIB,
        "nodes": options.nodes,
        "edges": totals["edges"],
        "text_bytes": text_bytes,
        "text_over_cap": round(text_bytes / options.cap_mib / MIB, 2),
        "store_bytes": store_bytes,
        **figures,
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(result, indent=1) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    build(*sys.argv[2:]) if sys.argv[1:2] == [_INSIDE] else main()
