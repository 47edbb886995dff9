"""Time and memory of a full-graph training epoch: Outgrow, PyG in both its forms, and DGL, side by side.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/full_graph.py --models gcn,gat --rounds 5

Every rival runs in a process of its own and gets the same arrays and the same parameters to start from; rounds are
interleaved. The table goes to the terminal, all figures to benchmarks/results/. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import comparison
from comparison import TUNED, add_options, compare, parse
from rivals.common import HEADS
from rivals.process import Rival

MODELS = ("gat", "gcn", "gin", "sage")
ALL = frozenset(MODELS)
FIXED = ALL - {"gat"}
RIVALS = (
    Rival(name="outgrow", module="ours", form="outgrow", python="", models=ALL),
    Rival(name="outgrow-recompute", module="ours", form="recompute", python="", models=FIXED),
    Rival(name="dgl", module="dgl", form="int32", python="dgl", models=ALL),
    Rival(name="dgl-tuned", module="dgl", form="int32", python="dgl", models=ALL, settings=TUNED),
    Rival(name="pyg-csr", module="pyg", form="csr", python="pyg", models=FIXED),
    Rival(name="pyg-csr-tuned", module="pyg", form="csr", python="pyg", models=FIXED, settings=TUNED),
    Rival(name="isplib", module="isplib", form="sparse_tensor", python="isplib", models=FIXED),
    Rival(name="isplib-tuned", module="isplib", form="sparse_tensor", python="isplib", models=FIXED, settings=TUNED),
    Rival(name="pyg-edge", module="pyg", form="edge_index", python="pyg", models=ALL),
    Rival(name="pyg-edge-tuned", module="pyg", form="edge_index", python="pyg", models=ALL, settings=TUNED),
)


def write_data(folder: Path, scale: int, widths: Sequence[int]) -> dict[str, Any]:
    """Make the arrays of all rivals below ``folder``, unless they are there; returns what they are."""
    wanted = {"scale": scale, "widths": list(widths)}
    return comparison.write_data(folder, wanted, ["data", str(scale), *map(str, widths)])


def _title(facts: Mapping[str, Any]) -> str:
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges"
    return f"R-MAT scale {facts['scale']}: {sizes}; widths {'-'.join(map(str, facts['widths']))}"


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, MODELS, RIVALS)
    parser.add_argument("--scale", type=int, default=18, help="the graph has 2^scale nodes")
    parser.add_argument("--widths", type=lambda text: [int(part) for part in text.split(",")], default=[100, 256, 47])
    options = parse(parser, MODELS, RIVALS)
    compare(
        "full_graph",
        options,
        data=partial(write_data, scale=options.scale, widths=options.widths),
        title=_title,
        fixed={"heads": [HEADS, 1], "dropout": 0.0, "dtype": "float32"},
    )


if __name__ == "__main__":
    main()
