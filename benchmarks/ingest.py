"""Tables of transfers between accounts that have names become a store, in less memory than the names alone take.

    python benchmarks/ingest.py --folder DIR [--scale 0.1] [--repeats 3]

Writes a csv of 5 GB and a parquet file of 2 GB below DIR, with the columns id, src, dst, amount, time and kind; turns
each into a store by `outgrow convert`, under a hard cap of memory (a control group, page cache included, which needs
root) and without one; and checks the store. What is held is memory that no file backs. Beside it, each time: pyarrow
reading the columns that convert reads, and nothing else; and pandas with PyG, without a cap, of as many rows as
`--rival-rows` says. Files are in the page cache of the machine when they are read, for all alike. Everything in DIR is
removed afterwards.
"""

from __future__ import annotations

import argparse
import cProfile
import json
import os
import pstats
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import capped
import record
from workers import versions

MIB = 1 << 20
COLUMNS = ("src", "dst", "amount")
_BYTES = {"csv": 5_000_000_000, "parquet": 2_000_000_000}
_ACCOUNTS = 6_000_000
_ROWS = 1 << 20
_INSIDE = "--inside"
_KINDS = ("transfer", "card", "cash", "standing")


def main() -> None:
    """Generate, convert, compare, write."""
    options = _parser().parse_args()
    if reason := capped.unavailable():
        raise SystemExit(reason)
    rows = []
    for form in options.forms:
        with tempfile.TemporaryDirectory(dir=options.folder, prefix="ingest-") as folder:
            rows.append(_measure(Path(folder), form, options))
            print(json.dumps(rows[-1]), flush=True)
    given = {name: value for name, value in vars(options).items() if name not in ("out", "folder")}
    used = {**versions(), **{name: metadata.version(name) for name in ("pyarrow", "pandas", "torch_geometric")}}
    print(record.write("ingest", {"parameters": given, "versions": used, "rows": rows}, options.out))


def _measure(folder: Path, form: str, options: argparse.Namespace) -> dict[str, Any]:
    table, store = folder / f"transfers.{form}", folder / "store"
    made = write_table(table, int(_BYTES[form] * options.scale), max(100, int(_ACCOUNTS * options.scale)))
    print(f"{table.name}: {made}", file=sys.stderr, flush=True)
    alone = []
    runs: dict[float, list[dict[str, float]]] = {cap: [] for cap in options.caps_mib}
    for _ in range(options.repeats):
        alone.append(_run_inside("read", table))
        for cap, found in runs.items():
            shutil.rmtree(store, ignore_errors=True)
            found.append(_convert(table, store, cap, options))
            print(f"cap {cap}: {found[-1]}", file=sys.stderr, flush=True)
    checked = _check(store, made)
    wall, cpu = (statistics.median(each[at] for each in alone) for at in range(2))
    return {
        "form": form,
        **made,
        **checked,
        "store_bytes": sum(file.stat().st_size for file in store.iterdir()),
        "pyarrow": {"seconds": wall, "cpu_seconds": cpu},
        "convert": [_summarize(cap, found, wall, cpu) for cap, found in runs.items()],
        "load": os.getloadavg()[0],
        "pandas_and_pyg": _compare_rival(table, made, options),
        "profile": _run_inside("profile", table, folder / "profiled", options.memory) if options.profile else [],
    }


def _summarize(cap: float, found: list[dict[str, float]], wall: float, cpu: float) -> dict[str, Any]:
    """Medians of conversions under one cap, beside what pyarrow alone takes."""
    medians = {name: statistics.median(each[name] for each in found) for name in found[0]}
    return {
        "cap_mib": cap,
        **medians,
        "times_pyarrow": round(medians["seconds"] / wall, 2),
        # Of all threads: other work on the machine does not lengthen it.
        "cpu_times_pyarrow": round(medians["cpu_seconds"] / cpu, 2),
    }


def write_table(path: Path, num_bytes: int, accounts: int) -> dict[str, Any]:
    """Write transfers until a file is large enough; count them, and the accounts that occur."""
    import numpy as np
    import pyarrow as pa
    from pyarrow import csv, parquet

    seen = np.zeros(accounts, bool)
    count, ends, writer = 0, [], None
    with path.open("wb") as file:
        for batch, numbers in _make_batches(accounts):
            if writer is None:
                kind = csv.CSVWriter if path.suffix == ".csv" else parquet.ParquetWriter
                writer = kind(file, batch.schema)
            writer.write_table(pa.Table.from_batches([batch]))
            seen[numbers] = True
            ends = ends or [batch.column(name)[0].as_py() for name in ("src", "dst")]
            count += len(batch)
            if file.tell() >= num_bytes:
                break
        assert writer is not None
        writer.close()
    return {"rows": count, "accounts": int(seen.sum()), "bytes": path.stat().st_size, "first": ends}


