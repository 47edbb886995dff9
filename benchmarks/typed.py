"""Time and memory of an epoch of typed models and of attention with features of edges: Outgrow and PyG, side by side.

    python benchmarks/typed.py --rounds 5 --data-dir DATA                      (needs torch_geometric)
    python benchmarks/typed.py --models mag:hgt --rivals outgrow,pyg --rounds 3

Models, two layers 64 wide: `to_hetero` of SAGE, as in PyG's to_hetero_mag.py; HGT with 4 heads, an input for each type
and a linear map to the classes, as in its hgt_dblp.py; GATv2 with 4 heads over all nodes, whose scores read 16 features
of each edge. Graphs: HeCo ACM with its words, WordNet with its 26 relations as edge types, ``ogbn-mag@0.1`` (and
``mag-small``, at 0.02, by name). PyG's models are given dense features, by type, and edges sorted by destination
(``pyg``) or, where its layer can multiply by them, adjacency matrices of torch (``pyg-sparse``); torch_sparse and
pyg_lib are not installed. All start from the same parameters and must have the same losses. ``outgrow-offload`` trains
within ``--offload-memory``.

Processes, rounds, settings and checks are those of full_graph.py. See benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from comparison import add_options, compare, parse
from record import HERE
from rivals.process import Rival

GRAPHS, KINDS = ("acm", "wordnet", "mag"), ("sage", "hgt", "gatv2")
MODELS = tuple(f"{graph}:{kind}" for graph in (*GRAPHS, "mag-small") for kind in KINDS)
ALL = frozenset(MODELS)
SAGE = frozenset(each for each in MODELS if each.endswith(":sage"))


def make_rivals(offload_memory: str) -> tuple[Rival, ...]:
    """Ours and PyG's; all run in the environment of the benchmark."""
    # A checkout that is not installed is found by it.
    found = {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}
    return (
        Rival(name="outgrow", module="ours_typed", form="full", python="", models=ALL, settings=found),
        Rival(
            name="outgrow-offload",
            module="ours_typed",
            form=f"offload:{offload_memory}",
            python="",
            models=ALL,
            settings=found,
        ),
        Rival(name="pyg", module="pyg_typed", form="edge-index", python="", models=ALL, settings=found),
        Rival(name="pyg-sparse", module="pyg_typed", form="sparse", python="", models=SAGE, settings=found),
    )


def main() -> None:
    """Measure, show, write."""
    before = argparse.ArgumentParser(add_help=False)
    before.add_argument("--offload-memory", default="1GiB", help="limit of the process under outgrow-offload")
    rivals = make_rivals(before.parse_known_args()[0].offload_memory)
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, parents=[before]
    )
    add_options(parser, MODELS, rivals)
    parser.set_defaults(models=[each for each in MODELS if not each.startswith("mag-small")])
    parser.add_argument("--data-dir", default=".", help="data folder, which contains heco_acm with the files of HeCo")
    parser.add_argument("--hidden", type=int, default=64)
    parser.add_argument("--edge-features", type=int, default=16)
    options = parse(parser, MODELS, rivals)

    def data(folder: Path) -> dict[str, Any]:
        return {model: _prepare(folder, model, options) for model in options.models}

    fixed = {"layers": 2, "dropout": 0.0, "dtype": "float32", "offload_memory": options.offload_memory}
    compare("typed", options, data=data, title=_title, fixed=fixed)


def _prepare(folder: Path, model: str, options: argparse.Namespace) -> dict[str, Any]:
    """Write the graph of a model, and the parameters that all rivals start from, unless they are there."""
    graph = model.partition(":")[0]
    place = folder.resolve() / graph
    if not (place / "data.json").exists():
        wanted = [graph, str(options.hidden), str(options.edge_features), str(Path(options.data_dir).resolve())]
        _run("typed_data", str(place), *wanted)
    kind = model.partition(":")[2]
    if not (place / f"start-{kind}.npz").exists():
        _run_job("pyg_typed", "start", folder, model, options)
    store = place / ("store-with-edges" if kind == "gatv2" else "store")
    if any(rival.form.startswith("offload") for rival in options.rivals) and not store.exists():
        _run_job("ours_typed", "store", folder, model, options)
    found = json.loads((place / "data.json").read_text())
    return {name: found[name] for name in ("source", "nodes", "edges", "hidden", "classes", "edge_features")}


def _run_job(module: str, form: str, folder: Path, model: str, options: argparse.Namespace) -> None:
    limit = int(options.memory_gib * 2**30)
    given = {"model": model, "form": form, "folder": folder.resolve(), "warmup": 0, "epochs": 0, "limit-bytes": limit}
    _run(module, *(part for name, value in given.items() for part in (f"--{name}", str(value))))


def _run(module: str, *arguments: str) -> None:
    subprocess.run([sys.executable, "-m", f"rivals.{module}", *arguments], cwd=HERE, check=True, stdout=sys.stderr)


def _title(facts: Mapping[str, Any]) -> str:
    graphs = {each["source"]: f"{each['nodes']:,} nodes, {each['edges']:,} edges" for each in facts.values()}
    return "; ".join(f"{name}: {sizes}" for name, sizes in graphs.items())


if __name__ == "__main__":
    main()
