"""A table of transfers becomes a store while its process is killed, at moments that a key draws.

    python tests/chaos/conversions.py --kills 20 --seed 1 --folder DIR

A forked child converts into the place of an old store, and kills itself by SIGKILL: some microseconds to milliseconds
after it has opened, mapped, made, moved or removed its n-th file. What is left must be the old store or the new one,
whole, and nothing beside it but hidden folders, which are no stores.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from pyarrow import csv

from outgrow.graph.builders.to_store import convert_to_store
from outgrow.graph.graph import Graph
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.store.reader import is_store, open_store

EVENTS = ("open", "os.rename", "os.mkdir", "os.rmdir", "os.remove", "mmap.__new__", "tempfile.mkstemp", "fcntl.fcntl")
MEMORY = 1 << 16
"""So little that edges are sorted in runs, and ids lie in files."""
ROWS, ACCOUNTS = 20_000, 6_000
_LONGEST_SECONDS = 0.02


def write_tables(folder: Path) -> tuple[Path, Path]:
    """Write the table of the old store and that of the new one."""
    paths = folder / "old.csv", folder / "new.csv"
    for seed, path in enumerate(paths):
        rng = np.random.default_rng(seed)
        ends = [[f"ACC{seed}{number:08}" for number in rng.integers(0, ACCOUNTS, ROWS)] for _ in range(2)]
        csv.write_csv(pa.table({"src": ends[0], "dst": ends[1]}), path)
    return paths


def convert(table: Path, store: Path) -> Graph:
    """Turn a table into a store, in place of the one that is there."""
    return convert_to_store(EdgeTableSource(table), store, memory_bytes=MEMORY, overwrite=True)


def count_events(table: Path, store: Path) -> int:
    """Count the moments at which a conversion can be killed, in a child of its own."""
    reader, writer = os.pipe()
    if not (child := os.fork()):
        events = _count_from_now(lambda number: None)
        convert(table, store)
        os.write(writer, str(events[0]).encode())
        os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    with os.fdopen(reader) as pipe:
        return int(pipe.read())


def kill_at(table: Path, store: Path, number: int, delay: float) -> bool:
    """Convert in a child that is killed so many seconds after its event of this number; whether it was in time."""
    if not (child := os.fork()):

        def kill() -> None:
            time.sleep(delay)
            os.kill(os.getpid(), signal.SIGKILL)

        def act(now: int) -> None:
            if now == number:
                threading.Thread(target=kill).start() if delay else kill()

        _count_from_now(act)
        convert(table, store)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


def _count_from_now(act: object) -> list[int]:
    assert callable(act)
    count = [0]

    def hear(event: str, given: tuple[object, ...]) -> None:
        if event in EVENTS:
            count[0] += 1
            act(count[0])

    sys.addaudithook(hear)
    return count


def find_violations(folder: Path, store: Path, wanted: Sequence[list[object]]) -> list[str]:
    """Return what is wrong with what a killed conversion has left; hidden folders are removed."""
    wrong = []
    if not is_store(store):
        wrong.append("no store is left")
    elif describe(open_store(store, verify=True)) not in wanted:
        wrong.append("a store of other contents")
    for path in folder.iterdir():
        if path.name.startswith(".store.") and path.name.endswith(".partial"):
            if is_store(path):
                wrong.append(f"{path.name} is a store")
            shutil.rmtree(path)
        elif path != store and path.suffix != ".csv":
            wrong.append(f"{path.name} is left")
    if left := os.listdir(tempfile.gettempdir()):
        wrong.append(f"temporary files are left: {left}")
    return wrong


def describe(graph: Graph) -> list[object]:
    """What tells the old store from the new one."""
    assert graph.ids is not None
    return [graph.num_nodes, graph.num_edges, graph.ids[0], graph.ids[graph.num_nodes - 1]]


def main(words: Sequence[str] | None = None) -> int:
    """Kill conversions; the number of violations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, required=True)
    options = parser.parse_args(words)
    draw = random.Random(options.seed)
    tempfile.tempdir = str(options.folder / "temporary")
    (options.folder / "temporary").mkdir()
    place = options.folder / "place"
    place.mkdir()
    store, (old, new) = place / "store", write_tables(place)
    wanted = [describe(convert(table, store)) for table in (new, old)]
    total = count_events(new, store)
    killed, violations = 0, list[str]()
    for number in range(options.kills):
        # Every part of a conversion, from its start to its end: the last ones move the stores.
        first, last = number * total // options.kills, (number + 1) * total // options.kills
        delay = draw.choice([0.0, draw.uniform(0, _LONGEST_SECONDS)])
        killed += kill_at(new, store, draw.randint(first + 1, max(first + 1, last)), delay)
        violations += find_violations(place, store, wanted)
    found = {"kills": options.kills, "killed": killed, "events": total, "violations": violations}
    sys.stdout.write(json.dumps(found) + "\n")
    return len(violations)


if __name__ == "__main__":
    sys.exit(main())
