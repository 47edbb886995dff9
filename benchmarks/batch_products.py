"""How fast the matrix products of mini-batch training are, beside plain products of the same sizes.

    python benchmarks/batch_products.py

An epoch of `sampled` is trained under the profiler, with nothing prefetched, so that all threads work on the products.
Then each product is computed again by `torch.mm` on fresh matrices of its shape: the gradient of a weight, whose inner
dimension is the longest, from a transposed matrix, as in training. See README.md.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import record

import outgrow as og

if TYPE_CHECKING:
    from outgrow.training.trainer import EpochReport

Shape = tuple[int, int, int]
"""``(m, k, n)`` of a product of ``[m, k]`` and ``[k, n]``."""
_TRIES = 5


class _Profiled(og.Callback):
    """Profiles the second epoch: the first compiles and opens."""

    def __init__(self) -> None:
        from torch import profiler

        self.profile = profiler.profile(activities=[profiler.ProfilerActivity.CPU], record_shapes=True)
        self.seconds = 0.0

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        if report.epoch == 1:
            self.profile.start()
            return
        self.profile.stop()
        self.seconds = report.seconds


def profile_products(graph: Any, options: argparse.Namespace) -> tuple[float, Counter[Shape], dict[Shape, float]]:
    """Train; return the seconds of the epoch, and by shape the number of products and their seconds together."""
    import torch

    from outgrow.strategies.sampled import Sampled

    torch.manual_seed(0)
    sizes = graph.num_features, options.hidden, graph.num_classes
    model = og.nn.SAGE(*sizes, layers=len(options.fanout), dropout=0.5)
    watch = _Profiled()
    og.train(
        graph,
        model,
        strategy=Sampled(prefetch=0),
        batch_size=options.batch_size,
        fanout=tuple(options.fanout),
        epochs=2,
        eval="none",
        callbacks=[watch],
        progress=False,
    )
    counts: Counter[Shape] = Counter()
    seconds: dict[Shape, float] = defaultdict(float)
    for event in watch.profile.events():
        if event.name in ("aten::mm", "aten::addmm"):
            wide = [shape for shape in event.input_shapes if len(shape) == 2]
            # What a product is added to comes before its factors, what it is written to behind them.
            left, right = wide[1:3] if event.name == "aten::addmm" and len(wide) > 2 else wide[:2]
            shape = left[0], left[1], right[1]
            counts[shape] += 1
            seconds[shape] += event.self_cpu_time_total / 1e6
    return watch.seconds, counts, seconds


def time_plain_product(shape: Shape) -> float:
    """Return the median seconds of a product by `torch.mm`."""
    import torch

    m, k, n = shape
    left = torch.ones(k, m).T if k > max(m, n) else torch.ones(m, k)
    right, out = torch.ones(k, n), torch.empty(m, n)
    torch.mm(left, right, out=out)
    tries = []
    for _ in range(_TRIES):
        began = time.perf_counter()
        torch.mm(left, right, out=out)
        tries.append(time.perf_counter() - began)
    return statistics.median(tries)


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graph", default="products@0.1")
    add("--batch-size", type=int, default=1024)
    add("--fanout", type=int, nargs="+", default=[15, 10, 5])
    add("--hidden", type=int, default=256)
    add("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    epoch, counts, seconds = profile_products(og.load(options.graph), options)
    plain = {shape: count * time_plain_product(shape) for shape, count in counts.items()}
    found = {
        "epoch_seconds": epoch,
        "products": counts.total(),
        "product_seconds": sum(seconds.values()),
        "plain_seconds": sum(plain.values()),
        "share_of_epoch": sum(seconds.values()) / epoch,
        "products_over_plain": sum(seconds.values()) / sum(plain.values()),
    }
    print(found)
    given = {name: value for name, value in vars(options).items() if name != "out"}
    print(record.write("batch_products", {"parameters": given, **found}, options.out))


if __name__ == "__main__":
    main()
