"""``outgrow warm``: compiles the kernels of a run before it starts."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from outgrow.app.cli.options import DEVICE, parse_assignments, require_task_of_decoder
from outgrow.app.messages import is_quiet, log_message, open_messages
from outgrow.core.compile_clock import describe_compilation
from outgrow.core.validation import validate_choice
from outgrow.runtime.system.environment import gc_paused_import

if TYPE_CHECKING:
    from collections.abc import Callable


def warm(
    graph: Annotated[str, typer.Argument(help="A data set, a store directory or a graph file.")],
    model: Annotated[
        str | None, typer.Option(help="As of `outgrow train`.", show_default="what suits the data set, else sage")
    ] = None,
    task: Annotated[str | None, typer.Option(help="What is predicted: nodes or links.", show_default="nodes")] = None,
    layers: Annotated[int | None, typer.Option(help="Number of layers.")] = None,
    hidden: Annotated[int | None, typer.Option(help="Width of hidden layers.")] = None,
    batch_size: Annotated[
        int | None, typer.Option(help="Seeds of a step.", show_default="all nodes to train on")
    ] = None,
    fanout: Annotated[
        str | None, typer.Option(help="Neighbours to draw for each hop, such as 10,10.", show_default="all neighbours")
    ] = None,
    strategy: Annotated[str, typer.Option(help="As of `outgrow train`.")] = "auto",
    memory: Annotated[
        str | None, typer.Option(help="Most memory of one worker, such as 2GiB.", show_default="no limit")
    ] = None,
    device: Annotated[str, DEVICE] = "auto",
    set_: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="NAME=VALUE",
            help="Any other option of the model, of the loop or of the strategy, as of `outgrow train`; may be given "
            "several times.",
        ),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder to look in first for a data set's files.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show warnings and errors alone.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as JSON.")] = False,
) -> None:
    """Compile the kernels of a run, so that it need not: trains the first epochs, of which nothing is kept."""
    with gc_paused_import():
        from outgrow.app.console import format_seconds
        from outgrow.app.runs.graph_choice import GraphChoice
        from outgrow.app.warm_run import compile_run_kernels

    given: dict[str, object] = {"layers": layers, "hidden": hidden, "batch_size": batch_size, "fanout": fanout}
    given["memory"] = memory
    if task is not None:
        validate_choice("task", task, dict.fromkeys(("nodes", "links")))
    given["decoder"] = "auto" if task == "links" else None
    options = {name: value for name, value in given.items() if value is not None} | parse_assignments(set_ or [])
    require_task_of_decoder(task, options)
    with open_messages(quiet=quiet, log_file=None), _show_compilation() as tell:
        found = compile_run_kernels(
            GraphChoice(name=graph, data_dir=data_dir), model, options, strategy=strategy, device=device, tell=tell
        )
        log_message(
            f"{found.compiled} kernels compiled in {format_seconds(found.seconds)}, {found.found} were there: "
            f"{found.folder}"
        )
    if as_json:
        print(json.dumps({**found._asdict(), "folder": str(found.folder)}))


@contextmanager
def _show_compilation() -> Iterator[Callable[[int, int, str], None]]:
    """Yield a function that shows which kernel of how many is compiled: in one line on a terminal, else in several."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal or is_quiet():
        yield lambda number, count, name: log_message(describe_compilation(number, name, count))
        return
    status = console.status("")

    def show(number: int, count: int, name: str) -> None:
        status.update(describe_compilation(number, name, count))
        status.start()

    try:
        yield show
    finally:
        status.stop()
