"""Tables of the page: runs side by side, and predictions beside measurements."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from outgrow.app.console import of_bytes, of_memory, of_seconds, of_share
from outgrow.app.report.data import RunRecord
from outgrow.app.report.prediction import Comparison, Prediction, error_of
from outgrow.app.report.strategy_charts import facts_of_strategy


class _Row(NamedTuple):
    """A line of the table of runs: what it is called, where it is in the summary, and how it is spelled."""

    label: str
    path: tuple[str, ...]
    spelled: Callable[[Any], str]


_ROWS = (
    _Row("graph", ("graph",), str),
    _Row("strategy", ("strategy",), str),
    _Row("workers", ("workers",), str),
    _Row("device", ("device",), str),
    _Row("seed", ("seed",), str),
    _Row("parameters", ("parameters",), lambda count: f"{count:,}"),
    _Row("test score", ("test_accuracy",), lambda score: "none" if score is None else f"{score:.4f}"),
    _Row("validation score", ("val_accuracy",), lambda score: "none" if score is None else f"{score:.4f}"),
    _Row("best epoch", ("best_epoch",), str),
    _Row("epochs", ("epochs",), str),
    _Row("ended by", ("stopped",), str),
    _Row("peak memory of a worker", ("peak_bytes", "device"), of_memory),
    _Row("gradient equal to the reference", ("exact",), lambda exact: "yes" if exact else "no"),
)


def table_of_runs(runs: Sequence[RunRecord]) -> str:
    """A column for each run; cells carry the value that ``summary.json`` has."""
    head = "".join(f'<th scope="col">{escape(run.name)}</th>' for run in runs)
    body = "".join(_line(row, runs) for row in _ROWS if any(_at(run.summary, row.path) is not None for run in runs))
    seconds = "".join(
        _cell(number, "epoch_seconds", run.seconds, of_seconds(run.seconds)) for number, run in enumerate(runs)
    )
    body += f'<tr><th scope="row">median seconds of an epoch</th>{seconds}</tr>'
    for link in runs[0].summary["ledger"]:
        counts = [run.link_bytes.get(link, 0) for run in runs]
        if any(counts):
            cells = "".join(_cell(number, f"ledger.{link}", each, of_bytes(each)) for number, each in enumerate(counts))
            body += f'<tr><th scope="row">{escape(link.replace("_", " "))}</th>{cells}</tr>'
    facts = [facts_of_strategy(run) for run in runs]
    for name in dict.fromkeys(name for each in facts for name in each):
        cells = "".join(f"<td>{escape(each.get(name, ''))}</td>" for each in facts)
        body += f'<tr><th scope="row">{escape(name)}</th>{cells}</tr>'
    return f'<table class="runs"><thead><tr><td></td>{head}</tr></thead><tbody>{body}</tbody></table>'


def _line(row: _Row, runs: Sequence[RunRecord]) -> str:
    cells = ""
    for number, run in enumerate(runs):
        value = _at(run.summary, row.path)
        missing = value is None and row.path[0] not in ("test_accuracy", "val_accuracy")
        cells += _cell(number, ".".join(row.path), value, "" if missing else row.spelled(value))
    return f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>'


def _cell(number: int, key: str, value: object, text: str) -> str:
    return f'<td data-run="{number}" data-key="{escape(key)}" data-value="{escape(str(value))}">{escape(text)}</td>'


def _at(summary: Mapping[str, Any], path: Sequence[str]) -> Any:
    value: Any = summary
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return value


def table_of_prediction(found: Prediction) -> str:
    """What was expected beside what was measured."""
    if not found.lines:
        return f"<p>{escape(found.said)}</p>"
    rows = "".join(_compared(line) for line in found.lines)
    head = "".join(f'<th scope="col">{title}</th>' for title in ("predicted", "measured", "off by"))
    note = f"<p>Estimated for {escape(found.said)}.</p>"
    return f"<table><thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table>{note}"


def _compared(line: Comparison) -> str:
    cells = "".join(f"<td>{escape(text)}</td>" for text in _spelled(line))
    return f'<tr><th scope="row">{escape(line.what)}</th>{cells}</tr>'


def _spelled(line: Comparison) -> Iterator[str]:
    words = {"s": of_seconds, "": lambda count: f"{count:,.0f}"}
    spell = of_memory if "memory" in line.what else words.get(line.unit, of_bytes)
    yield spell(line.predicted)
    yield spell(line.measured)
    off = error_of(line)
    yield "" if off is None else f"{'+' if off > 0 else ''}{of_share(off)}"
