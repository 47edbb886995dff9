"""Seconds of an epoch on a CUDA device and on the CPU beside it, strategy by strategy, of the same runs.

    python benchmarks/device.py --graphs wordnet products@0.1 --models gcn sage gat

Whole-graph strategies train on all edges, the others in batches. The rounds of both devices are interleaved. Losses of
the last epoch are compared: where they differ by more than 1 %, the table says NO.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

import record
import torch
from workers import versions

import outgrow as og
from outgrow.app.model_registry import build_model
from outgrow.strategies.base import Strategy

WHOLE: dict[str, Strategy] = {"full": og.Full(), "offload": og.Offload(chunks=4), "tensor": og.TensorParallel()}
BATCHES: dict[str, Strategy] = {
    "sampled": og.Sampled(),
    "split": og.SplitParallel(),
    "migrate": og.Migrate(),
    "orchestrate": og.Orchestrate(),
}
DEVICES = ("cpu", "cuda")
CLOSE = 0.01


def main() -> None:
    """Measure, print, write."""
    options = _parser().parse_args()
    rows = []
    for name in options.graphs:
        graph = og.load(name)
        for model in options.models:
            for way in options.strategies:
                row = {"graph": name, "model": model, "strategy": way, **_compared(graph, model, way, options)}
                rows.append(row)
                print(" ".join(f"{key} {_short(value)}" for key, value in row.items()), flush=True)
    given = {name: value for name, value in vars(options).items() if name != "out"}
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    figures = {"parameters": given, "versions": versions(), "device": device, "rows": rows}
    print(record.write("device", figures, options.out))


def _compared(graph: og.Graph, model: str, way: str, options: argparse.Namespace) -> dict[str, Any]:
    """One line: medians over the epochs of all rounds but the first epoch of each."""
    seconds: dict[str, list[float]] = {device: [] for device in options.devices}
    runs: dict[str, og.Run] = {}
    for _ in range(options.rounds):
        for device in options.devices:
            runs[device] = _trained(graph, model, way, device, options)
            seconds[device] += runs[device].epoch_seconds[1:]
    medians = {device: statistics.median(taken) for device, taken in seconds.items()}
    found = {f"{device}_seconds": value for device, value in medians.items()}
    if len(runs) < len(DEVICES):
        return found
    cpu, cuda = (runs[device].loss[-1] for device in DEVICES)
    return {
        **found,
        "ratio": medians["cpu"] / medians["cuda"],
        "device_mib": runs["cuda"].summary["peak_bytes"]["device"] / 2**20,
        "same": "yes" if abs(cpu - cuda) <= CLOSE * abs(cpu) else "NO",
    }


def _trained(graph: og.Graph, model: str, way: str, device: str, options: argparse.Namespace) -> og.Run:
    torch.manual_seed(0)
    built = build_model(model, graph, {"hidden": options.hidden, "layers": 2})
    batches: dict[str, Any] = {"batch_size": options.batch_size, "fanout": (15, 10)} if way in BATCHES else {}
    return og.train(
        graph,
        built,
        strategy={**WHOLE, **BATCHES}[way],
        device=device,
        epochs=options.epochs,
        eval_every=options.epochs,
        progress=False,
        **batches,
    )


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--graphs", nargs="+", default=["wordnet", "products@0.1"])
    add("--models", nargs="+", default=["gcn", "sage", "gat"])
    add("--strategies", nargs="+", default=[*WHOLE, *BATCHES], choices=[*WHOLE, *BATCHES])
    add("--devices", nargs="+", default=list(DEVICES), choices=DEVICES, help="one to be timed alone")
    add("--hidden", type=int, default=256)
    add("--batch-size", type=int, default=1024)
    add("--epochs", type=int, default=4)
    add("--rounds", type=int, default=2)
    add("--out", type=Path, help="file of the figures")
    return parser


if __name__ == "__main__":
    main()
