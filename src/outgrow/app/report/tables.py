"""Tables of the page: runs side by side, and predictions next to measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from outgrow.app.console import format_bytes, format_memory, format_percent, format_seconds
from outgrow.app.report.data import RunData
from outgrow.app.report.prediction import MetricComparison, RunPrediction, relative_error
from outgrow.app.report.strategy_charts import strategy_facts
from outgrow.app.runs.provenance import shorten_commit


class _SummaryRow(NamedTuple):
    """Row of the table of runs: its label, its path in the summary, and its format."""

    label: str
    path: tuple[str, ...]
    format_value: Callable[[Any], str]


def _format_named(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value is not None)


_ROWS = (
    _SummaryRow("graph", ("graph",), str),
    _SummaryRow("data", ("data",), lambda parts: " ".join(f"{name} {value[:8]}" for name, value in parts.items())),
    _SummaryRow("ids of nodes", ("ids",), str),
    _SummaryRow("model", ("model",), str),
    _SummaryRow("strategy", ("strategy",), str),
    _SummaryRow("workers", ("workers",), str),
    _SummaryRow("device", ("device",), str),
    _SummaryRow("seed", ("seed",), str),
    _SummaryRow("parameters", ("parameters",), lambda count: f"{count:,}"),
    _SummaryRow("test score", ("test_accuracy",), lambda score: "none" if score is None else f"{score:.4f}"),
    _SummaryRow("validation score", ("val_accuracy",), lambda score: "none" if score is None else f"{score:.4f}"),
    _SummaryRow("best epoch", ("best_epoch",), str),
    _SummaryRow("epochs", ("epochs",), str),
    _SummaryRow("ended by", ("stopped",), str),
    _SummaryRow("compiling kernels", ("compile_seconds",), format_seconds),
    _SummaryRow("peak memory of a worker", ("peak_bytes", "device"), format_memory),
    _SummaryRow("gradient equal to the reference", ("exact",), lambda exact: "yes" if exact else "no"),
    _SummaryRow("options", ("train",), _format_named),
    _SummaryRow("versions", ("versions",), _format_named),
    _SummaryRow("commit of outgrow", ("commit", "outgrow"), shorten_commit),
    _SummaryRow("commit of the directory", ("commit", "directory"), shorten_commit),
    _SummaryRow("date", ("date",), str),
    _SummaryRow("host", ("host",), lambda h: f"{h['name']}, {h['cores']} cores, {format_memory(h['memory'])}"),
)


def render_runs_table(runs: Sequence[RunData]) -> str:
    """Return a table with a column for each run; cells carry the raw values of ``summary.json`` as data."""
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    body = "".join(
        _render_row(row, runs) for row in _ROWS if any(_lookup_path(run.summary, row.path) is not None for run in runs)
    )
    seconds = "".join(
        _render_cell(number, "epoch_seconds", run.epoch_seconds, format_seconds(run.epoch_seconds))
        for number, run in enumerate(runs)
    )
    body += "".join(_render_scores(runs))
    body += f'<tr><th scope="row">median seconds of an epoch</th>{seconds}</tr>'
    for link in runs[0].summary["ledger"]:
        counts = [run.link_bytes.get(link, 0) for run in runs]
        # Most runs use two or three links; rows of zeros would hide these.
        if any(counts):
            cells = "".join(
                _render_cell(number, f"ledger.{link}", each, format_bytes(each)) for number, each in enumerate(counts)
            )
            body += f'<tr><th scope="row">{escape(link.replace("_", " "))}</th>{cells}</tr>'
    facts = [strategy_facts(run) for run in runs]
    # Runs of different strategies have different facts: a dict unites them in order of appearance.
    for name in dict.fromkeys(name for each in facts for name in each):
        cells = "".join(f"<td>{escape(each.get(name, ''))}</td>" for each in facts)
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    return f'<table class="runs"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'


def _render_row(row: _SummaryRow, runs: Sequence[RunData]) -> str:
    cells = ""
    for number, run in enumerate(runs):
        value = _lookup_path(run.summary, row.path)
        # A score of None says that nothing was evaluated; any other None, that an older run lacks the key.
        missing = value is None and row.path[0] not in ("test_accuracy", "val_accuracy")
        cells += _render_cell(number, ".".join(row.path), value, "" if missing else row.format_value(value))
    return f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>'


def _render_scores(runs: Sequence[RunData]) -> Iterator[str]:
    """Yield a row for each metric and split, if a run has more than one metric."""
    # Runs of earlier versions have recorded none.
    scores = [run.summary.get("scores", {}) for run in runs]
    for split, title in (("test", "test"), ("val", "validation")):
        names = dict.fromkeys(name for each in scores for name in each.get(split, {}))
        for name in names if len(names) > 1 else ():
            values = [each.get(split, {}).get(name) for each in scores]
            cells = "".join(
                _render_cell(number, f"scores.{split}.{name}", value, "none" if value is None else f"{value:.4f}")
                for number, value in enumerate(values)
            )
            yield f'<tr><th scope="row">{escape(title)} {escape(name.replace("_", " "))}</th>{cells}</tr>'


def render_link_table(run: RunData) -> str:
    """Return a table of the metrics of test links, by end and by relation; nothing for a run without."""
    test = run.summary.get("links", {}).get("test")
    if not test or not test["links"]:
        return ""
    names = [name for name in test if name not in ("links", "by_end", "by_relation")]
    rows = [("all", test), *test["by_end"].items(), *test.get("by_relation", {}).items()]
    head = "".join(f'<th scope="col">{escape(name.replace("_", " "))}</th>' for name in ("links", *names))
    body = "".join(
        f'<tr><th scope="row">{escape(label)}</th><td>{part.get("links", "")}</td>'
        + "".join(f"<td>{'' if part[name] is None else f'{part[name]:.4f}'}</td>" for name in names)
        + "</tr>"
        for label, part in rows
    )
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>"


def _render_cell(number: int, key: str, value: object, text: str) -> str:
    return f'<td data-run="{number}" data-key="{escape(key)}" data-value="{escape(str(value))}">{escape(text)}</td>'


def _lookup_path(summary: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def render_prediction_table(prediction: RunPrediction) -> str:
    """Return a table of predictions next to measurements."""
    if not prediction.comparisons:
        return f"<p>{escape(prediction.notes)}</p>"
    rows = "".join(_render_comparison(line) for line in prediction.comparisons)
    head = "".join(f'<th scope="col">{title}</th>' for title in ("predicted", "measured", "off by"))
    note = f"<p>Estimated for {escape(prediction.notes)}.</p>"
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _render_comparison(comparison: MetricComparison) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in _format_comparison(comparison))
    return f'<tr><th scope="row">{escape(comparison.label)}</th>{cells}</tr>'


def _format_comparison(comparison: MetricComparison) -> Iterator[str]:
    formats = {"s": format_seconds, "": lambda count: f"{count:,.0f}"}
    # Memory in binary units, as in limits such as "2GiB"; traffic in decimal ones, as in link rates.
    format_value = format_memory if "memory" in comparison.label else formats.get(comparison.unit, format_bytes)
    yield format_value(comparison.predicted)
    yield format_value(comparison.measured)
    off = relative_error(comparison)
    yield "" if off is None else f"{'+' if off > 0 else ''}{format_percent(off)}"
