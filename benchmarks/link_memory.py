"""Links of a large graph in mini-batches within a memory limit, trained and evaluated.

    outgrow convert papers100M@0.02 DIR/p002
    python benchmarks/link_memory.py DIR/p002 --workers 1 2

A 2-layer SAGE with a dot product is trained on some batches of links, each worker within ``--memory``, and validation
links are ranked among drawn candidates. Held is the most memory that no file backs of a process and its children, which
are looked at ten times a second. See README.md.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import record
from workers import versions

WIDTH = 64


def train(options: argparse.Namespace) -> dict[str, Any]:
    """Train on some batches and evaluate; on every worker."""
    import torch

    import outgrow as og

    graph = og.load(options.graph)
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, WIDTH, WIDTH).with_decoder(og.nn.Dot())
    training = og.prepare(
        graph,
        model,
        strategy=og.Sampled(memory=options.memory, partition="range-edges"),
        batch_size=4096,
        fanout=(10, 10),
        link_loss="softmax",
        negative_sampling="shared",
        negatives=1000,
        val_links=options.held_out,
        test_links=options.held_out,
        ranking_candidates=500,
        device="cpu",
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=0.003)
    seconds, losses = [], []
    with training:
        began = time.perf_counter()
        for number, step in enumerate(training.steps(1), 1):
            optimizer.step()
            optimizer.zero_grad()
            seconds.append(time.perf_counter() - began)
            losses.append(step.loss)
            if number == options.batches:
                break
            began = time.perf_counter()
        began = time.perf_counter()
        scores = training.evaluate("val")
        took = time.perf_counter() - began
    ends = {"first_loss": sum(losses[:10]) / 10, "last_loss": sum(losses[-10:]) / 10}
    return {**ends, "step_seconds": sorted(seconds)[len(seconds) // 2], "evaluation_seconds": took, "scores": scores}


def _work(options: argparse.Namespace) -> None:
    import outgrow as og

    [workers] = options.workers
    found = train(options) if workers == 1 else og.launch(train, options, workers=workers)
    print(json.dumps(found, default=str))


def _measure(options: argparse.Namespace, workers: int) -> dict[str, Any]:
    command = [sys.executable, __file__, options.graph, "--child", "--workers", str(workers)]
    command += ["--memory", options.memory, "--batches", str(options.batches), "--held-out", str(options.held_out)]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peaks: dict[int, int] = {}
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(0.1):
            with suppress(psutil.Error):
                parent = psutil.Process(child.pid)
                for each in (parent, *parent.children(recursive=True)):
                    with suppress(psutil.Error):
                        memory = each.memory_info()
                        peaks[each.pid] = max(peaks.get(each.pid, 0), memory.rss - memory.shared)

    watcher = threading.Thread(target=watch)
    watcher.start()
    out, _ = child.communicate()
    ended.set()
    watcher.join()
    if child.returncode:
        raise SystemExit(child.returncode)
    held = sorted(peaks.values(), reverse=True)[:workers]
    return {"workers": workers, "held_bytes": held, **json.loads(out.splitlines()[-1])}


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("graph", help="the store")
    add("--workers", type=int, nargs="+", default=[1, 2])
    add("--memory", default="2GiB")
    add("--batches", type=int, default=100)
    add("--held-out", type=float, default=0.0003, help="share of the pairs to validate on, and to test on")
    add("--out", type=Path, help="file of the figures")
    add("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _work(options)
        return
    rows = [_measure(options, workers) for workers in options.workers]
    for row in rows:
        print(row)
    given = {name: getattr(options, name) for name in ("memory", "batches", "held_out")}
    found = {"graph": Path(options.graph).name, "parameters": given, "versions": versions(), "rows": rows}
    print(record.write("link_memory", found, options.out))


if __name__ == "__main__":
    main()
