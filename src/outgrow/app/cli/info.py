"""``outgrow info``: shows the sizes and contents of a graph."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from outgrow.graph.graph import Graph


def info(
    graph: Annotated[str, typer.Argument(help="A data set, a store directory or a graph file.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read a store whole, check its checksums and ids.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a graph is: sizes, features, labels, splits, degrees."""
    from outgrow.graph.datasets import load_graph
    from outgrow.graph.store.reader import is_store, open_store

    path = Path(graph)
    # Only stores have checksums; `load_graph` opens them without reading everything.
    loaded = open_store(path, verify=verify) if is_store(path) else load_graph(graph, data_dir=data_dir)
    facts = describe_graph(loaded)
    if verify:
        facts["verified"] = True
    if as_json:
        print(json.dumps(facts))
        return
    _print_graph(loaded.name, facts)


def describe_graph(graph: Graph) -> dict[str, Any]:
    """Return facts on a graph, by name."""
    topology = graph.topology
    count = topology.indptr[1:] - topology.indptr[:-1]
    split = graph.split
    return {
        "name": graph.name,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "features": graph.num_features,
        "features_are": _describe_features(graph),
        "classes": graph.num_classes,
        "labels_per_node": "several" if graph.labels is not None and graph.labels.dim() == 2 else "one",
        "labels_are": "none" if graph.labels is None else "numbers" if graph.has_targets else "classes",
        "labelled_nodes": _count_labelled(graph),
        "train_nodes": len(split.train),
        "val_nodes": len(split.val),
        "test_nodes": len(split.test),
        "mean_degree": round(graph.num_edges / max(1, graph.num_nodes), 3),
        "largest_in_degree": int(count.max()) if graph.num_nodes else 0,
        "nodes_without_in_edges": int((count == 0).sum()),
        "relations": list(graph.relation_names),
        "node_types": {kind.name: kind.last - kind.first for kind in graph.node_types},
        "weighted": topology.weight is not None,
    }


def _describe_features(graph: Graph) -> str:
    if graph.features is None:
        return "none"
    layout = "sparse" if graph.sparse else "dense"
    return f"{layout} {str(graph.features.dtype).removeprefix('torch.')}"


def _count_labelled(graph: Graph) -> int:
    if graph.labels is None:
        return 0
    if graph.has_targets:
        known = ~graph.labels.isnan()
        return int((known if known.dim() == 1 else known.any(1)).sum())
    return graph.num_nodes if graph.multi_label else int((graph.labels >= 0).sum())


def _print_graph(name: str, facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(title=name, show_header=False, title_justify="left")
    for key, value in facts.items():
        if key != "name" and value not in ([], {}):
            table.add_row(key.replace("_", " "), _format_value(value))
    Console().print(table)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{name} {count:,}" for name, count in value.items())
    if isinstance(value, list):
        return f"{len(value)}: {', '.join(value)}"
    return str(value)
