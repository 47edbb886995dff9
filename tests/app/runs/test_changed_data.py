"""A resumed run knows its data: what has changed is named, and trained on only if that is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.core.user_warnings import DataWarning
from outgrow.graph.store.fingerprint import PARTS, changed_parts, fingerprint_graph
from outgrow.graph.store.reader import open_store, write_store
from outgrow.training import checkpoint

GIVEN: dict[str, Any] = {
    "edge_index": np.random.default_rng(0).integers(0, 60, (2, 300)),
    "features": np.random.default_rng(1).normal(size=(60, 4)).astype("f4"),
    "labels": np.random.default_rng(2).integers(0, 3, 60),
    "split": {"train": np.arange(30), "val": np.arange(30, 45), "test": np.arange(45, 60)},
}
SWAPPED = {"train": np.arange(45, 60), "val": np.arange(30, 45), "test": np.arange(30)}
CHANGES: dict[str, dict[str, Any]] = {
    "topology": {"edge_index": GIVEN["edge_index"][:, 1:]},
    "features": {"features": GIVEN["features"] + 1},
    "labels": {"labels": (GIVEN["labels"] + 1) % 3},
    "split": {"split": SWAPPED},
}


def graph(**changes: Any) -> og.Graph:
    given = {**GIVEN, **changes}
    return og.from_arrays(given.pop("edge_index"), **given)


def model() -> og.nn.Model:
    torch.manual_seed(0)
    return og.nn.GCN(4, 8, 3)


def train(out: Path, given: og.Graph, **options: Any) -> og.Run:
    return og.train(given, model(), out=out, progress=False, checkpoint_every=2, **options)


@pytest.mark.parametrize("part", PARTS)
def test_each_part_that_changed_is_named(tmp_path: Path, part: str) -> None:
    before = graph()
    assert changed_parts(fingerprint_graph(before), fingerprint_graph(graph())) == []
    assert changed_parts(fingerprint_graph(before), fingerprint_graph(graph(**CHANGES[part]))) == [part]
    train(tmp_path / "run", before, epochs=2)
    kept = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    with pytest.raises(InputError, match="have changed") as refused:
        train(tmp_path / "run", graph(**CHANGES[part]), epochs=4, resume=True)
    assert refused.value.got == f"another {part}"
    assert kept == {path: path.read_bytes() for path in kept}
    train(tmp_path / "run", graph(), epochs=4, resume=True)


def test_a_store_has_the_fingerprint_of_what_was_written(tmp_path: Path) -> None:
    wide = replace(graph(), features=torch.from_numpy(GIVEN["features"]).bfloat16())
    for number, given in enumerate((graph(), wide)):
        write_store(given, tmp_path / f"{number}")
        assert fingerprint_graph(open_store(tmp_path / f"{number}")) == fingerprint_graph(given)
    opened = open_store(tmp_path / "0")
    assert opened.labels is not None
    opened.labels[3] = (opened.labels[3] + 1) % 3
    assert changed_parts(fingerprint_graph(opened), fingerprint_graph(graph())) == ["labels"]


def test_names_count() -> None:
    named = replace(graph(), class_names=("a", "b", "c"))
    assert changed_parts(fingerprint_graph(graph()), fingerprint_graph(named)) == ["labels"]


@pytest.mark.parametrize("workers", [1, 2])
def test_what_was_measured_on_the_former_data_is_forgotten(tmp_path: Path, workers: int) -> None:
    out = tmp_path / "run"
    train(out, graph(), epochs=6)
    run = train(out, graph(split=SWAPPED), epochs=8, resume=True, allow_changed_data=True, workers=workers)
    assert run.summary["best_epoch"] in (7, 8)
    newest = checkpoint.latest_checkpoint(out / "checkpoint")
    assert newest is not None
    progress = checkpoint.load_checkpoint(newest)["progress"]
    assert progress["val_score"][:6] == [None] * 6
    assert None not in progress["val_score"][6:]
    # From now on these are the data of the run.
    assert json.loads((out / "config.json").read_text())["data"] == progress["data"]
    assert progress["data"] == fingerprint_graph(graph(split=SWAPPED))
    with pytest.raises(InputError, match="another split"):
        train(out, graph(), epochs=10, resume=True)
    train(out, graph(split=SWAPPED), epochs=10, resume=True)


def test_an_epoch_that_was_begun_on_other_data_begins_again(tmp_path: Path) -> None:
    class Stop(Exception):
        pass

    out, options = tmp_path / "run", {"batch_size": 10, "fanout": (2, 2), "checkpoint_steps": 1}
    saved, count = checkpoint.save_checkpoint, 0

    def stop_after_five(*given: Any, **named: Any) -> Path:
        nonlocal count
        count += 1
        path = saved(*given, **named)
        if count == 5:
            raise Stop
        return path

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(checkpoint, "save_checkpoint", stop_after_five)
        with pytest.raises(Stop):
            train(out, graph(), epochs=4, **options)
    newest = checkpoint.latest_checkpoint(out / "checkpoint")
    assert newest is not None
    assert "step" in newest.name
    run = train(out, graph(split=SWAPPED), epochs=4, resume=True, allow_changed_data=True, **options)
    assert len(run.loss) == 4


def test_a_run_that_recorded_nothing_says_so(tmp_path: Path) -> None:
    out = tmp_path / "run"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("outgrow.app.api.graph_record", lambda *given: {"data": {}, "graph_schema": None})
        train(out, graph(), epochs=2)
    with pytest.warns(DataWarning, match="recorded no fingerprint"):
        train(out, graph(), epochs=4, resume=True)


def test_on_the_command_line(tmp_path: Path, outgrow: Callable[..., Any]) -> None:
    def write(split: dict[str, Any]) -> None:
        ids = {f"{part}_idx": nodes for part, nodes in split.items()}
        arrays = {"edge_index": GIVEN["edge_index"], "features": GIVEN["features"], "label": GIVEN["labels"]}
        np.savez(tmp_path / "g.npz", **arrays, **ids)

    out = tmp_path / "run"
    write(GIVEN["split"])
    assert outgrow("train", tmp_path / "g.npz", "--model", "gcn", "--hidden", 8, "--epochs", 4, "--out", out).code == 0
    write(SWAPPED)
    refused = outgrow("train", "--out", out, "--resume", "--epochs", 6)
    assert refused.code == 2
    assert "another split" in refused.err
    assert outgrow("train", "--out", out, "--resume", "--epochs", 6, "--allow-changed-data").code == 0
    assert json.loads((out / "summary.json").read_text())["best_epoch"] in (5, 6)
