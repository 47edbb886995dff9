"""The HTML page of a report: its sections, and the file that it is written to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template

from outgrow.app.console import format_memory, format_seconds
from outgrow.app.report.charts import (
    Chart,
    bytes_per_link,
    load_per_worker,
    loss_curves,
    memory_over_time,
    metric_curves,
    score_curves,
    where_time_went,
)
from outgrow.app.report.data import RunData, distinct_names, read_run
from outgrow.app.report.prediction import RunPrediction, predict_run
from outgrow.app.report.strategy_charts import strategy_charts
from outgrow.app.report.tables import render_link_table, render_prediction_table, render_runs_table
from outgrow.app.runs.directory import write_text_atomically
from outgrow.core.errors import InputError

_OWN = files("outgrow.app.report")


def render_page(runs: Sequence[RunData], predictions: Sequence[RunPrediction]) -> str:
    """Return the page as one HTML file that includes its charts, styles and scripts.

    Args:
        runs: One run, or several to show side by side.
        predictions: Prediction of the planner for each run.
    """
    # The script of plotly becomes part of the page, which then needs no network.
    from plotly.offline import get_plotlyjs

    charts: list[Chart] = []
    sections = "".join(_render_sections(runs, predictions, charts))
    title = "Run" if len(runs) == 1 else f"{len(runs)} runs"
    return Template((_OWN / "page.html").read_text()).substitute(
        title=escape(f"{title}: {', '.join(run.name for run in runs)}"),
        style=(_OWN / "page.css").read_text(),
        sections=sections,
        charts="".join(_render_chart_data(chart) for chart in charts),
        plotly=get_plotlyjs(),
        script=(_OWN / "page.js").read_text(),
    )


def _render_sections(
    runs: Sequence[RunData], predictions: Sequence[RunPrediction], charts: list[Chart]
) -> Iterator[str]:
    """Yield the sections of the page, from top to bottom; add their charts to ``charts``."""
    if len(runs) == 1:
        yield _render_tiles(runs[0])
    curves = [*_drop_missing(loss_curves(runs), score_curves(runs)), *metric_curves(runs)]
    yield _render_section("Curves", _render_charts(curves, charts))
    for number, run in enumerate(runs):
        # Keys contain the number of the run: identifiers must be unique on the page.
        run_charts = _drop_missing(
            where_time_went(run, f"phases-{number}"),
            memory_over_time(run, f"memory-{number}"),
            load_per_worker(run, f"load-{number}"),
            *strategy_charts(run, f"strategy-{number}"),
        )
        yield _render_section(
            run.name if len(runs) > 1 else "Time, memory and load", _render_charts(run_charts, charts)
        )
    yield _render_section("Links", _render_charts(_drop_missing(bytes_per_link(runs)), charts))
    yield _render_section("All figures", _render_scrollable(render_runs_table(runs)))
    for run in runs:
        name = f": {escape(run.name)}" if len(runs) > 1 else ""
        if table := render_link_table(run):
            yield _render_section(f"Test links by end and relation{name}", _render_scrollable(table))
    for run, found in zip(runs, predictions, strict=True):
        name = f": {escape(run.name)}" if len(runs) > 1 else ""
        yield _render_section(
            f"The plan beside the measurement{name}", _render_scrollable(render_prediction_table(found))
        )


def _render_tiles(run: RunData) -> str:
    summary = run.summary
    limit = "" if run.limit_bytes is None else f"of {format_memory(run.limit_bytes)}"
    workers = "1 worker" if summary["workers"] == 1 else f"{summary['workers']} workers"
    # Runs of earlier versions have recorded the accuracy alone.
    test = summary.get("test_score", summary.get("test_accuracy"))
    tiles = (
        ("test score", "none" if test is None else f"{test:.4f}", summary.get("metric", "").replace("_", " ")),
        ("strategy", run.strategy, workers),
        ("an epoch", format_seconds(run.epoch_seconds), f"median of {summary['epochs']:,}"),
        ("peak memory", format_memory(summary["peak_bytes"]["device"]), limit),
    )
    each = "".join(
        f'<div class="tile"><span>{escape(name)}</span><b>{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{each}</div>'


def _drop_missing(*charts: Chart | None) -> list[Chart]:
    return [chart for chart in charts if chart is not None]


def _render_charts(found: Sequence[Chart], charts: list[Chart]) -> str:
    charts.extend(found)
    return f'<div class="charts">{"".join(map(_render_chart, found))}</div>' if found else ""


def _render_chart(chart: Chart) -> str:
    text = f"<h3>{escape(chart.title)}</h3><p>{escape(chart.text)}</p>"
    label = escape(f"{chart.title}. {chart.text}", quote=True)
    element = f'<div class="chart" id="{chart.key}" role="img" aria-label="{label}"></div>'
    return f"<figure>{text}{element}</figure>"


def _render_section(title: str, content: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{content}</section>" if content else ""


def _render_scrollable(table: str) -> str:
    # `tabindex` lets the keyboard scroll tables that are wider than the screen.
    return f'<div class="scroll" tabindex="0">{table}</div>'


def _render_chart_data(chart: Chart) -> str:
    """Return the chart as JSON in a script element."""
    # A name of a run may contain "</script>", which would end the element; in JSON "\/" equals "/".
    content = str(chart.figure.to_json()).replace("</", "<\\/")
    return f'<script type="application/json" data-chart="{chart.key}">{content}</script>\n'


_MOST_RUNS = 12


def write_report(paths: Sequence[Path], out: Path | None = None, data_dir: Path | None = None) -> Path:
    """Write a report on finished runs.

    Args:
        paths: Run directories.
        out: File to write; None for ``report.html`` in the directory of the first run.
        data_dir: Folder to look in first for the files of data sets, which the planner's prediction needs.

    Returns:
        Path of the page.

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
            repair="for example, give --out report.html",
        )
    # Replaced atomically: a browser may be showing the file.
    write_text_atomically(target, render_page(runs, [predict_run(run, data_dir) for run in runs]))
    return target
