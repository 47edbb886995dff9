"""Charts for runs of any strategy: curves, seconds, bytes, memory, load."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go

from outgrow.app.report.data import OTHER, RunData
from outgrow.training.trainer import EVALUATE, SAVE

_COLOURS = ("#3b82c4", "#e0752d", "#3f9c5a", "#c9485b", "#8a63c9", "#2ba3a3", "#b0862b", "#c45fa0", "#6b8f23")
_OF_PHASE = {
    "forward": "#3b82c4",
    "backward": "#2f5f93",
    "compute": "#3b82c4",
    "aggregate": "#2ba3a3",
    "accumulate": "#6b8f23",
    "optimizer": "#8a63c9",
    "wait for rows": "#e0752d",
    "wait for batches": "#d9a02e",
    "wait for loads": "#d9a02e",
    "wait for stores": "#b0862b",
    "wait for the CPU": "#b0862b",
    "sum over workers": "#c9485b",
    "exchange": "#c45fa0",
    "models travel": "#c45fa0",
    OTHER: "#8d8d8d",
}
_MOST_BARS = 60


class Chart(NamedTuple):
    """Chart with its heading and explanation.

    Attributes:
        key: Identifier of its element on the page.
        title: Heading.
        text: One sentence on how to read the chart.
        figure: Plotly figure.
    """

    key: str
    title: str
    text: str
    figure: go.Figure


def series_colour(index: int) -> str:
    """Return the colour of the ``index``-th line or bar."""
    return _COLOURS[index % len(_COLOURS)]


def make_figure(traces: Sequence[Any], x: str, y: str, **layout: Any) -> go.Figure:
    """Make a figure with axis titles ``x`` and ``y``, in the style of the page."""
    made = go.Figure(data=list(traces))
    made.update_layout(
        template="none",
        # Transparent and without text colours: ``page.js`` sets them for the light or the dark theme.
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        margin={"l": 60, "r": 12, "t": 8, "b": 44},
        legend={"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
        hovermode="x unified",
        xaxis={"title": {"text": x}, "automargin": True},
        yaxis={"title": {"text": y}, "automargin": True, "rangemode": "tozero"},
        **layout,
    )
    return made


def loss_curves(runs: Sequence[RunData]) -> Chart:
    """Chart the training loss of each epoch."""
    lines = [
        go.Scatter(
            x=list(range(1, len(run.summary["loss"]) + 1)),
            y=run.summary["loss"],
            name=run.name,
            # A single epoch is a point, which no line would show.
            mode="lines+markers" if len(run.summary["loss"]) < 3 else "lines",
            line={"color": series_colour(index)},
        )
        for index, run in enumerate(runs)
    ]
    return Chart(
        "loss", "Loss", "Training loss of each epoch.", make_figure(lines, "epoch", "loss", showlegend=len(runs) > 1)
    )


def score_curves(runs: Sequence[RunData]) -> Chart | None:
    """Chart the validation scores of evaluated epochs; return None if there are none."""
    lines = []
    for index, run in enumerate(runs):
        # With `eval_every` above 1, most epochs have no score.
        scored = [line for line in run.epochs if line["val_score"] is not None]
        if scored:
            epochs = [line["epoch"] for line in scored]
            scores = [line["val_score"] for line in scored]
            lines.append(_score_line(run, index, epochs, scores))
    if not lines:
        return None
    metrics = sorted({str(run.summary.get("metric", "score")).replace("_", " ") for run in runs})
    text = "Score on the validation nodes after epochs that were evaluated."
    return Chart(
        "score", "Validation", text, make_figure(lines, "epoch", " or ".join(metrics), showlegend=len(runs) > 1)
    )


def metric_curves(runs: Sequence[RunData]) -> list[Chart]:
    """Chart every metric that is not monitored, on the validation nodes of evaluated epochs."""
    monitored = {run.summary.get("metric") for run in runs}
    # Runs of earlier versions have recorded none.
    known = dict.fromkeys(name for run in runs for line in run.epochs for name in line.get("scores", {}))
    charts = []
    for number, name in enumerate(each for each in known if monitored != {each}):
        lines = []
        for index, run in enumerate(runs):
            scored = [line for line in run.epochs if line.get("scores", {}).get(name) is not None]
            if scored:
                epochs, scores = [line["epoch"] for line in scored], [line["scores"][name] for line in scored]
                lines.append(_score_line(run, index, epochs, scores))
        if lines:
            label = name.replace("_", " ")
            figure = make_figure(lines, "epoch", label, showlegend=len(runs) > 1)
            text = f"{label} on the validation nodes after epochs that were evaluated."
            charts.append(Chart(f"metric-{number}", f"Validation: {label}", text, figure))
    return charts


def _score_line(run: RunData, index: int, epochs: Sequence[int], scores: Sequence[float]) -> Any:
    mode = "lines+markers" if len(epochs) < 30 else "lines"
    return go.Scatter(x=epochs, y=scores, name=run.name, mode=mode, line={"color": series_colour(index)})


def where_time_went(run: RunData, key: str) -> Chart | None:
    """Chart the seconds of each epoch by phase, on worker 0; return None without epochs."""
    phases = run.phase_seconds()
    if not phases:
        return None
    # Hundreds of bars would be thinner than a pixel and make the page large: each is a mean of some epochs.
    per_bar = -(-len(phases) // _MOST_BARS)
    groups = [phases[start : start + per_bar] for start in range(0, len(phases), per_bar)]
    first = run.epochs[0]["epoch"]
    epochs = [first + per_bar * number for number in range(len(groups))]
    # The longest phase lies at the bottom of each bar, where heights can be compared; the rest on top.
    names = sorted(
        {name for each in phases for name in each}, key=lambda name: (name == OTHER, -_sum_phase(phases, name))
    )
    bars = [
        go.Bar(
            x=epochs,
            y=[_sum_phase(group, name) / len(group) for group in groups],
            name=name,
            marker={"color": _phase_colour(name)},
        )
        for name in names
        if _sum_phase(phases, name) > 0
    ]
    each = "" if per_bar == 1 else f" Each bar is the mean of {per_bar} epochs."
    text = f"Seconds of an epoch by phase of worker 0, waiting included and evaluation excluded.{each}"
    return Chart(key, "Where time went", text, make_figure(bars, "epoch", "seconds", barmode="stack"))


def bytes_per_link(runs: Sequence[RunData]) -> Chart | None:
    """Chart the bytes that crossed each link, by kind; return None if nothing did."""
    kinds = sorted({kind for run in runs for by_kind in run.summary["ledger"].values() for kind in by_kind})
    links = [link for link in runs[0].summary["ledger"] if any(run.summary["ledger"].get(link) for run in runs)]
    if not links:
        return None
    several = len(runs) > 1
    # Two lists make an axis of two levels: links, grouped by run.
    labels = [[link.replace("_", " ") for run in runs for link in links], [run.name for run in runs for _ in links]]
    bars = [
        go.Bar(
            y=labels if several else labels[0],
            x=[run.summary["ledger"].get(link, {}).get(kind, 0) for run in runs for link in links],
            name=kind,
            orientation="h",
            marker={"color": series_colour(index)},
        )
        for index, kind in enumerate(kinds)
    ]
    made = make_figure(bars, "bytes", "", barmode="stack", height=120 + 46 * len(links) * len(runs))
    made.update_layout(hovermode="closest", xaxis={"tickformat": "~s", "ticksuffix": "B", "title": None})
    return Chart("bytes", "Bytes per link", "Bytes that crossed each link during the run, by kind.", made)


def memory_over_time(run: RunData, key: str) -> Chart | None:
    """Chart the memory in use of each worker's DEVICE tier and its limit; return None without records."""
    lines = [
        go.Scatter(
            x=[seconds for seconds, _ in worker["memory"]],
            y=[held / 2**20 for _, held in worker["memory"]],
            name=f"worker {number}",
            mode="lines",
            line={"color": series_colour(number)},
        )
        for number, worker in enumerate(run.workers)
    ]
    if not lines or run.limit_bytes is None:
        return None
    limit = run.limit_bytes / 2**20
    most = max(max(line.y) for line in lines)
    made = make_figure(lines, "seconds since the start", "MiB")
    text = f"Memory in use of each worker; its limit was {limit:,.0f} MiB."
    # A limit far above the curves would press them flat against the axis.
    if limit < 4 * most:
        made.add_hline(y=limit, line={"dash": "dash", "color": "#c9485b"})
    else:
        text += " That is far above the chart."
    return Chart(key, "Memory over time", text, made)


