"""Hot nodes that the CPU computes, on the command line: what is recorded, when a run is exact, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.app.conftest import Command

import outgrow as og
from outgrow.strategies.orchestrate.strategy import Orchestrate

SHORT = ("--hidden", 16, "--model", "sage", "--batch-size", 8, "--fanout", "4,3", "--epochs", 2)
ORCHESTRATE = (*SHORT, "--strategy", "orchestrate", "--set", "hot_ratio=0.4")


def test_a_run_says_what_it_was(outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *ORCHESTRATE, "--set", "super_batch=2", "--out", "run", "--json")
    assert result.code == 0, result.err
    summary = result.summary
    assert (summary["strategy"], summary["exact"]) == ("orchestrate", False)
    options = Orchestrate(hot_ratio=0.4, super_batch=2).options()
    assert summary["strategy_options"] == options
    assert json.loads(Path("run/config.json").read_text())["strategy"] == {"name": "orchestrate", "options": options}
    counters = summary["counters"]
    assert counters["staleness_max"] == 3
    assert min(counters["hot_rows_computed"], counters["cache_hits"], counters["cache_misses"]) > 0
    assert {"activations", "features"} <= summary["ledger"]["host_to_device"].keys()
    assert [each["hot_nodes"] > 0 for each in summary["found"]["hot_nodes"]] == [True, True]


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("workers", [1, 2])
def test_two_runs_are_the_same(outgrow: Command, npz: Path, workers: int) -> None:
    args = ("train", npz, *ORCHESTRATE, "--workers", workers, "--json")
    first, second = (outgrow(*args, "--out", name).summary for name in ("first", "second"))
    assert first["loss"] == second["loss"]
    assert first["test_accuracy"] == second["test_accuracy"]
    assert first["counters"]["staleness_max"] == second["counters"]["staleness_max"] == 1


def test_when_a_run_is_exact(outgrow: Command, npz: Path) -> None:
    """Then it trains as `sampled` does."""
    exact, losses = [], []
    for fanout, *options in (
        ("4,3", "hot_ratio=0"),
        ("4,-1", "reuse=aggregate", "hot_ratio=0.5"),
        ("4,3", "reuse=aggregate", "hot_ratio=0.5"),
    ):
        given = [word for option in options for word in ("--set", option)]
        model = ("--fanout", fanout, "--set", "input_dropout=0")
        for strategy in (("sampled",), ("orchestrate", *given)):
            out = f"run-{len(losses)}"
            result = outgrow("train", npz, *SHORT, *model, "--strategy", *strategy, "--out", out, "--json")
            assert result.code == 0, result.err
            exact.append(result.summary["exact"])
            losses.append(result.summary["loss"])
    assert exact == [True, True, True, True, True, False]
    assert losses[0] == losses[1]
    assert losses[2] == pytest.approx(losses[3], rel=1e-5)
    assert losses[4] != pytest.approx(losses[5], rel=1e-5)


def test_it_goes_on_under_another_strategy(npz: Path, tmp_path: Path) -> None:
    graph, runs = og.load(npz), list[og.Run]()
    model = og.nn.SAGE(graph.num_features, 16, graph.num_classes)
    for strategy, epochs in ((Orchestrate(hot_ratio=0.4), 2), ("sampled", 4), (og.Orchestrate(super_batch=2), 6)):
        options: dict[str, Any] = {"batch_size": 8, "fanout": (4, 3), "epochs": epochs, "resume": bool(runs)}
        runs.append(og.train(graph, model, strategy=strategy, out=tmp_path / "run", progress=False, **options))
    assert [run.summary["strategy"] for run in runs] == ["orchestrate", "sampled", "orchestrate"]
    assert [len(run.loss) for run in runs] == [2, 4, 6]
    assert runs[2].loss[:4] == runs[1].loss
    assert runs[1].loss[:2] == runs[0].loss


def test_the_help_names_its_options(outgrow: Command) -> None:
    said = outgrow("train", "--help").out
    assert "orchestrate" in said
    assert [name for name in Orchestrate().options() if name not in said] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--set", "hot_ratio=1.5"), "hot_ratio"),
        (("--set", "hot_ratio=many"), "hot_ratio"),
        (("--set", "super_batch=0"), "super_batch"),
        (("--set", "reuse=aggregates"), "aggregate"),
        (("--set", "superbatch=4"), "super_batch"),
        (("--set", "reuse=aggregate", "--model", "gat"), "choose reuse=embedding"),
        (("--set", "reuse=aggregate", "--set", "input_dropout=0.5"), "choose reuse=embedding"),
        (("--layers", 1, "--fanout", "4"), "add a layer"),
        (("--memory", "10MiB"), "orchestrate needs more memory than its limit"),
        (("--fanout", "4"), "2 hops, one for each layer"),
    ],
)
def test_mistakes(options: tuple[object, ...], said: str, outgrow: Command, npz: Path) -> None:
    result = outgrow("train", npz, *ORCHESTRATE, *options, "--out", "run")
    assert result.code == 2
    assert said in result.err
    assert result.err.count("needed:") == result.err.count("repair:") == 1
    assert "Traceback" not in result.err
    assert not Path("run").exists()
