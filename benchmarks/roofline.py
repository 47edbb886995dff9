"""The least time of an epoch of GCN or GAT on this machine, part by part, and where the time of ours goes.

    python benchmarks/roofline.py
    python benchmarks/roofline.py --model gat

Bandwidths and rates are measured here and now; flops and bytes are counted. The bound of a part is the larger of its
flops over the rate of its matrix product and its bytes over the bandwidth; the bound of the epoch is their sum. It is
the bound of this algorithm: project before aggregating where that is narrower, aggregate constant features only once.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from epoch_parts import AGGREGATION, AGGREGATION_BACKWARD, PARTS, SOFTMAX, SOFTMAX_BACKWARD, Part, Sizes
from rates import SQUARE, Rates, measure_rates
from rivals.common import Arrays, Job, read_arrays
from rivals.ours import Done, build_trainer  # sets up the threads, so it comes before whatever loads torch

if TYPE_CHECKING:
    from outgrow.training.trainer import EpochReport

_WIDTHS = (100, 256, 47)


class _Profiled:
    """Times epochs without the profiler first, then profiles as many."""

    def __init__(self, warmup: int, epochs: int) -> None:
        from torch import profiler

        self.profile = profiler.profile(activities=[profiler.ProfilerActivity.CPU], record_shapes=True)
        self.warmup, self.epochs = warmup, epochs
        self.plain: list[float] = []
        self.profiled: list[float] = []

    def on_epoch(self, report: EpochReport) -> None:
        """An epoch has ended."""
        done = report.epoch - self.warmup
        if 0 < done <= self.epochs:
            self.plain.append(report.seconds)
        elif done > self.epochs:
            self.profiled.append(report.seconds)
        if done == self.epochs:
            self.profile.start()
        elif done == 2 * self.epochs:
            self.profile.stop()
            raise Done


def profile_ours(job: Job, counted: Sequence[Part]) -> dict[str, Any]:
    """Seconds of an epoch of ours by part: half of the epochs timed, the others profiled.

    What the profiler cannot name ran between operations.
    """
    from outgrow.strategies.full import Full

    trainer = build_trainer(job)
    each = job.epochs // 2
    watch = _Profiled(job.warmup, each)
    trainer.add_callbacks(watch)
    with suppress(Done):
        trainer.run(Full())
    products = {_small(part.product): part.name for part in counted if part.product}
    groups: dict[str, float] = {}
    operations: dict[str, float] = {}
    for event in watch.profile.key_averages(group_by_input_shape=True):
        seconds = event.self_cpu_time_total / 1e6 / each
        group = _group(event.key, event.input_shapes, products)
        groups[group] = groups.get(group, 0.0) + seconds
        operations[f"{group}: {event.key}"] = operations.get(f"{group}: {event.key}", 0.0) + seconds
    mean = statistics.mean(watch.profiled)
    groups["between operations"] = max(0.0, mean - sum(groups.values()))
    return {
        "median_seconds": statistics.median(watch.plain),
        "min_seconds": min(watch.plain),
        "profiled_mean_seconds": mean,
        "groups": groups,
        "operations": dict(sorted(operations.items(), key=lambda item: -item[1])[:25]),
    }


def _group(name: str, shapes: Sequence[Sequence[int]], products: dict[tuple[str, int, int], str]) -> str:
    if name in ("aten::mm", "aten::addmm"):
        wide = [shape for shape in shapes if len(shape) == 2]
        left, right = wide[:2] if name == "aten::mm" else wide[-2:]
        return products.get(_small((left[0], left[1], right[1])), "other products")
    if name.startswith("Optimizer"):
        return "optimizer"
    if "CrossEntropy" in name:
        return "loss"
    if name.startswith(("aten::", "autograd::", "torch::", "_Finish", "_Affine")):
        return "element-wise"
    if "EdgeSoftmax" in name:
        return SOFTMAX_BACKWARD if name.endswith("Backward") else SOFTMAX
    return AGGREGATION_BACKWARD if name.endswith("Backward") else AGGREGATION


def _small(product: tuple[int, int, int] | None) -> tuple[str, int, int]:
    """A product but for its long axis, so that it is known in chunks and on full cache lines as well."""
    assert product is not None
    m, k, n = (-(-size // 16) * 16 for size in product)
    if k == max(product):
        return "long k", min(m, n), max(m, n)
    return ("long m", k, n) if m == max(product) else ("long m", k, m)


def show(counted: Sequence[Part], rates: Rates, ours: dict[str, Any]) -> None:
    """Two tables: what was counted, and what was measured against it."""
    from rich.console import Console
    from rich.table import Table

    console = Console(width=None if sys.stdout.isatty() else 120)
    terms = Table("part", title="counted")
    for name in ("Gflop", "streamed GB", "gathered GB", "bound ms"):
        terms.add_column(name, justify="right")
    for part in counted:
        sizes = (part.flops, part.streamed, part.gathered)
        terms.add_row(part.name, *(f"{size / 1e9:.2f}" for size in sizes), f"{rates.bound(part) * 1e3:.1f}")
    console.print(terms)
    bounds = _by_group(counted, rates)
    measured = Table("part of the profile", title="ours against it")
    for name in ("bound ms", "measured ms", "times"):
        measured.add_column(name, justify="right")
    for group in [*bounds, *(name for name in ours["groups"] if name not in bounds)]:
        bound, seconds = bounds.get(group, 0.0), ours["groups"].get(group, 0.0)
        ratio = f"{seconds / bound:.2f}" if bound > 0 else ""
        measured.add_row(group, f"{bound * 1e3:.1f}", f"{seconds * 1e3:.1f}", ratio)
    total, epoch = sum(bounds.values()), ours["median_seconds"]
    measured.add_row("epoch (median, not profiled)", f"{total * 1e3:.0f}", f"{epoch * 1e3:.0f}", f"{epoch / total:.2f}")
    console.print(measured)
    gather = ", ".join(f"{width} columns {rate / 1e9:.1f}" for width, rate in rates.gather.items())
    products = ", ".join(f"{shape} {rate / 1e9:.0f}" for shape, rate in rates.products.items())
    console.print(f"GB/s: copy {rates.copy / 1e9:.1f}, triad {rates.triad / 1e9:.1f}; gather of {gather}")
    console.print(f"Gflop/s: {products}; {SQUARE} squared {rates.square / 1e9:.0f}")


def _by_group(counted: Sequence[Part], rates: Rates) -> dict[str, float]:
    bounds: dict[str, float] = {}
    for part in counted:
        bounds[part.group] = bounds.get(part.group, 0.0) + rates.bound(part)
    return bounds


def measure(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Count, measure and show; returns all figures."""
    from full_graph import write_data

    facts = write_data(folder, options.scale, _WIDTHS)
    arrays = read_arrays(folder)
    looped = facts["edges"] - _loops(arrays) + facts["nodes"]
    load = os.getloadavg()[0]
    wide, hidden, classes = _WIDTHS
    sizes = Sizes(
        nodes=facts["nodes"], edges=looped, wide=wide, hidden=hidden, classes=classes, trained=len(arrays.train)
    )
    counted = PARTS[options.model](sizes)
    rates = measure_rates(arrays, sorted({part.width for part in counted if part.gathered}), counted)
    job = Job(model=options.model, form="outgrow", folder=folder, warmup=1, epochs=2 * options.epochs, limit_bytes=0)
    ours = profile_ours(job, counted)
    show(counted, rates, ours)
    total = sum(rates.bound(part) for part in counted)
    return {
        "load_before": load,
        "parameters": {**facts, "epochs": options.epochs, "model": options.model},
        "rates": asdict(rates),
        "parts": [{**asdict(part), "flops": part.flops, "bound_seconds": rates.bound(part)} for part in counted],
        "bound_seconds": total,
        "ours": ours,
        "ours_over_bound": ours["median_seconds"] / total,
    }


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(PARTS), default="gcn")
    parser.add_argument("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    parser.add_argument("--epochs", type=int, default=5, help="epochs timed, and as many profiled")
    parser.add_argument("--scratch", type=Path, help="as of full_graph.py")
    parser.add_argument("--out", type=Path, help="file of the figures")
    options = parser.parse_args()

    import record

    with ExitStack() as stack:
        folder = options.scratch or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        folder.mkdir(parents=True, exist_ok=True)
        figures = measure(options, folder)
    print(record.write("roofline", figures, options.out))


def _loops(arrays: Arrays) -> int:
    rows = np.repeat(np.arange(len(arrays.labels)), np.diff(arrays.indptr))
    return int((arrays.indices == rows).sum())


if __name__ == "__main__":
    main()