def load_per_worker(run: RunData, key: str) -> Chart | None:
    """Chart the seconds of all epochs by phase, for every worker; return None for a single one."""
    if len(run.workers) < 2:
        return None
    names = sorted({name for worker in run.workers for name in worker["phases"]} - {EVALUATE, SAVE})
    workers = [f"worker {number}" for number in range(len(run.workers))]
    bars = [
        go.Bar(
            y=workers,
            x=[worker["phases"].get(name, 0.0) for worker in run.workers],
            name=name,
            orientation="h",
            marker={"color": _phase_colour(name)},
        )
        for name in names
    ]
    edges = [worker["counters"].get("edges_aggregated", 0) for worker in run.workers]
    mean = sum(edges) / len(edges)
    most = f" The worker with the most edges has {max(edges) / mean:.2f} times the mean." if mean else ""
    made = make_figure(bars, "seconds", "", barmode="stack", height=150 + 34 * len(workers))
    made.update_layout(hovermode="closest", yaxis={"autorange": "reversed"})
    return Chart(key, "Load per worker", f"Seconds of the whole run by phase, for each worker.{most}", made)


def _sum_phase(phases: Sequence[dict[str, float]], name: str) -> float:
    return sum(each.get(name, 0.0) for each in phases)


def _phase_colour(phase: str) -> str:
    # Not `hash`, which differs between processes: a phase keeps its colour from page to page.
    return _OF_PHASE.get(phase) or series_colour(sum(map(ord, phase)))
