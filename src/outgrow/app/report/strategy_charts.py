"""Charts and facts that are specific to one strategy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import plotly.graph_objects as go

from outgrow.app.console import format_percent
from outgrow.app.report.charts import Chart, make_figure, series_colour
from outgrow.app.report.data import RunData
from outgrow.graph.sampling.edge_sampler import NEIGHBOR


def strategy_charts(run: RunData, key: str) -> list[Chart]:
    """Return the charts of the run's strategy, if it has any."""
    make_chart = {"offload": _reuse_chart, "migrate": _time_steps_chart, "orchestrate": _hot_nodes_chart}.get(
        run.strategy
    )
    found: Mapping[str, Any] = run.summary.get("found", {})
    made = None if make_chart is None else make_chart(found, key)
    return [] if made is None else [made]


def strategy_facts(run: RunData) -> dict[str, str]:
    """Return facts on the run's strategy, as text by name."""
    counters = run.summary["counters"]
    # Runs of earlier versions have recorded no such facts.
    found = run.summary.get("found", {})
    facts = {}
    # Absent in runs of earlier versions, which drew as the default does.
    sampler = run.config.get("train", {}).get("sampler", NEIGHBOR)
    if sampler != NEIGHBOR:
        facts["sampler"] = sampler
    temporal = run.config.get("train", {}).get("temporal_strategy")
    if temporal is not None:
        facts["edges before the time of the seed"] = str(temporal)
    if run.strategy == "offload" and "chunks" in found:
        facts["chunks of a worker"] = f"{found['chunks']:,}" if found["chunks"] else "none: all at once fits"
        if "rows_chosen" in found:
            facts["rows of all waves, without reuse"] = f"{found['rows_chosen']['vanilla']:,}"
            facts["rows of all waves that are read"] = f"{found['rows_chosen']['reused']:,}"
    if run.strategy == "split" and "local_edges" in counters:
        edges = counters.get("sampled_edges") or counters["edges_aggregated"]
        facts["local edges"] = format_percent(counters["local_edges"] / max(1, edges))
        facts["rows of other workers"] = f"{counters.get('remote_rows', 0):,}"
    if run.strategy in ("migrate", "sampled"):
        rows = max(1, counters.get("rows_loaded", 0))
        others = counters.get("local_peer_rows", 0) + counters.get("remote_rows", 0)
        facts["rows loaded that another worker had"] = format_percent(others / rows)
        if "cache_hits" in counters:
            lookups = max(1, counters["cache_hits"] + counters.get("cache_misses", 0))
            facts["of these found in a cache"] = format_percent(counters["cache_hits"] / lookups)
    if found.get("time_step_decisions"):
        last = found["time_step_decisions"][-1]
        facts["time steps that merging has chosen"] = f"{last['time_steps'] - last['merges']}"
    if run.strategy == "orchestrate":
        # Rows computed at the start of one super-batch serve until the last update of the next.
        bound = 2 * run.summary["strategy_options"]["super_batch"] - 1
        facts["largest staleness"] = f"{counters.get('staleness_max', 0)} updates, of at most {bound}"
        facts["hot rows computed by CPUs"] = f"{counters.get('hot_rows_computed', 0):,}"
    return facts


def _reuse_chart(found: Mapping[str, Any], key: str) -> Chart | None:
    rows = found.get("wave_rows")
    arriving = found.get("wave_rows_arriving")
    if not rows or not arriving:
        return None
    waves = list(range(1, len(rows) + 1))
    kept = [all_ - new for all_, new in zip(rows, arriving, strict=True)]
    bars = [
        go.Bar(x=waves, y=arriving, name="read", marker={"color": series_colour(1)}),
        go.Bar(x=waves, y=kept, name="there from the wave before", marker={"color": series_colour(0)}),
    ]
    share = format_percent(sum(kept) / max(1, sum(rows)))
    text = f"Source rows of each wave of worker 0: {share} of them stay from the wave before."
    return Chart(key, "Reuse per wave", text, make_figure(bars, "wave", "rows", barmode="stack"))


def _time_steps_chart(found: Mapping[str, Any], key: str) -> Chart | None:
    log = found.get("time_steps")
    if not log:
        return None
    epochs = list(range(1, len(log) + 1))
    steps = go.Bar(
        x=epochs, y=[steps for steps, _ in log], name="time steps of a batch", marker={"color": series_colour(0)}
    )
    seconds = go.Scatter(
        x=epochs, y=[took for _, took in log], name="seconds of an epoch", yaxis="y2", line={"color": series_colour(1)}
    )
    made = make_figure([steps, seconds], "epoch, until the number was settled", "time steps")
    second = {
        "title": {"text": "seconds"},
        "overlaying": "y",
        "side": "right",
        "rangemode": "tozero",
        "showgrid": False,
    }
    # Room for the second axis, which the default margin would cut off.
    made.update_layout(yaxis2=second, margin={"r": 60})
    text = "Time steps of a batch while fewer were tried, and seconds of an epoch."
    return Chart(key, "Time steps", text, made)


def _hot_nodes_chart(found: Mapping[str, Any], key: str) -> Chart | None:
    log = found.get("hot_nodes")
    if not log:
        return None
    # Runs of earlier versions have recorded whole epochs only, without their numbers.
    epochs = [each.get("epoch", number) for number, each in enumerate(log, 1)]
    bars = [
        go.Bar(
            x=epochs, y=[each["waited"] for each in log], name="waited for the CPU", marker={"color": series_colour(1)}
        ),
        go.Bar(
            x=epochs,
            y=[each["seconds"] - each["waited"] for each in log],
            name="computed and all else",
            marker={"color": series_colour(0)},
        ),
    ]
    text = f"How long the device of worker 0 waited for its CPU; {log[-1]['hot_nodes']:,} nodes were hot in the end."
    return Chart(key, "Waiting for the CPU", text, make_figure(bars, "epoch", "seconds", barmode="stack"))
