"""Loggers, against the stores that they write: event files, MLflow's data base, W&B's files of a run offline."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import outgrow as og

BATCHES: dict[str, Any] = {"batch_size": 50, "fanout": (3, 3)}
IN_PACKAGES = pytest.mark.filterwarnings("ignore")
"""What other packages warn of is not ours."""


HEADER, BLOCK, FULL, LAST = 7, 32768, 1, 4


@pytest.fixture
def train(npz: Path) -> Callable[..., og.Run]:
    def run(*callbacks: og.Callback, **options: Any) -> og.Run:
        graph = og.load(npz)
        torch.manual_seed(0)
        model = og.nn.GCN(graph.num_features, 8, graph.num_classes)
        return og.train(graph, model, callbacks=[*callbacks], **{"epochs": 3, "progress": False, **options})

    return run


def events(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Points of each curve of event files."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(folder))
    read.Reload()
    return {tag: [(each.step, each.value) for each in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


@IN_PACKAGES
def test_tensorboard_has_epochs_and_steps(train: Callable[..., og.Run], tmp_path: Path) -> None:
    out, own = tmp_path / "run", tmp_path / "own"
    run = train(og.loggers.TensorBoard(own), out=out, epochs=2, **BATCHES)
    run = train(og.loggers.TensorBoard(own), out=out, epochs=3, resume=True, **BATCHES)
    for folder in (own, out / "tensorboard"):
        curves, steps = events(folder), events(folder / "steps")
        assert [step for step, _ in curves["loss/train"]] == [1, 2, 3]
        assert [value for _, value in curves["loss/train"]] == pytest.approx(run.loss)
        assert [step for step, _ in steps["step/loss"]] == [*range(1, 10)]
        assert curves["final/test_accuracy"][-1] == (3, pytest.approx(run.test_accuracy))


@IN_PACKAGES
def test_a_full_graph_has_no_curves_of_steps(train: Callable[..., og.Run], tmp_path: Path) -> None:
    train(og.loggers.TensorBoard(tmp_path / "own"))
    assert not (tmp_path / "own" / "steps").exists()


@IN_PACKAGES
@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("workers", [1, 2])
def test_mlflow(train: Callable[..., og.Run], tmp_path: Path, workers: int) -> None:
    mlflow = pytest.importorskip("mlflow", reason="needs the extra mlflow")
    uri = f"sqlite:///{tmp_path / 'mlflow.db'}"
    logger = og.loggers.MLflow("graphs", run_name="first", tracking_uri=uri, tags={"of": "tests"}, steps=True)
    options: dict[str, Any] = {"out": tmp_path / "run", "optimizer": "sgd", "momentum": 0.9, **BATCHES}
    train(logger, workers=workers, epochs=2, **options)
    run = train(logger, workers=workers, resume=True, **options)
    client = mlflow.MlflowClient(tracking_uri=uri)
    experiment = client.get_experiment_by_name("graphs")
    [found] = client.search_runs([experiment.experiment_id])
    assert found.info.run_id == logger.run_id
    assert (found.info.run_name, found.info.status, found.data.tags["of"]) == ("first", "FINISHED", "tests")
    assert found.data.params["optimizer_options.momentum"] == "0.9"
    assert found.data.params["batch_size"] == "50"
    losses = client.get_metric_history(logger.run_id, "loss/train")
    assert [(each.step, each.value) for each in losses] == [
        (i + 1, pytest.approx(loss)) for i, loss in enumerate(run.loss)
    ]
    assert len(client.get_metric_history(logger.run_id, "step/loss")) == 9
    assert found.data.metrics["final/test_accuracy"] == pytest.approx(run.test_accuracy)


def records(data: bytes) -> Iterator[bytes]:
    """Records of a file of W&B: a log of LevelDB, in blocks, behind a header."""
    at, parts = HEADER, b""
    while at + HEADER <= len(data):
        left = BLOCK - at % BLOCK
        if left < HEADER:
            at += left
            continue
        _, length, kind = struct.unpack_from("<IHB", data, at)
        parts += data[at + HEADER : at + HEADER + length]
        at += HEADER + length
        if kind in (FULL, LAST):
            yield parts
            parts = b""


def wandb_records(file: Path, make: Callable[[], Any]) -> list[tuple[str, Any]]:
    """Records of a file of W&B, each with its kind."""
    found = []
    for data in records(file.read_bytes()):
        record = make()
        record.ParseFromString(data)
        found.append((record.WhichOneof("record_type"), record))
    return found or [("", None)]


@IN_PACKAGES
def test_wandb_offline(train: Callable[..., og.Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.setenv("WANDB_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "config"))
    logger = og.loggers.WandB("graphs", name="first", folder=tmp_path, mode="offline", steps=True)
    run = train(logger, optimizer="sgd", momentum=0.9, **BATCHES)
    [file] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    found = wandb_records(file, wandb_internal_pb2.Record)
    # W&B writes in a process of its own, which may not be done when the run is.
    end = time.monotonic() + 60
    while found[-1][0] not in ("exit", "footer", "final") and time.monotonic() < end:
        time.sleep(0.1)
        found = wandb_records(file, wandb_internal_pb2.Record)
    history, summary = list[dict[str, str]](), dict[str, str]()
    for kind, record in found:
        if kind == "history":
            history.append({item.key or item.nested_key[0]: item.value_json for item in record.history.item})
        if kind == "summary":
            summary |= {item.key or item.nested_key[0]: item.value_json for item in record.summary.update}
        if kind == "run":
            named = record.run.project, record.run.display_name, record.run.run_id
            assert named == ("graphs", "first", logger.run_id)
    losses = [float(each["loss/train"]) for each in history if "loss/train" in each]
    assert losses == pytest.approx(run.loss), [kind for kind, _ in found]
    assert len([each for each in history if "step/loss" in each]) == 9
    assert float(summary["final/test_accuracy"]) == pytest.approx(run.test_accuracy)


@pytest.mark.parametrize(("make", "package"), [(og.loggers.MLflow, "mlflow"), (og.loggers.WandB, "wandb")])
def test_a_package_that_is_not_there(
    train: Callable[..., og.Run], monkeypatch: pytest.MonkeyPatch, make: Callable[[], og.Callback], package: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(og.OutgrowError) as caught:
        train(make())
    assert f"pip install 'outgrow[{package}]'" in str(caught.value)
