"""What the page is made of."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from outgrow.app.console import format_bytes, format_memory, format_percent, format_seconds
from outgrow.app.report.charts import bytes_per_link, memory_over_time, where_time_went
from outgrow.app.report.data import OTHER, RunData, distinct_names, read_run
from outgrow.app.report.prediction import MetricComparison, RunPrediction, relative_error
from outgrow.app.report.strategy_charts import strategy_charts, strategy_facts
from outgrow.app.report.tables import render_prediction_table, render_runs_table
from outgrow.core.errors import InputError

SUMMARY: dict[str, Any] = {
    "strategy": "full",
    "strategy_options": {},
    "workers": 2,
    "loss": [2.0, 1.0],
    "epochs": 2,
    "epoch_seconds": [3.0, 1.0],
    "test_accuracy": 0.5,
    "val_accuracy": None,
    "peak_bytes": {"device": 1 << 30, "host": 0},
    "ledger": {"peer": {"activations": 1500, "ids": 500}, "network": {}},
    "counters": {},
}
WORKER: dict[str, Any] = {
    "host": "a",
    "phases": {"forward": 2.0},
    "counters": {"edges_aggregated": 10},
    "limit_bytes": 1 << 31,
    "memory": [[0.0, 1 << 20], [1.0, 1 << 30]],
}


def record(name: str = "run", epochs: list[dict[str, Any]] | None = None, **changed: Any) -> RunData:
    return RunData(
        path=Path(name),
        name=name,
        config={},
        summary={**SUMMARY, **changed},
        epochs=epochs or [],
        workers=[WORKER, WORKER],
    )


def test_what_no_phase_covers_is_the_rest() -> None:
    lines = [{"epoch": 1, "seconds": 3.0, "phases": {"forward": 2.0}}, {"epoch": 2, "seconds": 1.0}]
    assert record(epochs=lines).phase_seconds() == [{"forward": 2.0, OTHER: 1.0}, {OTHER: 1.0}]


def test_bars_add_up_to_seconds() -> None:
    lines = [
        {"epoch": n + 1, "seconds": 0.5 + n, "phases": {"forward": 0.25, "wait for rows": 0.1}} for n in range(150)
    ]
    chart = where_time_went(record(epochs=lines), "time")
    assert chart is not None
    bars = [sum(each) for each in zip(*(trace.y for trace in chart.figure.data), strict=True)]
    assert len(bars) == 50
    assert 3 * sum(bars) == pytest.approx(sum(line["seconds"] for line in lines))
    assert chart.figure.data[-1].name == OTHER
    assert "mean of 3 epochs" in chart.text


def test_links_that_nothing_crossed_are_left_out() -> None:
    chart = bytes_per_link([record()])
    assert chart is not None
    assert {tuple(trace.y) for trace in chart.figure.data} == {("peer",)}
    assert sum(trace.x[0] for trace in chart.figure.data) == 2000
    assert bytes_per_link([record(ledger={"peer": {}})]) is None


def test_memory_and_its_limit() -> None:
    chart = memory_over_time(record(), "memory")
    assert chart is not None
    assert [max(line.y) for line in chart.figure.data] == [1024, 1024]
    assert "2,048 MiB" in chart.text


def test_a_cell_has_the_value_of_the_summary() -> None:
    table = render_runs_table([record("a"), record("b", test_accuracy=0.25)])
    assert 'data-run="0" data-key="test_accuracy" data-value="0.5">0.5000<' in table
    assert 'data-run="1" data-key="test_accuracy" data-value="0.25">0.2500<' in table
    assert 'data-key="ledger.peer" data-value="2000">2 kB<' in table
    assert 'data-key="epoch_seconds" data-value="1.0">1.00 s<' in table
    assert "ledger.network" not in table


def test_names_are_text() -> None:
    assert "<script>" not in render_runs_table([record("<script>alert(1)</script>")])


def test_reuse_per_wave() -> None:
    found = {
        "wave_rows": [10, 8],
        "wave_rows_arriving": [10, 2],
        "chunks": 2,
        "rows_chosen": {"vanilla": 18, "reused": 6},
    }
    run = record(strategy="offload", found=found)
    [chart] = strategy_charts(run, "strategy")
    read, kept = chart.figure.data
    assert [*read.y] == [10, 2]
    assert [*kept.y] == [0, 6]
    assert "33.3 %" in chart.text
    assert strategy_facts(run)["rows of all waves that are read"] == "6"


@pytest.mark.parametrize(
    ("strategy", "counters", "said"),
    [
        ("split", {"local_edges": 30, "sampled_edges": 40}, "75.0 %"),
        ("migrate", {"rows_loaded": 50, "remote_rows": 5}, "10.0 %"),
        ("orchestrate", {"staleness_max": 3}, "3 updates, of at most 7"),
    ],
)
def test_what_only_one_strategy_has(strategy: str, counters: dict[str, int], said: str) -> None:
    run = record(strategy=strategy, counters=counters, strategy_options={"super_batch": 4})
    assert said in strategy_facts(run).values()


def test_a_sampler_is_named_unless_it_is_the_default() -> None:
    for train, said in (({}, None), ({"sampler": "neighbor"}, None), ({"sampler": "labor"}, "labor")):
        run = replace(record(strategy="sampled", counters={}), config={"train": train})
        assert strategy_facts(run).get("sampler") == said


def test_predictions() -> None:
    line = MetricComparison("an epoch", "s", 1.5, 1.0)
    assert relative_error(line) == 0.5
    assert relative_error(line._replace(measured=0.0)) is None
    table = render_prediction_table(RunPrediction((line,), "this machine"))
    assert "<td>1.50 s</td><td>1.00 s</td><td>+50.0 %</td>" in table
    assert render_prediction_table(RunPrediction((), "no prediction: <why>")) == "<p>no prediction: &lt;why&gt;</p>"


def test_names_tell_runs_apart(tmp_path: Path) -> None:
    assert distinct_names([tmp_path / "a" / "run", tmp_path / "b" / "run"]) == ["a/run", "b/run"]
    assert distinct_names([tmp_path / "first", tmp_path / "second"]) == ["first", "second"]


def test_a_run_that_has_not_ended(tmp_path: Path) -> None:
    config = {"graph": "cora", "model": None, "train": {}, "strategy": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(InputError, match="has not ended") as error:
        read_run(tmp_path)
    assert "1 recorded epochs" in error.value.got


def test_a_summary_of_something_else(tmp_path: Path) -> None:
    config = {"graph": "cora", "model": None, "train": {}, "strategy": {}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "summary.json").write_text('{"loss": []}')
    with pytest.raises(InputError, match="cannot show"):
        read_run(tmp_path)


def test_numbers_in_words() -> None:
    assert [format_bytes(count) for count in (0, 999, 1_234_567, 2e12)] == ["0 B", "999 B", "1.23 MB", "2 TB"]
    assert [format_memory(count) for count in (5 << 20, 3 << 30)] == ["5 MiB", "3.00 GiB"]
    assert [format_seconds(each) for each in (120, 2, 0.0123, 1e-5)] == ["2.0 min", "2.00 s", "12.3 ms", "10 µs"]
    assert format_percent(None) == "none"
