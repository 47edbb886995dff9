"""``outgrow train --splits``: a run for each split, and the mean and deviation of their scores."""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import numpy as np
import pytest
from tests.app.conftest import Command, planted

import outgrow as og

SMALL = ("--model", "gcn", "--hidden", 8, "--epochs", 3)


@pytest.fixture
def ten_splits(tmp_path: Path) -> Path:
    """A file as the benchmark of Platonov et al. has it."""
    arrays = planted()
    which = np.random.default_rng(1).random((10, 240))
    masks = {"train_masks": which < 0.5, "val_masks": (which >= 0.5) & (which < 0.75), "test_masks": which >= 0.75}
    given = {"edges": arrays["edge_index"].T, "node_features": arrays["features"], "node_labels": arrays["label"]}
    np.savez(tmp_path / "ten.npz", **given, **masks)
    return tmp_path / "ten.npz"


def test_all_splits(outgrow: Command, ten_splits: Path) -> None:
    result = outgrow("train", ten_splits, *SMALL, "--splits", "all", "--metric", "auroc", "--out", "runs", "--json")
    assert result.code == 0, result.err
    summary = result.summary
    assert json.loads(Path("runs/summary.json").read_text()) == summary
    assert summary["splits"] == list(range(10)) == [run["split"] for run in summary["runs"]]
    runs = [json.loads(Path(f"runs/split-{at}/summary.json").read_text()) for at in range(10)]
    for part in ("val", "test"):
        for name in ("accuracy", "auroc"):
            scores = [run["scores"][part][name] for run in runs]
            assert summary["scores"][part][name]["mean"] == pytest.approx(statistics.fmean(scores))
            assert summary["scores"][part][name]["std"] == pytest.approx(np.std(scores, ddof=1))
    assert summary["test_score"]["mean"] == summary["scores"]["test"]["accuracy"]["mean"]
    assert f"10 splits: test accuracy {summary['test_score']['mean']:.4f}" in result.err
    # Each is the run that the split alone gives.
    graph = og.load(ten_splits, split_index=7)
    og.save_graph(graph, "seventh.store")
    alone = outgrow("train", "seventh.store", *SMALL, "--json").summary
    assert alone["loss"] == runs[7]["loss"]
    assert alone["test_score"] == runs[7]["test_score"]


@pytest.mark.slow
def test_some_splits_of_a_store_on_two_workers(outgrow: Command, ten_splits: Path) -> None:
    assert outgrow("convert", ten_splits, "ten.store").code == 0
    args = ("train", "ten.store", *SMALL, "--splits", "2,0", "--json")
    one = outgrow(*args, "--out", "one").summary
    two = outgrow(*args, "--workers", 2, "--strategy", "offload", "--out", "two").summary
    assert one["splits"] == two["splits"] == [2, 0]
    assert two["test_score"]["mean"] == pytest.approx(one["test_score"]["mean"], abs=0.02)


def test_resumed(outgrow: Command, ten_splits: Path) -> None:
    args = ("train", ten_splits, *SMALL, "--splits", "0,1", "--json")
    whole = outgrow(*args, "--out", "whole").summary
    assert outgrow(*args, "--out", "parts").code == 0
    Path("parts/summary.json").unlink()
    for path in sorted(Path("parts/split-1").rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    Path("parts/split-1").rmdir()
    first = Path("parts/split-0/summary.json").stat().st_mtime_ns
    resumed = outgrow("train", "--out", "parts", "--resume", "--json")
    assert resumed.code == 0, resumed.err
    assert resumed.summary == whole
    assert Path("parts/split-0/summary.json").stat().st_mtime_ns == first
    longer = outgrow("train", "--out", "parts", "--resume", "--epochs", 4, "--json").summary
    assert [run["epochs"] for run in longer["runs"]] == [4, 4]
    refused = outgrow("train", "--out", "parts", "--resume", "--hidden", 16)
    assert refused.code == 2
    assert "hidden 8" in refused.err
    assert outgrow("train", ten_splits, "--out", "parts").code == 2
    auto = outgrow("train", ten_splits, *SMALL, "--splits", "0,1", "--out", "new", "--resume", "auto", "--json")
    assert auto.summary == whole
    assert outgrow("train", *SMALL[2:4], "--out", "new", "--resume", "auto", "--json").summary == whole


def test_the_directory_of_several_runs_is_none_of_a_run(outgrow: Command, ten_splits: Path) -> None:
    assert outgrow("train", ten_splits, *SMALL, "--splits", "0,4", "--out", "runs").code == 0
    for command in (("report", "runs"), ("predict", "runs", "--out", "p.parquet")):
        refused = outgrow(*command)
        assert refused.code == 2
        assert "split-0, split-4" in refused.err
    assert outgrow("report", "runs/split-0", "runs/split-4").code == 0
    assert outgrow("predict", "runs/split-4", "--out", "p.parquet").code == 0


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--splits", "10"), ("no split 10", "0 to 9")),
        (("--splits", "first"), ("all, or numbers",)),
        (("--splits", "1,1"), ("each once",)),
        (("--splits", "all", "--task", "links"), ("val_links",)),
        (("--splits", "all", "--resume", "--out", "nowhere"), ("no such runs",)),
        (("--splits", "0", "--hidden", "0"), ("hidden",)),
    ],
)
def test_mistakes_leave_nothing(
    outgrow: Command, ten_splits: Path, args: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = outgrow("train", ten_splits, *args)
    assert result.code == 2, result.err
    assert all(word in result.err for word in words), result.err
    assert [path.name for path in Path().iterdir()] == [ten_splits.name]


def test_under_torchrun_it_is_refused(outgrow: Command, ten_splits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.app.cli.train_runs.torchrun_world_size", lambda: 2)
    refused = outgrow("train", ten_splits, "--splits", "all")
    assert refused.code == 2
    assert "torchrun" in refused.err


def test_tables_from_files_to_predictions(outgrow: Command, tmp_path: Path) -> None:
    arrays = planted()
    folder = tmp_path / "tables"
    folder.mkdir()
    names = [f"tx_{at}" for at in range(240)]
    rows = (
        "\t".join([name, f"kind{label}", *map(str, row)])
        for name, label, row in zip(names, arrays["label"], arrays["features"], strict=True)
    )
    head = "\t".join(["txId", "class", *(f"emb_{at}" for at in range(8))])
    (folder / "nodes.tsv").write_text("\n".join([head, *rows]))
    edges = (f"{names[a]},{names[b]}" for a, b in arrays["edge_index"].T)
    (folder / "edges.csv").write_text("\n".join(["src,dst", *edges]))
    converted = outgrow("convert", folder, "made.store", "--split", "0.6,0.2,0.2", "--split-seed", 1)
    assert converted.code == 0, converted.err
    graph = og.load("made.store")
    assert graph.class_names == ("kind0", "kind1", "kind2", "kind3")
    assert [len(part) for part in (graph.split.train, graph.split.val, graph.split.test)] == [144, 48, 48]
    trained = outgrow("train", "made.store", *SMALL, "--splits", "all", "--out", "runs", "--json")
    assert trained.code == 0, trained.err
    assert trained.summary["test_score"]["std"] is None
    assert outgrow("predict", "runs/split-0", "--out", "p.parquet").code == 0
