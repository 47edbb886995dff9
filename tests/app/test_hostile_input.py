"""Mistakes that come late: a run that does not fit its options, a broken run directory, arrays that are no arrays."""

import errno
import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.app.runs.directory import RunDirectory
from outgrow.training.checkpoint import with_checksum
from outgrow.training.trainer import EpochReport

SMALL = ("--model", "gcn", "--hidden", 16, "--epochs", 2)


@pytest.fixture
def run(outgrow: Command, npz: Path) -> Path:
    assert outgrow("train", npz.name, *SMALL, "--out", "run").code == 0
    return Path("run").resolve()


def _refused(result: Any, *words: str) -> None:
    assert result.code == 2, result.err
    assert result.err.count("error:") == 1
    for word in ("needed:", "got:", "repair:", *words):
        assert word in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("args", "word"),
    [
        (("--strategy", "nosuch"), "unknown strategy"),
        (("--set", "bogus=1"), "unknown option"),
        (("--set", "patience=soon"), "patience"),
        (("--set", "head=2"), "unknown option"),
    ],
)
def test_resuming_with_a_wrong_option_is_refused(outgrow: Command, run: Path, args: tuple[str, ...], word: str) -> None:
    _refused(outgrow("train", "--out", run, "--resume", *args), word)


def test_a_run_goes_on_from_any_directory(
    outgrow: Command, run: Path, tmp_path: Path, npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    assert outgrow("train", npz, "--out", run, "--resume", "--epochs", 3).code == 0
    assert outgrow("predict", run, "--out", "predictions.parquet").code == 0


def _config(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        config = json.loads((run / "config.json").read_text())
        (run / "config.json").write_text(json.dumps(change(config)))

    return damage


def _checkpoint(change: Callable[[dict[str, Any]], object]) -> Callable[[Path], None]:
    def damage(run: Path) -> None:
        for path in (run / "checkpoint").iterdir():
            saved = torch.load(path, weights_only=True)
            change(saved)
            archive = io.BytesIO()
            torch.save(saved, archive)
            path.write_bytes(with_checksum(archive.getvalue()))

    return damage


def _garble(run: Path) -> None:
    for path in (run / "checkpoint").iterdir():
        path.write_bytes(b"nothing of the kind")


@pytest.mark.parametrize(
    "damage",
    [
        _config(lambda config: {}),
        _config(lambda config: []),
        _config(lambda config: {**config, "train": {"bogus": 1}}),
        _checkpoint(lambda saved: saved["progress"].update(future=1)),
        _checkpoint(lambda saved: saved["progress"].pop("loss")),
        _checkpoint(lambda saved: saved["optimizer"]["param_groups"][0]["params"].pop()),
        _garble,
    ],
)
def test_a_broken_run_directory_is_refused(outgrow: Command, run: Path, damage: Callable[[Path], None]) -> None:
    damage(run)
    result = outgrow("train", "--out", run, "--resume", "--epochs", 5)
    _refused(result)
    assert "weights_only" not in result.err


def test_a_torn_checkpoint_falls_back_to_the_one_before(outgrow: Command, npz: Path) -> None:
    def losses(run: str) -> list[float]:
        return list(json.loads(Path(run, "summary.json").read_text())["loss"])

    often = ("--set", "checkpoint_every=2")
    assert outgrow("train", npz, *SMALL, *often, "--epochs", 6, "--out", "whole").code == 0
    assert outgrow("train", npz, *SMALL, *often, "--epochs", 4, "--out", "torn").code == 0
    newest = Path("torn/checkpoint/epoch-00000004.pt")
    newest.write_bytes(newest.read_bytes()[:-100])
    scored = outgrow("predict", "torn", "--out", "predictions.parquet")
    assert scored.code == 0
    assert "epoch-00000002.pt is used instead" in scored.err
    resumed = outgrow("train", "--out", "torn", "--resume", "--epochs", 6)
    assert resumed.code == 0
    assert resumed.err.count("epoch-00000004.pt is torn or changed") == 1
    assert losses("torn") == losses("whole")
    for path in Path("torn/checkpoint").iterdir():
        path.write_bytes(b"")
    _refused(outgrow("train", "--out", "torn", "--resume", "--epochs", 9), "2 that are torn")


def test_a_full_disk_leaves_no_half_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str, encoding: str) -> int:
        self.touch()
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(og.InputError, match="No space left"):
            RunDirectory.create(tmp_path / "run", {})
        assert not (tmp_path / "run").exists()
    directory = RunDirectory.create(tmp_path / "run", {})
    shutil.rmtree(tmp_path / "run")
    report = EpochReport(epoch=1, loss=1.0, val_score=None, seconds=1.0, edges_per_second=1.0, best_epoch=0)
    with pytest.raises(og.InputError, match=r"metrics\.jsonl"):
        directory.on_epoch(report)


def test_a_store_is_not_converted_again(outgrow: Command, npz: Path) -> None:
    assert outgrow("convert", npz, "my.store").code == 0
    _refused(outgrow("convert", "my.store", "other.store"), "store already")


def test_a_model_that_does_not_fit_memory_is_refused(
    outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("outgrow.nn.projection.available_bytes", lambda: 1 << 28)
    result = outgrow("train", npz, "--model", "gcn", "--hidden", 10**7)
    _refused(result, "a weight of the model does not fit memory")


def test_too_little_memory_ends_with_code_1(outgrow: Command, npz: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As torch's allocator says it, wherever it is asked for too much."""
    for place in ("stack", "projection"):
        monkeypatch.setattr(f"outgrow.nn.{place}.require_counts", lambda **counts: None)
    monkeypatch.setattr("outgrow.nn.projection.available_bytes", lambda: 1 << 60)
    result = outgrow("train", npz, "--model", "gcn", "--hidden", 10**14)
    assert result.code == 1, result.err
    assert "memory is at its end" in result.err
    assert "Traceback" not in result.err


def test_defaults_are_in_the_help(outgrow: Command) -> None:
    text = " ".join(outgrow("train", "--help").out.replace("│", " ").split())
    assert "runs/GRAPH-MODEL-TIME" in text
    assert "else sage" in text


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"split": {"train": np.ones(3, dtype=bool)}}, "240 booleans"),
        ({"split": {"train": [0.5, 1.5]}}, "integer"),
        ({"split": {"train": ["a"]}}, "integer"),
        ({"split": [1, 2]}, "train"),
        ({"features": [[1.0, 2.0], [3.0]]}, "cannot be read"),
        ({"features": torch.ones(240, 2).to_sparse()}, "csr_array"),
        ({"relation": np.full(1440, 0.5)}, "relation"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(options: dict[str, Any], word: str) -> None:
    with pytest.raises(og.InputError, match=word):
        og.from_arrays(planted()["edge_index"], **{"num_nodes": 240, **options})


@pytest.mark.parametrize(
    "options",
    [{"epochs": "5"}, {"epochs": 2.5}, {"epochs": True}, {"seed": None}, {"strategy": None}, {"strategy": og.Full}],
)
def test_options_of_the_wrong_kind_are_refused(options: dict[str, Any]) -> None:
    graph, model = _graph_and_model()
    with pytest.raises(og.InputError):
        og.train(graph, model, progress=False, **options)


def test_a_graph_or_model_of_another_kind_is_refused() -> None:
    graph, model = _graph_and_model()
    for wrong in ((model, graph), ("cora", model), (graph, torch.nn.Linear(8, 4)), (graph, og.nn.GCN)):
        with pytest.raises(og.InputError, match="has the wrong type"):
            og.train(*wrong, epochs=1)
        with pytest.raises(og.InputError, match="has the wrong type"):
            og.predict(*wrong)
    with pytest.raises(og.InputError, match="num_features"):
        og.predict(graph, og.nn.GCN(3, 8, 4))


def test_numbers_of_numpy_are_numbers(tmp_path: Path) -> None:
    graph, model = _graph_and_model()
    run = og.train(graph, model, epochs=np.int64(2), lr=np.float32(0.1), out=tmp_path / "run", progress=False)
    assert len(run.loss) == 2


def _graph_and_model() -> tuple[og.Graph, Any]:
    arrays = planted()
    graph = og.from_arrays(
        arrays["edge_index"],
        features=torch.tensor(arrays["features"], requires_grad=True),
        labels=arrays["label"],
        split={"train": arrays["train_idx"]},
    )
    return graph, og.nn.GCN(8, 8, 4)
