"""Time and memory of an epoch of R-GCN on WordNet (26 relations): Outgrow and PyG's two layers, side by side.

    benchmarks/rivals/setup.sh                 (once: makes the environments of the rivals)
    python benchmarks/relational.py --rounds 5

Two layers with shared bases, a mean per relation, root weight and bias; edges directed, as they come, and no
self-loops added. WordNet's raw features are 6,900 wide and sparse, so there are two tasks:

- ``rgcn``: all get the same dense input, a fixed random projection of the raw features to ``--inputs`` columns. This
  is the comparison of layers: PyG's take dense rows only, and this is a width at which both of them can run.
- ``rgcn-raw``: the raw features. Outgrow takes them sparse; PyG gets them dense (3.2 GB). `RGCNConv` keeps the
  aggregate of each relation for the backward pass (26 times that), `FastRGCNConv` makes a matrix of inputs by outputs
  for each edge: expect both to run out of memory.

Processes, rounds, settings and checks are those of full_graph.py. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison import TUNED, add_options, compare, parse, write_data
from rivals.process import Rival
from rivals.wordnet import PROJECTED, RAW

MODELS = (PROJECTED, RAW)
BOTH = frozenset(MODELS)
RIVALS = (
    Rival(name="outgrow", module="ours_relational", form="outgrow", python="", models=BOTH),
    Rival(name="pyg", module="pyg_relational", form="rgcn", python="pyg", models=BOTH),
    Rival(name="pyg-tuned", module="pyg_relational", form="rgcn", python="pyg", models=BOTH, settings=TUNED),
    Rival(name="pyg-fast", module="pyg_relational", form="fast", python="pyg", models=BOTH),
    Rival(name="pyg-fast-tuned", module="pyg_relational", form="fast", python="pyg", models=BOTH, settings=TUNED),
)


def _title(facts: Mapping[str, Any]) -> str:
    sizes = f"{facts['nodes']:,} nodes, {facts['edges']:,} edges of {facts['relations']} relations"
    widths = f"{facts['inputs']} (raw: {facts['raw_inputs']})-{facts['hidden']}-{facts['classes']}"
    return f"WordNet: {sizes}; widths {widths}; {facts['bases']} bases"


def main() -> None:
    """Measure, show, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser, MODELS, RIVALS)
    parser.add_argument("--inputs", type=int, default=64, help="columns of the projected features")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--bases", type=int, default=4)
    options = parse(parser, MODELS, RIVALS)
    wanted = {name: getattr(options, name) for name in ("inputs", "hidden", "bases")}

    def data(folder: Path) -> dict[str, Any]:
        return write_data(folder, wanted, ["wordnet", *map(str, wanted.values())])

    compare("relational", options, data=data, title=_title, fixed={"layers": 2, "dropout": 0.0, "dtype": "float32"})


if __name__ == "__main__":
    main()
