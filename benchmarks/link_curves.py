"""Validation MRR over seconds of training on a folder of triples: ours, PyKEEN, PyG; the picture of it.

    python benchmarks/link_curves.py DATA/kg_codex_s --minutes 3 --rivals FOLDER/pykeen/bin/python --at-once 1 \
        --ours link_steps=32 negatives=2034 regularizer_weight=0.01 --pykeen weight=0.01
    python benchmarks/link_curves.py --draw RESULT.json docs/assets/link-curves.png

Each contender is a process on a core of its own, with one thread; `--at-once` of them run beside each other.
Evaluations are not counted. ComplEx has 200 complex numbers for a node, DistMult 400 numbers, R-GCN 200 and one layer.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import SimpleQueue
from threading import Lock
from typing import Any

import record
from workers import versions

HERE = Path(__file__).parent
CONTENDERS: Mapping[str, Sequence[str]] = {
    "Outgrow ComplEx": ("complex", "epochs=1000", "eval_every=1"),
    "PyKEEN ComplEx": ("rivals.pykeen_links", "complex", "every=2"),
    "PyG ComplEx": ("rivals.pyg_links", "complex", "every=4", "lr=0.001", "decay=1e-6"),
    "Outgrow DistMult": ("distmult", "epochs=1000", "eval_every=1"),
    "PyKEEN DistMult": ("rivals.pykeen_links", "distmult", "every=2", "dim=400"),
    "PyG DistMult": ("rivals.pyg_links", "distmult", "every=4", "dim=400", "lr=0.001", "decay=1e-6"),
    "Outgrow R-GCN": ("rgcn", "epochs=1000", "eval_every=1"),
    "PyKEEN R-GCN": ("rivals.pykeen_links", "rgcn", "every=1", "lr=0.01", "optimizer=Adam"),
    "PyG R-GCN": ("rivals.pyg_links", "rgcn", "every=10", "batch=0"),
}
"""Ours: a row of `link_recipes.py` and its options. Rivals: module, model, options."""


def run_contender(name: str, options: Namespace, core: int) -> dict[str, Any]:
    """Train one; return its curve ``[seconds, MRR]`` and its test MRR."""
    first, *rest = CONTENDERS[name]
    folder, minutes = str(options.graph.resolve()), str(options.minutes)
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "found.json"
        if ours := not first.startswith("rivals."):
            command = [sys.executable, "link_recipes.py", folder, "--rows", first, "--minutes", minutes]
            command += ["--out", str(out), "--options", *rest, *options.ours]
        else:
            given = options.pykeen if "pykeen" in first else ()
            command = [options.rivals, "-m", first, folder, rest[0], minutes, str(out), *rest[1:], "threads=1", *given]
        # What a core is given decides about all threads, those of Numba and OpenMP too.
        alone = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
        with open(Path(scratch) / "log", "w+") as log:
            process = subprocess.Popen(command, cwd=HERE, env=alone, stdout=log, stderr=log)
            os.sched_setaffinity(process.pid, {core})
            if process.wait():
                log.seek(0)
                raise RuntimeError(f"{name}: {log.read()[-2000:]}")
        found = json.loads(out.read_text())
    if ours:
        (trained,) = found["found"][first]
        return {"curve": trained["curve"], "val": trained["val"]["mrr"], "test": trained["test"]["mrr"]}
    curve = [(seconds, mrr) for seconds, _, mrr in found["curve"]]
    return {"curve": curve, "val": found["val"], "test": found["test"]["mrr"], "options": found["options"]}


def run_all(options: Namespace) -> Path:
    """Train all contenders, and write what each has found when it ends; those of the file are not trained again."""
    cores = SimpleQueue[int]()
    for core in sorted(os.sched_getaffinity(0))[: options.at_once]:
        cores.put(core)
    out = options.out
    found = json.loads(out.read_text())["found"] if out is not None and out.exists() else {}
    figures = {"versions": versions(), "minutes": options.minutes, "contenders": CONTENDERS, "found": found}
    figures |= {"ours": options.ours, "pykeen": options.pykeen}
    lock = Lock()

    def run(name: str) -> None:
        nonlocal out
        core = cores.get()
        try:
            got = run_contender(name, options, core)
        finally:
            cores.put(core)
        print(f"{name}: best validation MRR {got['val']:.4f}, test {got['test']:.4f}", flush=True)
        with lock:
            found[name] = got
            out = record.write(f"link_curves_{options.graph.name}", figures, out)

    chosen = options.only.split(",") if options.only else CONTENDERS
    with ThreadPoolExecutor(options.at_once) as pool:
        list(pool.map(run, [name for name in chosen if name not in found]))
    assert out is not None
    return Path(out)


def draw(result: Mapping[str, Any], picture: Path) -> None:
    """Draw a panel for each decoder or encoder."""
    from matplotlib import pyplot as plt

    kinds = list(dict.fromkeys(name.split(" ", 1)[1] for name in CONTENDERS if name in result["found"]))
    figure, panels = plt.subplots(1, len(kinds), figsize=(4 * len(kinds), 3.4), sharey=True, squeeze=False)
    colours = {"Outgrow": "#0b5fa5", "PyKEEN": "#c4562d", "PyG": "#6b8e23"}
    for panel, kind in zip(panels[0], kinds, strict=True):
        for name, found in result["found"].items():
            library, of = name.split(" ", 1)
            if of == kind:
                seconds, scores = zip(*found["curve"], strict=True)
                panel.plot(seconds, scores, marker="o", markersize=3, color=colours[library], label=library)
        panel.set(title=kind, xlabel="seconds of training", xlim=(0, None), ylim=(0, 0.5))
        panel.grid(alpha=0.3)
    panels[0][0].set_ylabel("validation MRR, filtered")
    panels[0][0].legend()
    figure.tight_layout()
    figure.savefig(picture, dpi=110)


def main() -> None:
    """Train and write, or draw what was written."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("graph", type=Path, nargs="?", help="a folder of triples")
    add("--minutes", type=float, default=10.0, help="of training, for each contender")
    add("--rivals", default=sys.executable, help="Python of the environment that has PyKEEN and PyG")
    add("--ours", nargs="*", default=[], help="options of our rows that a graph decides, such as link_steps=32")
    add("--pykeen", nargs="*", default=[], help="options of PyKEEN that a graph decides, such as weight=0.01")
    add("--at-once", type=int, default=2, help="contenders beside each other")
    add("--only", default="", help="names of contenders, by commas")
    add("--out", type=Path, help="file of the figures")
    add("--draw", type=Path, nargs=2, metavar=("RESULT", "PICTURE"), help="draw the figures of a file")
    options = parser.parse_args()
    if options.draw:
        draw(json.loads(options.draw[0].read_text()), options.draw[1])
        return
    print(run_all(options))


if __name__ == "__main__":
    main()
