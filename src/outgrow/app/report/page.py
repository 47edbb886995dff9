"""Assemble and write the page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from outgrow.app.console import of_memory, of_seconds
from outgrow.app.report.charts import (
    Chart,
    bytes_per_link,
    load_per_worker,
    loss_curves,
    memory_over_time,
    score_curves,
    where_time_went,
)
from outgrow.app.report.data import RunRecord, distinct_names, read_run
from outgrow.app.report.prediction import Prediction, predicted
from outgrow.app.report.strategy_charts import charts_of_strategy
from outgrow.app.report.tables import table_of_prediction, table_of_runs
from outgrow.app.runs.directory import write_whole
from outgrow.core.errors import InputError

_OWN = files("outgrow.app.report")


def page_of(runs: Sequence[RunRecord], predictions: Sequence[Prediction]) -> str:
    """The page, with its charts, styles and scripts in it.

    Args:
        runs: At least one, side by side where they are several.
        predictions: What the planner expected of each.
    """
    from plotly.offline import get_plotlyjs

    charts: list[Chart] = []
    sections = "".join(_sections(runs, predictions, charts))
    title = "Run" if len(runs) == 1 else f"{len(runs)} runs"
    return Template((_OWN / "page.html").read_text()).substitute(
        title=escape(f"{title}: {', '.join(run.name for run in runs)}"),
        style=(_OWN / "page.css").read_text(),
        sections=sections,
        charts="".join(_data(chart) for chart in charts),
        plotly=get_plotlyjs(),
        script=(_OWN / "page.js").read_text(),
    )


def _sections(runs: Sequence[RunRecord], predictions: Sequence[Prediction], charts: list[Chart]) -> Iterator[str]:
    """What is on the page, from top to bottom; its charts are added to ``charts``."""
    if len(runs) == 1:
        yield _tiles(runs[0])
    yield _section("Curves", _shown(_present(loss_curves(runs), score_curves(runs)), charts))
    for number, run in enumerate(runs):
        of_run = _present(
            where_time_went(run, f"phases-{number}"),
            memory_over_time(run, f"memory-{number}"),
            load_per_worker(run, f"load-{number}"),
            *charts_of_strategy(run, f"strategy-{number}"),
        )
        yield _section(run.name if len(runs) > 1 else "Time, memory and load", _shown(of_run, charts))
    yield _section("Links", _shown(_present(bytes_per_link(runs)), charts))
    yield _section("All figures", _scrolling(table_of_runs(runs)))
    for run, found in zip(runs, predictions, strict=True):
        name = f": {escape(run.name)}" if len(runs) > 1 else ""
        yield _section(f"The plan beside the measurement{name}", _scrolling(table_of_prediction(found)))


def _tiles(run: RunRecord) -> str:
    summary = run.summary
    limit = "" if run.limit_bytes is None else f"of {of_memory(run.limit_bytes)}"
    workers = "1 worker" if summary["workers"] == 1 else f"{summary['workers']} workers"
    test = summary.get("test_accuracy")
    tiles = (
        ("test score", "none" if test is None else f"{test:.4f}", summary.get("metric", "").replace("_", " ")),
        ("strategy", run.strategy, workers),
        ("an epoch", of_seconds(run.seconds), f"median of {summary['epochs']:,}"),
        ("peak memory", of_memory(summary["peak_bytes"]["device"]), limit),
    )
    each = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{each}</div>'


def _present(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def _shown(found: Sequence[Chart], charts: list[Chart]) -> str:
    charts.extend(found)
    return f'<div class="charts">{"".join(map(_place, found))}</div>' if found else ""


def _place(chart: Chart) -> str:
    text = f"<h3>{escape(chart.title)}</h3><p>{escape(chart.text)}</p>"
    label = escape(f"{chart.title}. {chart.text}", quote=True)
    place = f'<div class="chart" id="{chart.key}" role="img" aria-label="{label}"></div>'
    return f"<figure>{text}{place}</figure>"


def _section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _scrolling(table: str) -> str:
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _data(chart: Chart) -> str:
    """The chart as JSON, in which no tag can end."""
    content = str(chart.figure.to_json()).replace("</", "<\\/")
    return f'<script type="application/json" data-chart="{chart.key}">{content}</script>\n'


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
