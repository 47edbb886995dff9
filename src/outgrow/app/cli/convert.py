"""``outgrow convert``: converts a graph file to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outgrow.app.cli.options import ALLOW_OVERLAP, ALLOW_UNSEEN_RELATIONS
from outgrow.app.messages import log_message
from outgrow.core.memory_limits import parse_bytes


def convert(
    source: Annotated[str, typer.Argument(help="A graph file or folder, or the name of a data set.")],
    dest: Annotated[Path, typer.Argument(help="Directory of the store.")],
    undirected: Annotated[
        bool | None,
        typer.Option(
            "--undirected/--directed",
            help="Add the missing reverse of every edge, or take edges as they are.",
            show_default="directed; a data set knows what its users do",
        ),
    ] = None,
    nodes: Annotated[
        int | None, typer.Option(help="Edge tables: number of nodes.", show_default="largest id + 1")
    ] = None,
    relabel: Annotated[
        bool,
        typer.Option(
            "--relabel", help="Edge tables: number the nodes from 0 by the order of their ids, and keep these."
        ),
    ] = False,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Edge tables: column of each role, such as src=txId1,dst=txId2,weight=amount,relation=kind, "
            "and of a node table beside them id and type; columns without names are numbered from 0.",
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
        str | None,
        typer.Option(
            help="Edge tables: columns of features of edges, such as amount,kind,f_*; texts are categories, and "
            "kind:category says so of integers.",
            show_default="none",
        ),
    ] = None,
    time_column: Annotated[
        str | None,
        typer.Option(
            help="Column of times of the edge tables, the node tables or both, for temporal draws: whole numbers, or "
            "dates and times of day.",
            show_default="none",
        ),
    ] = None,
    categorical: Annotated[
        str, typer.Option(help="Node tables: columns of texts among the features: refuse, onehot or hash.")
    ] = "refuse",
    split: Annotated[
        str | None,
        typer.Option(
            help="Split of the nodes: shares such as 0.6,0.2,0.2 (drawn, stratified by label), time:COLUMN:0.6,0.2,0.2 "
            "(the earliest train), a column of a node table, or files (train.txt, ... beside it).",
            show_default="what the source says",
        ),
    ] = None,
    split_seed: Annotated[int, typer.Option(help="Seed of a split that is drawn.")] = 0,
    split_index: Annotated[int, typer.Option(help="Which of several splits is chosen.")] = 0,
    unknown_nodes: Annotated[
        str, typer.Option(help="Edges to nodes that the node table does not name: refuse, add or drop.")
    ] = "refuse",
    inverse_relations: Annotated[
        bool, typer.Option("--inverse-relations", help="Add the inverse of every edge, of a relation of its own.")
    ] = False,
    allow_overlap: Annotated[bool, ALLOW_OVERLAP] = False,
    allow_unseen_relations: Annotated[bool, ALLOW_UNSEEN_RELATIONS] = False,
    memory: Annotated[str, typer.Option(help="Most memory to use for edges, such as 512MiB.")] = "1GiB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Turn a graph into a store that opens in milliseconds, whatever its size, in bounded memory.

    Reads edge tables (csv, tsv, txt, parquet, Arrow, JSON lines, mtx, also compressed or in parts), folders of node
    and edge tables, of a table for each type and of triples, graph.yaml, npz, files of DGL, folders of Planetoid, OGB
    and GraphBolt, and data sets by name.
    """
    from outgrow.app.graph_sources import make_table_options, reader_for_path
    from outgrow.app.runs.progress import show_phases
    from outgrow.graph.builders.to_store import convert_to_store as write
    from outgrow.graph.readers.tables.options import parse_columns

    # Parsed first: a mistake must not show up only after a data set was downloaded.
    bound = parse_bytes(memory)
    options = make_table_options(
        {
            "columns": {} if columns is None else parse_columns(columns),
            "num_nodes": nodes,
            "relabel": relabel,
            "label": label or (),
            "features": features or (),
            "edge_features": edge_features or (),
            "time_column": time_column or "",
            "categorical": categorical,
            "split": split or "",
            "split_seed": split_seed,
            "split_index": split_index,
            "unknown_nodes": unknown_nodes,
            "inverse_relations": inverse_relations,
            "allow_overlap": allow_overlap,
            "allow_unseen_relations": allow_unseen_relations,
        },
        "outgrow convert",
    )
    found = reader_for_path(source, data_dir=data_dir, options=options)
    with show_phases() as progress:
        graph = write(
            found.source,
            dest,
            undirected=found.undirected if undirected is None else undirected,
            memory_bytes=bound,
            overwrite=overwrite,
            progress=progress,
        )
    log_message(f"{graph.num_nodes:,} nodes and {graph.num_edges:,} edges written to {dest}")