def _make_batches(accounts: int) -> Iterator[tuple[Any, Any]]:
    """Yield record batches and the numbers of the accounts in them. Few accounts have many transfers."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.compute as pc

    rng = np.random.default_rng(0)
    first = 0
    while True:
        ends = [(rng.random(_ROWS) ** power * accounts).astype(np.int64) for power in (1.5, 2.0)]
        names = [pc.binary_join_element_wise("ACC", _pad(number * 7_368_787 % 10**12, 12), "") for number in ends]
        rows = np.arange(first, first + _ROWS)
        yield (
            pa.record_batch(
                {
                    "id": pc.binary_join_element_wise("tx_", _pad(rows, 10), ""),
                    "src": names[0],
                    "dst": names[1],
                    "amount": np.round(rng.exponential(200, _ROWS), 2),
                    "time": pa.array(1_700_000_000 + rows // 3, pa.timestamp("s")),
                    "kind": pa.array(_KINDS).take(pa.array(rng.integers(0, len(_KINDS), _ROWS))),
                }
            ),
            np.concatenate(ends),
        )
        first += _ROWS


def _pad(numbers: Any, width: int) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.utf8_lpad(pa.array(numbers).cast(pa.string()), width, "0")


def _convert(table: Path, store: Path, cap: float, options: argparse.Namespace) -> dict[str, float]:
    """Seconds, processor seconds and the most memory of `outgrow convert` under a cap."""
    command = [sys.executable, "-m", "outgrow", "convert", str(table), str(store), "--memory", options.memory]
    command += ["--columns", "src=src,dst=dst,weight=amount"]
    began, before = time.perf_counter(), _cpu_of_children()
    # Without a cap, pages of files that are cached for the command are counted, but have room.
    done, peaks = capped.run(command, int(cap * MIB) or 1 << 40)
    if done.returncode:
        raise SystemExit(f"convert ended with {done.returncode}; -9 says that the cap was too low")
    return {
        "seconds": time.perf_counter() - began,
        "cpu_seconds": _cpu_of_children() - before,
        "held_mib": peaks.held / MIB,
        "group_mib": peaks.group / MIB,
    }


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _check(store: Path, made: dict[str, Any]) -> dict[str, Any]:
    """Every edge has arrived, and every account with its name."""
    from outgrow.graph.store.reader import open_store

    graph = open_store(store, verify=True)
    found = {"edges": graph.num_edges, "nodes": graph.num_nodes}
    if found != {"edges": made["rows"], "nodes": made["accounts"]} or graph.ids is None:
        raise SystemExit(f"the store does not hold the table: {found}")
    if graph.index_of(made["first"]).tolist() != [0, 1]:
        raise SystemExit("nodes are not numbered in the order of the table")
    return found


def _compare_rival(table: Path, made: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    rows = min(made["rows"], options.rival_rows)
    if not rows:
        return {}
    seconds = _run_inside("rival", table, str(rows))
    return {"rows": rows, "seconds": seconds, "rows_per_second": round(rows / seconds)}


def _run_inside(*words: object) -> Any:
    """Run a part of this file in a process of its own, and return what it prints."""
    done = subprocess.run(
        [sys.executable, __file__, _INSIDE, *map(str, words)], stdout=subprocess.PIPE, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])


def read_alone(path: str) -> tuple[float, float]:
    """Seconds and processor seconds of pyarrow, reading the columns batch by batch."""
    from pyarrow import csv, parquet

    began, before = time.perf_counter(), time.process_time()
    if path.endswith(".csv"):
        with csv.open_csv(path, convert_options=csv.ConvertOptions(include_columns=list(COLUMNS))) as reader:
            rows = sum(len(batch) for batch in reader)
    else:
        with parquet.ParquetFile(path) as file:
            rows = sum(len(batch) for batch in file.iter_batches(columns=list(COLUMNS)))
    assert rows
    return time.perf_counter() - began, time.process_time() - before


def load_by_pandas(path: str, rows: str) -> float:
    """Seconds of what users of PyG write: pandas reads, names become numbers, numbers become a graph."""
    import numpy as np
    import pandas as pd
    import torch
    from torch_geometric.data import Data

    began = time.perf_counter()
    if path.endswith(".csv"):
        frame = pd.read_csv(path, usecols=list(COLUMNS), nrows=int(rows))
    else:
        frame = pd.read_parquet(path, columns=list(COLUMNS)).head(int(rows))
    codes, names = pd.factorize(pd.concat([frame["src"], frame["dst"]], ignore_index=True))
    index = torch.from_numpy(np.ascontiguousarray(codes.reshape(2, -1)))
    data = Data(
        edge_index=index, edge_attr=torch.from_numpy(frame["amount"].to_numpy(np.float32)), num_nodes=len(names)
    )
    assert data.num_edges == len(frame)
    return time.perf_counter() - began


def profile_convert(path: str, store: str, memory: str) -> list[list[Any]]:
    """Seconds in what convert calls, the longest first: in the function itself, and with what it calls."""
    from outgrow.core.memory_limits import parse_bytes
    from outgrow.graph.builders.to_store import convert_to_store
    from outgrow.graph.readers.detect import detect_reader
    from outgrow.graph.readers.tables.options import TableOptions

    options = TableOptions(columns={"src": "src", "dst": "dst", "weight": "amount"})
    with cProfile.Profile() as profile:
        convert_to_store(detect_reader(Path(path), options), Path(store), memory_bytes=parse_bytes(memory))
    found = pstats.Stats(profile).stats  # type: ignore[attr-defined]
    lines = [
        [f"{Path(file).name}:{name}", round(own, 2), round(total, 2)]
        for (file, _, name), (_, _, own, total, _) in found.items()
    ]
    return sorted(lines, key=lambda line: -line[1])[:25]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--folder", type=Path, required=True, help="folder on a disk with room for some 20 GB")
    add("--scale", type=float, default=1.0, help="share of the full size")
    add("--forms", nargs="+", default=list(_BYTES), choices=list(_BYTES))
    add("--repeats", type=int, default=3)
    add("--caps-mib", type=float, nargs="+", default=[512, 0], help="hard caps of memory; 0 for none")
    add("--memory", default="64MiB", help="what convert is told to use")
    add("--rival-rows", type=int, default=10_000_000, help="most rows for pandas, which holds them all; 0 for none")
    add("--profile", action="store_true", help="convert once more, under a profiler")
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    if sys.argv[1:2] == [_INSIDE]:
        parts = {"read": read_alone, "rival": load_by_pandas, "profile": profile_convert}
        print(json.dumps(parts[sys.argv[2]](*sys.argv[3:])))
    else:
        main()
