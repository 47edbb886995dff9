"""``--metric`` and ``monitor`` from end to end: files, report, resume, workers, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics
from tests.app.conftest import Command, planted

import outgrow as og
from metric_objects import Bootstrapped, MeanOfMeans, WithoutDirection
from outgrow.app.metric_checks import estimate_metric_bytes, require_recorded_metrics
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.graph import Graph
from outgrow.training import metric_fit

SMALL = ("--model", "gcn", "--hidden", 8, "--epochs", 6)
NAMES = ("accuracy", "auroc", "f1-macro")


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


def epochs_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def graph_of(classes: int = 4, **changed: np.ndarray) -> Graph:
    arrays = {**planted(classes=classes), **changed}
    split = {part: arrays[f"{part}_idx"] for part in ("train", "val", "test")}
    return og.from_arrays(arrays["edge_index"], features=arrays["features"], labels=arrays["label"], split=split)


def train(graph: Graph, **options: Any) -> og.Run:
    torch.manual_seed(0)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    return og.train(graph, model, **{"epochs": 4, "progress": False, **options})


def test_the_command_writes_and_shows_metrics(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    made = outgrow("train", npz, *SMALL, "--metric", "auroc,f1-macro", "--set", "monitor=auroc", "--out", "run")
    assert made.code == 0, made.err
    assert "val auroc 0." in made.err
    assert "test auroc 0." in made.err
    assert "f1-macro 0." in made.err
    summary, epochs = summary_of(tmp_path / "run"), epochs_of(tmp_path / "run")
    assert (summary["metric"], summary["metric_mode"]) == ("auroc", "max")
    for split in ("val", "test"):
        scores = summary["scores"][split]
        assert tuple(scores) == NAMES
        assert summary[f"{split}_score"] == scores["auroc"]
        assert summary[f"{split}_accuracy"] == scores["accuracy"]
    assert [line["val_score"] for line in epochs] == [line["scores"]["auroc"] for line in epochs]
    best = max(epochs, key=lambda line: line["val_score"])
    assert summary["best_epoch"] == best["epoch"]
    assert summary["scores"]["val"] == pytest.approx(best["scores"], abs=1e-6)
    assert summary["train"]["metrics"] == ["auroc", "f1-macro"]
    made = outgrow("report", "run", "--out", "page.html")
    assert made.code == 0, made.err
    page = (tmp_path / "page.html").read_text()
    assert "Validation: f1-macro" in page
    assert 'data-key="scores.test.auroc"' in page


def test_runs_without_metrics_are_as_before(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    assert outgrow("train", npz, *SMALL, "--out", "plain").code == 0
    assert outgrow("train", npz, *SMALL, "--metric", "auroc", "--out", "more").code == 0
    plain, more = summary_of(tmp_path / "plain"), summary_of(tmp_path / "more")
    for key in ("loss", "best_epoch", "val_accuracy", "test_accuracy", "metric", "val_score"):
        assert plain[key] == more[key]
    assert plain["val_score"] == plain["val_accuracy"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--metric", "aurok"), "did you mean auroc"),
        (("--metric", "mae"), "for numbers"),
        (("--set", "monitor=auroc"), "--metric auroc"),
        (("--set", "monitor=auric"), "unknown metric to monitor"),
        (("--metric", "auroc", "--set", "monitor=auroc", "--set", "val=none"), "nothing to monitor"),
        (("--set", "monitor_mode=up"), "unknown monitor_mode"),
        (("--task", "links", "--metric", "auroc"), "links are ranked"),
        (("--task", "links", "--set", "monitor=loss"), "hits@10"),
        (("--task", "links", "--set", "monitor=hits@3", "--set", "val_links=0"), "no validation links"),
    ],
)
def test_mistakes(outgrow: Command, npz: Path, tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    made = outgrow("train", npz, *SMALL, *given, "--out", "run")
    assert made.code == 2
    assert says in made.err
    assert "Traceback" not in made.err
    assert not (tmp_path / "run").exists()


def test_links_are_monitored_by_another_ranking_metric(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    given = ("--task", "links", "--hidden", 8, "--epochs", 3, "--set", "eval_every=1", "--set", "monitor=hits@3")
    assert outgrow("train", npz, *given, "--out", "run").code == 0
    summary = summary_of(tmp_path / "run")
    assert summary["val_score"] == summary["scores"]["val"]["hits@3"]
    assert summary["val_accuracy"] == summary["scores"]["val"]["mrr"]


def test_a_resumed_run_keeps_its_monitor_or_forgets_scores(outgrow: Command, npz: Path, tmp_path: Path) -> None:
    given = ("--metric", "auroc,log-loss", "--set", "monitor=log-loss")
    assert outgrow("train", npz, *SMALL, *given, "--out", "whole").code == 0
    assert outgrow("train", npz, *SMALL[:-1], 3, *given, "--out", "run").code == 0
    made = outgrow("train", "--resume", "--out", "run", "--epochs", 6)
    assert made.code == 0, made.err
    assert "forgotten" not in made.err
    whole, resumed = summary_of(tmp_path / "whole"), summary_of(tmp_path / "run")
    assert (resumed["metric"], resumed["metric_mode"]) == ("log-loss", "min")
    for key in ("loss", "best_epoch", "scores"):
        assert resumed[key] == whole[key]
    made = outgrow("train", "--resume", "--out", "run", "--epochs", 7, "--set", "monitor=auroc")
    assert made.code == 0, made.err
    assert "auroc is monitored now" in made.err
    assert summary_of(tmp_path / "run")["best_epoch"] == 7


def test_lower_is_better_for_best_epoch_and_patience() -> None:
    """A learning rate that is too high: the loss rises soon, and patience ends the run."""
    run = train(graph_of(), epochs=60, lr=0.3, monitor="loss", patience=3)
    assert run.summary["stopped"] == "patience"
    assert run.summary["epochs"] == run.summary["best_epoch"] + 3
    assert run.val_score == run.scores["val"]["loss"] > 0


def test_the_opposite_direction_chooses_the_worst() -> None:
    best, worst = (train(graph_of(), epochs=8, monitor_mode=mode) for mode in ("max", "min"))
    assert best.val_score > worst.val_score


def test_objects_reach_worker_processes() -> None:
    graph = graph_of()
    given = {
        "f1": torchmetrics.F1Score(task="multiclass", num_classes=4, average="macro"),
        "mean": MeanOfMeans(),
    }
    one, two = (train(graph, metrics=given, monitor="f1", workers=workers) for workers in (1, 2))
    named = train(graph, metrics=["f1-macro"])
    assert one.scores["test"]["f1"] == named.scores["test"]["f1-macro"]
    for split in ("val", "test"):
        assert two.scores[split] == pytest.approx(one.scores[split], abs=1e-5)
    assert one.summary["train"]["metrics"] == ("f1", "mean")
    assert not given["f1"].update_called


def test_a_record_has_the_names_of_objects_alone(tmp_path: Path) -> None:
    train(graph_of(), metrics={"f1": MeanOfMeans()}, out=tmp_path / "run")
    record = json.loads((tmp_path / "run" / "config.json").read_text())
    assert (record["train"]["metrics"], record["metric_objects"]) == (["f1"], ["f1"])
    with pytest.raises(InputError, match="given as objects"):
        require_recorded_metrics(record, {}, tmp_path)
    require_recorded_metrics(record, {"metrics": "f1-macro"}, tmp_path)
    require_recorded_metrics({}, {}, tmp_path)


def test_two_classes() -> None:
    graph = graph_of(2)
    run = train(graph, metrics={"own": torchmetrics.AUROC(task="binary"), "kappa": torchmetrics.CohenKappa("binary")})
    named = train(graph, metrics="auroc,f1,kappa")
    assert run.scores["val"]["own"] == named.scores["val"]["auroc"]
    assert run.scores["val"]["kappa"] == named.scores["val"]["kappa"]


def test_several_labels() -> None:
    labels = (np.arange(240)[:, None] % np.array([2, 3, 5]) == 0).astype(np.uint8)
    run = train(graph_of(label=labels), metrics="auroc,f1-macro,micro_f1", monitor="f1-macro")
    assert tuple(run.scores["val"]) == ("micro_f1", "auroc", "f1-macro")
    assert run.summary["val_accuracy"] == run.scores["val"]["micro_f1"]


def test_a_metric_that_fails_on_real_nodes_is_an_error() -> None:
    class Picky(MeanOfMeans):
        def compute(self) -> torch.Tensor:
            if len(seen) > 6:
                raise ArithmeticError("no more")
            seen.append(1)
            return super().compute()

    seen: list[int] = []
    with pytest.raises(InputError, match="ArithmeticError: no more"):
        train(graph_of(), metrics={"picky": Picky()}, epochs=8)


def test_classes_that_nodes_lack() -> None:
    order, labels = np.arange(240), planted()["label"]
    first, second = (order[:120][labels[:120] == each] for each in (0, 1))
    train_idx, others = order[120:200], order[200:]
    own = {"own": torchmetrics.AUROC(task="multiclass", num_classes=4)}
    with pytest.raises(InputError, match="the validation nodes lack what auroc needs"):
        train(graph_of(train_idx=train_idx, val_idx=first, test_idx=others), metrics="auroc")
    with pytest.raises(InputError, match="the test nodes lack what own needs"):
        train(graph_of(train_idx=train_idx, val_idx=others, test_idx=first), metrics=own)
    graph = graph_of(train_idx=train_idx, val_idx=np.concatenate([first, second]), test_idx=others)
    with pytest.warns(DataWarning, match="of class 2, 3: auroc is not defined; its mean is over the others"):
        run = train(graph, metrics="auroc")
    assert run.scores["val"]["auroc"] > 0.5


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"metrics": {"it": Bootstrapped()}}, "random numbers"),
        ({"metrics": {"r": torchmetrics.PearsonCorrCoef()}}, "failed"),
        ({"metrics": {"f1": torchmetrics.F1Score}}, "no metric of torchmetrics"),
        ({"metrics": "auroc", "monitor": "f1-macro"}, "is not computed"),
        ({"metrics": {"it": WithoutDirection()}, "monitor": "it"}, "monitor_mode"),
    ],
)
def test_python_mistakes(options: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        train(graph_of(), **options)


def test_options_hold_names_alone() -> None:
    assert og.TrainConfig(metrics="auroc, f1-macro").metrics == ("auroc", "f1-macro")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"og\.train"):
        og.TrainConfig(metrics={"it": MeanOfMeans()})  # type: ignore[arg-type]


def test_what_objects_warn_of_is_shown_once(capsys: pytest.CaptureFixture[str]) -> None:
    order, labels = np.arange(240), planted()["label"]
    graph = graph_of(train_idx=order[120:], val_idx=order[:120][labels[:120] < 2], test_idx=order[:0])
    own = {"own": torchmetrics.AUROC(task="multiclass", num_classes=4)}
    with pytest.warns(DataWarning, match="of class 2, 3: own is not defined; see torchmetrics"):
        train(graph, metrics=own, progress=True)
    assert capsys.readouterr().err.count("metric own: No positive samples in targets") == 1


def test_plans_count_what_metrics_keep() -> None:
    graph = graph_of()
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
    assert estimate_metric_bytes(graph, model, og.TrainConfig()) == 0
    named = og.TrainConfig(metrics=("auroc", "f1-macro"))
    assert estimate_metric_bytes(graph, model, named) == 120 * 4 * (4 + 8)
    plain, more = (og.plan(graph, model, workers=1, metrics=metrics).plan for metrics in ("", "auroc"))
    for one, other in zip(plain.candidates, more.candidates, strict=True):
        if one.estimate is not None and other.estimate is not None:
            assert other.estimate.peak_bytes >= one.estimate.peak_bytes + 120 * 4 * 12


def test_a_split_without_nodes_has_no_scores() -> None:
    nothing = np.empty(0, dtype=np.int64)
    run = train(graph_of(test_idx=nothing), metrics="auroc")
    assert math.isnan(run.scores["test"]["auroc"])
    assert run.summary["scores"]["test"]["auroc"] is None
    with pytest.raises(InputError, match="nothing to monitor"):
        train(graph_of(val_idx=nothing), metrics="auroc", monitor="auroc")


def test_trials_are_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the graph, a metric is tried on some hundred rows."""
    sizes = []
    made_up = metric_fit._made_up_rows
    monkeypatch.setattr(
        metric_fit, "_made_up_rows", lambda *given: sizes.append(len((found := made_up(*given))[0])) or found
    )
    train(graph_of(), metrics="f1-macro", epochs=1)
    assert max(sizes) == 256
