"""The first hour of a GPU: are its kernels right, do the tests pass, how fast are epochs. `make gpu` runs all of it.

    python benchmarks/gpu.py                              # all parts; their limits add up to 38 minutes
    python benchmarks/gpu.py --parts kernels,tests        # some
    python benchmarks/gpu.py --dry                        # the same on a CPU, on small graphs, to try the script

Each part is a command of its own with a time limit; the next one runs whatever has become of it. One JSON has the
figures of all parts, the ends of their outputs, and the machine; a summary is printed. Exits with 1 if a part failed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import record
from record import ROOT

_TAIL = 4000
"""Characters of the output of a part that are kept."""


class Part(NamedTuple):
    """One part.

    Attributes:
        about: What it shows.
        command: The command on a GPU, after the interpreter; ``OUT`` stands for the file of its figures.
        dry: The same on a CPU.
        minutes: Most time on a GPU.
    """

    about: str
    command: str
    dry: str
    minutes: float


PARTS: Mapping[str, Part] = {
    "kernels": Part(
        "every kernel against that of the CPU",
        "-m outgrow doctor --device cuda --json",
        "-m outgrow doctor --device cpu --json",
        3,
    ),
    "tests": Part(
        "the tests marked gpu",
        "-m pytest -q -p no:cacheprovider -m gpu tests",
        "-m pytest -q -p no:cacheprovider -m gpu --collect-only tests/ops/gpu tests/app/test_device.py",
        12,
    ),
    "full": Part(
        "epochs on the whole graph beside PyG on the same card",
        "benchmarks/real_graphs.py --graphs products@0.1 --hidden 256 --models gcn,sage,gat --device cuda "
        "--rivals outgrow,pyg-edge,pyg-csr --rounds 2 --warmup 3 --epochs 10 --envs ENVS --out OUT",
        "benchmarks/real_graphs.py --graphs products@0.001 --hidden 16 --models gcn --rivals outgrow --rounds 1 "
        "--warmup 1 --epochs 2 --out OUT",
        6,
    ),
    "strategies": Part(
        "every strategy beside the CPU of the machine",
        "benchmarks/device.py --graphs products@0.1 --models gcn sage gat --epochs 3 --rounds 1 --out OUT",
        "benchmarks/device.py --graphs products@0.001 --models gcn --epochs 2 --rounds 1 --devices cpu --hidden 16 "
        "--out OUT",
        6,
    ),
    "offload": Part(
        "training in 4 GiB of the card's memory, technique by technique",
        "benchmarks/offload.py gpu --graph products@0.5 --device-memory 4GiB --rounds 1 --epochs 3 --out OUT",
        "benchmarks/offload.py quarter --graph products@0.002 --rounds 1 --epochs 1 --out OUT",
        6,
    ),
    "orchestrate": Part(
        "the steps of NeutronOrch's figure 12",
        "benchmarks/orchestrate.py steps --graphs products@0.1 --device cuda --out OUT",
        "benchmarks/orchestrate.py steps --graphs products@0.001 --device cpu --epochs 2 --out OUT",
        5,
    ),
}


def run_part(part: Part, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run a part; returns its figures, or why there are none."""
    out = folder / "figures.json"
    words = (part.dry if options.dry else part.command).replace("OUT", str(out)).replace("ENVS", str(options.envs))
    began = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *words.split()],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=60 * part.minutes,
            check=False,
        )
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = None, (late.stdout or b"").decode(errors="replace")
    figures = json.loads(out.read_text()) if out.exists() else None
    out.unlink(missing_ok=True)
    return {
        "about": part.about,
        "command": words,
        "exit_code": code,
        "seconds": time.monotonic() - began,
        "output": output[-_TAIL:],
        "figures": figures,
    }


def main() -> None:
    """Run, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", type=lambda text: text.split(","), default=list(PARTS), help="with commas")
    parser.add_argument("--dry", action="store_true", help="on a CPU, on small graphs")
    parser.add_argument("--envs", type=Path, default=ROOT / ".venv-gpu-rivals", help="as of real_graphs.py")
    parser.add_argument("--out", type=Path, help="file of the figures")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"unknown parts: {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in options.parts:
            print(f"{name}: {PARTS[name].about}", flush=True)
            found[name] = run_part(PARTS[name], options, Path(folder))
            state = {0: "done", None: "out of time"}.get(found[name]["exit_code"], "FAILED")
            print(found[name]["output"] if state != "done" else found[name]["output"][-1200:], flush=True)
            print(f"{name}: {state} after {found[name]['seconds']:.0f} s", flush=True)
    print(record.write("gpu", {"dry": options.dry, "parts": found}, options.out))
    if any(part["exit_code"] != 0 for part in found.values()):
        sys.exit(1)


if __name__ == "__main__":
    main()
