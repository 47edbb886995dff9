"""``outgrow links``: the most likely links of a node, by a run that predicts links."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.app.cli.options import DEVICE
from outgrow.app.messages import log_message
from outgrow.core.errors import InputError
from outgrow.runtime.system.environment import gc_paused_import, torchrun_world_size

if TYPE_CHECKING:
    from outgrow.app.runs.directory import RunDirectory
    from outgrow.app.top_links import TopLinks

ENDINGS = (".csv", ".json", ".parquet")
_WHO = "a node by its id, or by its number if the graph has no ids; may be repeated"


def links(
    run: Annotated[Path, typer.Argument(help="Directory of a run that predicts links.")],
    head: Annotated[list[str] | None, typer.Option(help=f"Head of the links: {_WHO}.", show_default="none")] = None,
    tail: Annotated[list[str] | None, typer.Option(help=f"Tail of the links: {_WHO}.", show_default="none")] = None,
    relation: Annotated[
        str | None, typer.Option(help="Name of the relation.", show_default="the only one, if there is one")
    ] = None,
    top: Annotated[int, typer.Option(help="Number of links of each node.")] = 10,
    include_known: Annotated[
        bool, typer.Option("--include-known", help="Show links of the graph too, marked as known.")
    ] = False,
    node_type: Annotated[
        str | None, typer.Option("--type", help="Type of the given nodes, where types share ids.", show_default="any")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="File to write too: .csv, .json or .parquet.", show_default="none")
    ] = None,
    graph: Annotated[
        str | None, typer.Option(help="Another graph of the same features and relations.", show_default="the run's")
    ] = None,
    workers: Annotated[
        int, typer.Option(help="Processes on this host that compute embeddings; not under torchrun.")
    ] = 1,
    device: Annotated[str, DEVICE] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="Most memory of one worker, such as 2GiB.", show_default="half of what is left")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
) -> None:
    """Show the most likely tails of links of a head, or heads of a tail, by the best model of a run.

    All nodes are scored that may be the other end: those of each type that edges of the relation lead to, but the node
    itself. Links that are known are left out: edges of the graph, and links that it comes with to validate and test on.

    The file has a row for each link: head, relation, tail, the ids and types of both ends (where the graph has these),
    rank, score, and whether the link is known.
    """
    with gc_paused_import():
        from outgrow.app.node_names import parse_nodes
        from outgrow.app.predictions import validate_output_path
        from outgrow.app.runs.directory import RunDirectory
        from outgrow.app.runs.load_run import load_run_for_prediction
        from outgrow.app.runs.signals import exit_on_ending_signals
        from outgrow.app.runs.workers import torchrun_error
        from outgrow.app.top_links import require_decoder, require_one_end, top_links

    if torchrun_world_size():
        raise torchrun_error(f"one of {torchrun_world_size()} processes of torchrun")
    require_one_end(head or None, tail or None)
    if out is not None:
        validate_output_path(out, ENDINGS)
    with exit_on_ending_signals():
        directory = RunDirectory.open(run)
        loaded, model = load_run_for_prediction(directory, graph, data_dir)
        require_decoder(model)
        found = top_links(
            loaded,
            model,
            heads=parse_nodes(loaded, head, node_type) if head else None,
            tails=parse_nodes(loaded, tail, node_type) if tail else None,
            relation=_choose_relation(directory, relation),
            top=top,
            include_known=include_known,
            device=device,
            workers=workers,
            memory=memory,
        )
        if out is not None:
            found.save_table(out)
    _print_links(found, show_known=include_known)
    if out is not None:
        log_message(f"{int((found.nodes >= 0).sum()):,} links written to {out}")


def _choose_relation(directory: RunDirectory, relation: str | None) -> str | None:
    """Return the relation asked for, or the only one that the run was trained on.

    Raises:
        InputError: The run was trained on the links of other relations.
    """
    trained: Sequence[str] = directory.config["train"].get("link_relations") or ()
    if relation is None and len(trained) == 1:
        return str(trained[0])
    if trained and relation is not None and relation not in trained:
        raise InputError(
            f"the run has not learned to predict links of {relation!r}",
            needed=f"--relation, one of {', '.join(trained)}: those that it was trained on by --link-relations",
            got=repr(relation),
            repair="give one of these, or train on the links of this relation",
        )
    return relation


def _print_links(found: TopLinks, *, show_known: bool) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    links = found.to_table()
    columns = links.column_names
    # People ask by id: the number of a node says no more.
    hidden = {end for end in ("head", "tail") if f"{end}_id" in columns} | (set() if show_known else {"known"})
    shown = [name for name in columns if name not in hidden]
    table = Table(box=None, padding=(0, 2, 0, 0))
    for name in shown:
        table.add_column(name.removesuffix("_id").replace("_", " "), overflow="fold")
    for row in links.to_pylist():
        table.add_row(*(escape(_format_value(row[name])) for name in shown))
    Console(highlight=False).print(table)


def _format_value(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.4f}" if isinstance(value, float) else str(value)
