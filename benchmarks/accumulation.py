"""Sums of rows of gradients in memory, by the number of threads: gigabytes of gradients a second.

    python benchmarks/accumulation.py --threads 1,2

`one thread, in order` is the loop that adds row by row, as files of rows do within a run; `all threads` is what
`offload` adds gradients with where they lie in memory (`scatter_add_rows`). All give the same bits. Rows are a random
half of a table, ascending. Rivals are interleaved, one run of each per round; the fastest counts. See
benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import numba
import record
import torch
from torch import Tensor

from outgrow.ops.rows.coalesce import scatter_add_range, scatter_add_rows


def measure(width: int, table_bytes: int, threads: list[int], rounds: int) -> list[dict[str, object]]:
    """Return the rate of every rival at one width.

    Args:
        width: Numbers in a row.
        table_bytes: Bytes of the table.
        threads: Numbers of threads.
        rounds: How often each rival runs; one more comes first.
    """
    generator = torch.Generator().manual_seed(0)
    num_rows = max(2, table_bytes // (4 * width))
    table = torch.zeros(num_rows, width)
    rows = torch.randperm(num_rows, generator=generator)[: num_rows // 2].sort().values
    values = torch.rand(len(rows), width, generator=generator)
    at = torch.arange(len(rows))

    def add_on(count: int) -> None:
        numba.set_num_threads(count)
        scatter_add_rows(table, rows, values, at)

    def add_in_order() -> None:
        scatter_add_range(table.numpy(), 0, rows.numpy(), 0, len(rows), values.numpy(), at.numpy())

    rivals: dict[tuple[str, int], Callable[[], None]] = {("one thread, in order", 1): add_in_order}
    rivals |= {("all threads", count): (lambda count=count: add_on(count)) for count in threads}
    seconds: dict[tuple[str, int], list[float]] = {name: [] for name in rivals}
    sums: list[Tensor] = []
    for number in range(rounds + 1):
        for name, run in rivals.items():
            table.zero_()
            began = time.perf_counter()
            run()
            if number:
                seconds[name].append(time.perf_counter() - began)
            else:
                sums.append(table.clone())
    if not all(torch.equal(found, sums[0]) for found in sums):
        raise SystemExit("sums differ with the number of threads")
    return [
        {
            "width": width,
            "way": way,
            "threads": count,
            "gigabytes_per_second": values.nbytes / min(spent) / 1e9,
            "seconds": spent,
        }
        for (way, count), spent in seconds.items()
    ]


def main() -> None:
    """Measure, print a line for each rate, write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--widths", default="32,128,256")
    parser.add_argument("--threads", default=f"1,{numba.config.NUMBA_NUM_THREADS}")
    parser.add_argument("--table-mib", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    threads = sorted(set(map(int, options.threads.split(","))))
    lines = []
    for width in map(int, options.widths.split(",")):
        for line in measure(width, options.table_mib << 20, threads, options.rounds):
            lines.append(line)
            print(
                f"{width:4} numbers  {line['way']:20} {line['threads']} threads "
                f" {line['gigabytes_per_second']:6.2f} GB/s",
                flush=True,
            )
    print(record.write("accumulation", {"table_mib": options.table_mib, "lines": lines}, options.out))


if __name__ == "__main__":
    main()
