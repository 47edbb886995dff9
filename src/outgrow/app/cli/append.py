"""``outgrow append``: writes a new version of a store, with more edges and nodes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outgrow.app.messages import log_message
from outgrow.core.memory_limits import parse_bytes


def append(
    store: Annotated[Path, typer.Argument(help="Directory of the store; replaced once the new version is complete.")],
    tables: Annotated[
        list[Path],
        typer.Argument(help="Tables of new edges and nodes; which is which is told by names (edges.csv) or columns."),
    ],
    out: Annotated[
        Path | None, typer.Option(help="Directory of the new version, if the store is to stay as it is.")
    ] = None,
    undirected: Annotated[
        bool | None,
        typer.Option(
            "--undirected/--directed",
            help="Add the missing reverse of every edge, or take edges as they are: as the store was converted.",
            show_default="directed, if not all edges of the store go both ways",
        ),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Edge tables: column of each role, such as src=from_id,dst=to_id; of node tables id.",
            show_default="found by their names",
        ),
    ] = None,
    label: Annotated[
        str | None, typer.Option(help="Node tables: columns of labels.", show_default="label, class or y")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Node tables: columns of features.", show_default="all that are numbers")
    ] = None,
    edge_features: Annotated[
        str | None, typer.Option(help="Edge tables: columns of features of edges, numbers.", show_default="none")
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(help="Column of times, of a store that has such.", show_default="none"),
    ] = None,
    categorical: Annotated[
        str, typer.Option(help="Node tables: columns of texts among the features: refuse or hash.")
    ] = "refuse",
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of the new nodes: shares such as 0.6,0.2,0.2, or a column.",
            show_default="what the table says, else in no part",
        ),
    ] = None,
    unknown_nodes: Annotated[
        str, typer.Option(help="Edges to nodes that neither the store nor a table has: refuse, add or drop.")
    ] = "refuse",
    inverse_relations: Annotated[
        bool, typer.Option("--inverse-relations", help="Add the inverse of every edge, as the store was converted.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Most memory to use for edges, such as 512MiB.")] = "1GiB",
) -> None:
    """Write a new version of a store, with more edges and nodes, whose old numbers and ids stay.

    A model that was trained on the store predicts for the new nodes: outgrow predict RUN --graph STORE.
    """
    from outgrow.app.append_tables import append_to_store, sort_tables
    from outgrow.app.graph_sources import make_table_options
    from outgrow.app.runs.progress import show_phases
    from outgrow.graph.readers.tables.options import parse_columns
    from outgrow.graph.store.manifest import read_manifest

    bound = parse_bytes(memory)
    options = make_table_options(
        {
            "columns": {} if columns is None else parse_columns(columns),
            "label": label or (),
            "features": features or (),
            "edge_features": edge_features or (),
            "time_column": time_column or "",
            "categorical": categorical,
            "split": split or "",
            "unknown_nodes": unknown_nodes,
            "inverse_relations": inverse_relations,
        },
        "outgrow append",
    )
    edges, nodes = sort_tables(tables, options)
    before = read_manifest(store) if store.is_dir() else None
    with show_phases() as progress:
        graph = append_to_store(
            store, edges, nodes, options, out=out, undirected=undirected, memory_bytes=bound, progress=progress
        )
    assert before is not None
    log_message(
        f"{graph.num_nodes - before.num_nodes:,} nodes and {graph.num_edges - before.num_edges:,} edges appended: "
        f"{graph.num_nodes:,} nodes and {graph.num_edges:,} edges written to {out or store}"
    )
