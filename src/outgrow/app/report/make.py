"""From directories of runs to a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from outgrow.app.report.page import page_of
from outgrow.app.report.predicted import predicted
from outgrow.app.report.record import distinct_names, read_run
from outgrow.app.rundir import write_whole
from outgrow.core.errors import InputError

_MOST_RUNS = 12


def report(paths: Sequence[Path], out: Path | None = None, data_dir: Path | None = None) -> Path:
    """Write a page about runs that have ended.

    Args:
        paths: Their directories.
        out: The file; None for ``report.html`` in the directory of the first run.
        data_dir: Folder to look in first for the files of data sets, of which the planner's estimate is made.

    Returns:
        Where the page is.

    Raises:
        InputError: There is no such run, or the file cannot be written.
    """
    if not 1 <= len(set(paths)) <= _MOST_RUNS or len(set(paths)) < len(paths):
        raise InputError(
            "cannot show these runs on one page",
            needed=f"1 to {_MOST_RUNS} different runs",
            got=f"{len(paths)}, of which {len(set(paths))} differ",
            repair="leave some out",
        )
    runs = [read_run(path, name) for path, name in zip(paths, distinct_names(paths), strict=True)]
    target = out or paths[0] / "report.html"
    if target.is_dir() or target.suffix not in (".html", ".htm"):
        raise InputError(
            f"cannot write the report to {target}",
            needed="a file whose name ends in .html",
            got="a directory" if target.is_dir() else f"{target.name!r}",
            repair="give --out report.html, say",
        )
    write_whole(target, page_of(runs, [predicted(run, data_dir) for run in runs]))
    return target
