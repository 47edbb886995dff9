"""``outgrow convert``: converts a graph file to a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

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
        int | None, typer.Option(help="Number of nodes of an edge list.", show_default="largest id + 1")
    ] = None,
    relabel: Annotated[
        bool, typer.Option("--relabel", help="Edge lists: renumber the ids that occur from 0, in their order.")
    ] = False,
    memory: Annotated[str, typer.Option(help="Most memory to use for edges, such as 512MiB.")] = "1GiB",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a store that is there.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Turn a graph into a store that opens in milliseconds, whatever its size, in bounded memory.

    Reads edge lists (csv, tsv, txt, also gzipped), parquet, npz, Planetoid and OGB folders, and data sets by name.
    """
    from outgrow.app.graph_sources import reader_for_path
    from outgrow.app.runs.progress import show_phases
    from outgrow.graph.builders.to_store import convert_to_store as write
    from outgrow.graph.readers.tables.options import TableOptions

    # Parsed first: a mistake must not show up only after a data set was downloaded.
    bound = parse_bytes(memory)
    options = TableOptions(num_nodes=nodes, relabel=relabel)
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
