"""``outgrow info``: shows what a graph is, what it was made of, and what looks wrong with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console

SECTIONS = {
    "Read": ("read", "not_read"),
    "Nodes": (
        *("nodes", "part", "nodes_with_features", "node_types", "ids_are", "first_ids", "isolated_nodes"),
        "nodes_without_in_edges",
        "node_times",
        *("components", "largest_component"),
    ),
    "Edges": (
        *("edges", "relations", "weighted", "weight_range", "mean_degree", "in_degree_quantiles"),
        *("out_degree_quantiles", "self_loops", "duplicate_edges", "reciprocal_edges", "homophily"),
        *("edge_features", "edge_features_are", "edge_categories", "edge_category_counts", "edge_feature_range"),
        *("edge_feature_quantiles", "constant_edge_feature_columns", "zero_edge_feature_rows"),
        "edge_times",
    ),
    "Features": (
        *("features", "features_are", "feature_range", "constant_feature_columns", "zero_feature_rows"),
        *("columns_that_number_nodes", "columns_that_tell_label", "test_rows_in_train"),
    ),
    "Labels and split": (
        *("classes", "labels_per_node", "labels_are", "labelled_nodes", "label_rate"),
        *("train_nodes", "val_nodes", "test_nodes", "splits", "held_out_links", "link_leakage", "verified"),
    ),
}
"""The facts that are shown, by section."""
_SHARES = {
    *("largest_component", "reciprocal_edges", "zero_feature_rows", "label_rate", "test_rows_in_train"),
    "zero_edge_feature_rows",
}
_COUNTED_LISTS = {
    *("relations", "constant_feature_columns", "columns_that_number_nodes", "columns_that_tell_label"),
    "constant_edge_feature_columns",
}
_SHOWN_CLASSES = 20
_SHOWN_VALUES = 20


def info(
    graph: Annotated[str, typer.Argument(help="A data set, a store directory or a graph file.")],
    verify: Annotated[bool, typer.Option("--verify", help="Read a store whole, check its checksums and ids.")] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Count over all edges and features, where large graphs are sampled.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what a graph is, what it was made of, and what looks wrong with it."""
    from outgrow.app.graph_facts import describe_graph
    from outgrow.graph.datasets import load_graph
    from outgrow.graph.store.reader import is_store, open_store

    path = Path(graph)
    # Only stores have checksums; `load_graph` opens them without reading everything.
    loaded = open_store(path, verify=verify) if is_store(path) else load_graph(graph, data_dir=data_dir)
    facts = describe_graph(loaded, full=full)
    if verify:
        facts["verified"] = True
    if as_json:
        print(json.dumps(facts))
        return
    _print_facts(facts)


def _print_facts(facts: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    console.print(f"[bold]{escape(facts['name'])}[/]")
    for title, names in SECTIONS.items():
        rows = [(name, facts[name]) for name in names if name in facts]
        # What was read has a row each, since places may be long.
        rows = [*facts["read"].items(), ("not read", facts["not_read"])] if title == "Read" else rows
        _print_section(console, title, rows, facts)
    if len(facts["node_types"]) > 1:
        _print_target_types(console, facts["target_types"])
    _print_classes(console, facts["class_counts"])
    if facts["likely_mistakes"]:
        console.print("\n[bold]Likely mistakes[/]")
    for mistake in facts["likely_mistakes"]:
        console.print(f"- {escape(mistake['what'])}.\n  Repair: {escape(mistake['repair'])}.")


def _print_section(console: Console, title: str, rows: list[tuple[str, Any]], facts: dict[str, Any]) -> None:
    from rich.markup import escape
    from rich.table import Table

    estimates = {
        name for key in ("sampled_edges", "sampled_features", "sampled_edge_features") for name in facts.get(key, ())
    }
    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    # Folded: ids and paths may be longer than a line.
    table.add_column(overflow="fold")
    for name, value in rows:
        if value not in ([], {}, None):
            shown = _format_fact(name, value) + (" (estimated of a sample)" if name in estimates else "")
            table.add_row(name.replace("_", " "), escape(shown))
        elif value is None and name in ("components", "isolated_nodes", "out_degree_quantiles"):
            table.add_row(name.replace("_", " "), "not counted: --full reads all edges")
    if table.row_count:
        console.print(f"\n[bold]{title}[/]")
        console.print(table)


def _print_target_types(console: Console, types: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not types:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in (each for each in types[0] if each != "class_counts"):
        is_text = name in ("type", "labels_are", "labels_per_node")
        table.add_column(name.replace("_", " "), justify="left" if is_text else "right", overflow="fold")
    for each in types:
        values = [value for name, value in each.items() if name != "class_counts"]
        table.add_row(*(escape(value) if isinstance(value, str) else f"{value:,}" for value in values))
    console.print("\n[bold]Labels of node types[/]")
    console.print(table)


def _print_classes(console: Console, rows: list[dict[str, Any]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    if not rows:
        return
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in rows[0]:
        table.add_column(name, justify="left" if name == "class" else "right", overflow="fold")
    largest = sorted(rows, key=lambda row: -row["nodes"])
    for row in largest[:_SHOWN_CLASSES]:
        table.add_row(*(escape(str(value)) if name == "class" else f"{value:,}" for name, value in row.items()))
    console.print("\n[bold]Classes[/]")
    console.print(table)
    if len(rows) > _SHOWN_CLASSES:
        console.print(f"and {len(rows) - _SHOWN_CLASSES:,} smaller ones")


def _format_fact(name: str, value: Any) -> str:
    if name in _SHARES:
        return f"{value:.1%}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.6g}"
    return ", ".join(_list_values(name, value)) if isinstance(value, list | dict) else str(value)


def _list_values(name: str, values: list[Any] | dict[str, Any]) -> Iterator[str]:
    if isinstance(values, dict):
        percent = "%" if name.endswith("quantiles") else ""
        before = "column " if name == "edge_category_counts" else ""
        for key, value in values.items():
            # A figure for one of the likely mistakes.
            if key == "if_moved_by_one" or value is None:
                continue
            shown = value if isinstance(value, str) else _format_fact("", value)
            shown = f"[{shown}]" if isinstance(value, list) else shown
            yield f"{before}{key.replace('_', ' ')}{percent}: {shown}"
        return
    if name.endswith("range"):
        yield f"{values[0]:.6g} to {values[1]:.6g}"
        return
    if name in _COUNTED_LISTS:
        values = [f"{len(values):,}: {values[0]}", *values[1:]]
    yield from (_format_fact("", value) for value in values[:_SHOWN_VALUES])
    if len(values) > _SHOWN_VALUES:
        yield f"and {len(values) - _SHOWN_VALUES:,} more"
