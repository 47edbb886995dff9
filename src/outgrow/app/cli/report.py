"""``outgrow report``: writes an HTML page about runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from outgrow.app.messages import log_message
from outgrow.runtime.system.environment import gc_paused_import


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Directories of runs that have ended.")],
    out: Annotated[
        Path | None, typer.Option(help="File to write.", show_default="report.html in the directory of the first run")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option(help="Folder to look in first for a data set's files, for the plan's prediction.")
    ] = None,
) -> None:
    """Write one page that shows what happened in a run, or in several side by side, and where time went.

    It has loss and scores, seconds of each epoch by phase, bytes of each link, memory against its limit, the load of
    each worker, what only the strategy has, and what the planner expected. It needs no network to be looked at.
    """
    with gc_paused_import():
        from outgrow.app.report.page import write_report as written

    log_message(f"report written to {written(runs, out, data_dir)}")
