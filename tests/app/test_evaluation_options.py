"""``--set eval=...`` and its like on the command line, ``--nodes``, and ``og.predict`` of some nodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pyarrow import Table, parquet
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.graph.store.reader import open_store, write_store
from outgrow.inference.chunked import InferenceMemory
from support import disk_folder

SCARCE = InferenceMemory(1, 100_000, 1)
BATCHES = ("--batch-size", 8, "--fanout", "3,2")


@pytest.fixture
def graph(tmp_path: Path) -> str:
    np.savez(tmp_path / "planted.npz", **planted())
    return "planted.npz"


def summary_of(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "summary.json").read_text())
    return found


@pytest.mark.parametrize("mode", ["auto", "exact", "sampled", "layerwise", "none"])
def test_every_evaluation(outgrow: Command, graph: str, tmp_path: Path, mode: str) -> None:
    made = outgrow("train", graph, *BATCHES, "--epochs", 2, "--set", f"eval={mode}", "--out", "run")
    assert made.code == 0, made.err
    summary = summary_of(tmp_path / "run")
    chosen = summary["strategy_facts"]["validation"]
    assert chosen == mode or (mode == "auto" and chosen in ("exact", "layerwise"))
    assert f"validation: {chosen}, " in made.err
    assert (summary["test_accuracy"] is None) == (mode == "none")
    assert (summary["best_epoch"] == 0) == (mode == "none")
    assert outgrow("predict", "run", "--out", "all.parquet").code == 0


def test_validation_and_test_may_differ(outgrow: Command, graph: str, tmp_path: Path) -> None:
    given = ("--set", "val=sampled", "--set", "test=exact", "--set", "eval_fanout=4,4", "--set", "eval_batch_size=5")
    made = outgrow("train", graph, *BATCHES, "--epochs", 1, *given, "--out", "run")
    assert made.code == 0, made.err
    assert {"validation": "sampled", "test": "exact"}.items() <= summary_of(tmp_path / "run")["strategy_facts"].items()
    assert "validation: sampled, batches of 5, fan-outs 4,4: approximate" in made.err


def test_a_resumed_run_may_be_evaluated_otherwise(outgrow: Command, graph: str, tmp_path: Path) -> None:
    assert outgrow("train", graph, *BATCHES, "--epochs", 1, "--set", "eval=exact", "--out", "run").code == 0
    made = outgrow(
        "train", "--resume", "--out", "run", "--epochs", 2, "--set", "eval=sampled", "--set", "eval_fanout=2,2"
    )
    assert made.code == 0, made.err
    assert "validation: sampled, batches of 8, fan-outs 2,2" in made.err
    assert summary_of(tmp_path / "run")["train"]["eval"] == "sampled"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("eval=sometimes",), "layerwise"),
        (("eval_fanout=4,4",), "eval=sampled"),
        (("eval_batch_size=4",), "eval=sampled"),
        (("eval=sampled", "eval_fanout=4,4,4"), "2 hops"),
        (("eval=sampled", "eval_fanout=4"), "fan-outs"),
        (("val=none", "patience=3"), "leave patience out"),
        (("eval_batch_size=0",), "at least 1"),
    ],
)
def test_mistakes(outgrow: Command, graph: str, tmp_path: Path, given: tuple[str, ...], says: str) -> None:
    options = [part for each in given for part in ("--set", each)]
    made = outgrow("train", graph, *BATCHES, "--epochs", 1, *options, "--out", "run")
    assert made.code == 2
    assert says in made.err
    assert not (tmp_path / "run").exists()


def test_samples_need_fan_outs(outgrow: Command, graph: str) -> None:
    made = outgrow("train", graph, "--epochs", 1, "--set", "eval=sampled")
    assert made.code == 2
    assert "eval_fanout" in made.err


def test_links_need_all_nodes(outgrow: Command, graph: str) -> None:
    made = outgrow("train", graph, "--task", "links", "--epochs", 1, "--set", "test=exact")
    assert made.code == 2
    assert "test=layerwise" in made.err


@pytest.mark.parametrize("form", [".npy", ".txt", ".parquet"])
def test_nodes_of_a_file(outgrow: Command, graph: str, tmp_path: Path, form: str) -> None:
    assert outgrow("train", graph, "--epochs", 1, "--out", "run").code == 0
    nodes = np.array([7, 3, 7, 0])
    path = tmp_path / f"nodes{form}"
    if form == ".npy":
        np.save(path, nodes)
    elif form == ".txt":
        path.write_text("\n".join(map(str, nodes)))
    else:
        parquet.write_table(Table.from_pydict({"node": nodes}), path)
    made = outgrow("predict", "run", "--nodes", path.name, "--what", "embeddings", "--out", "some.parquet")
    assert made.code == 0, made.err
    assert outgrow("predict", "run", "--what", "embeddings", "--out", "all.parquet").code == 0
    some, every = (parquet.read_table(tmp_path / name).to_pydict() for name in ("some.parquet", "all.parquet"))
    assert some["node"] == nodes.tolist()
    assert some["label"] == [every["label"][node] for node in nodes]
    np.testing.assert_allclose(some["embedding"], [every["embedding"][node] for node in nodes], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("none.txt", None, "none"),
        ("nodes.txt", "1\ntwo\n", "two"),
        ("nodes.txt", "1\n999999\n", "999999"),
        ("nodes.npy", "no array", "cannot read nodes"),
    ],
)
def test_bad_files_of_nodes(
    outgrow: Command, graph: str, tmp_path: Path, name: str, content: str | None, says: str
) -> None:
    assert outgrow("train", graph, "--epochs", 1, "--out", "run").code == 0
    if content is not None:
        (tmp_path / name).write_text(content)
    made = outgrow("predict", "run", "--nodes", name, "--out", "some.npy")
    assert made.code == 2
    assert says in made.err
    assert not (tmp_path / "some.npy").exists()


@pytest.mark.parametrize(
    "kind", [og.nn.GCN, *(pytest.param(each, marks=pytest.mark.slow) for each in (og.nn.GAT, og.nn.SAGE))]
)
def test_some_nodes_are_as_among_all(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(disk_folder()))
    graph = og.load("products@0.002")
    torch.manual_seed(0)
    model = kind(graph.num_features, 8, graph.num_classes).double()
    every, rows = og.predict(graph, model), og.embed(graph, model)
    nodes = [5, 17, 5, 4000]
    close = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(og.predict(graph, model, nodes), every[nodes], **close)
    torch.testing.assert_close(og.embed(graph, model, torch.tensor(nodes)), rows[nodes], **close)
    mask = torch.arange(graph.num_nodes) % 9 == 0
    torch.testing.assert_close(og.predict(graph, model, mask), every[mask], **close)
    assert og.predict(graph, model, []).shape == (0, graph.num_classes)
    with patch.object(InferenceMemory, "of_worker", lambda *given: SCARCE):
        torch.testing.assert_close(og.predict(graph, model), every, **close)


@pytest.mark.parametrize("nodes", [[1 << 40], [-1], [0.5], [[1]], "all"])
def test_there_are_no_such_nodes(nodes: Any) -> None:
    graph = og.load("products@0.002")
    model = og.nn.SAGE(graph.num_features, 4, graph.num_classes)
    with pytest.raises(InputError, match="node"):
        og.predict(graph, model, nodes)


def test_a_disk_without_room_loses_no_checkpoint(tmp_path: Path) -> None:
    graph = og.load("products@0.002")
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
    loop = og.TrainConfig(epochs=4, eval_every=2, checkpoint_every=1, batch_size=64, fanout=(3, 3))
    with (
        patch.object(InferenceMemory, "of_worker", lambda *given: SCARCE),
        patch(
            "outgrow.runtime.storage.scratch_dir.validate_free_space",
            side_effect=InputError("no room", needed="", got="", repair=""),
        ),
        pytest.raises(InputError, match="no room"),
    ):
        og.train(graph, model, config=loop, progress=False, out=tmp_path / "run")
    assert [path.name for path in (tmp_path / "run" / "checkpoint").iterdir()] == ["epoch-00000001.pt"]
    assert og.train(graph, model, config=loop, progress=False, out=tmp_path / "run", resume=True).summary["epochs"] == 4


def test_large_features_are_read_from_their_file(tmp_path: Path) -> None:
    """To the same losses, and the pages that were read are counted."""
    write_store(og.load("products@0.002"), tmp_path / "store")
    runs = []
    for share in (0.5, 0.0):
        graph = open_store(tmp_path / "store")
        torch.manual_seed(0)
        model = og.nn.SAGE(graph.num_features, 8, graph.num_classes)
        with patch("outgrow.engine.features.assembly._CACHED_SHARE", share):
            runs.append(og.train(graph, model, batch_size=64, fanout=(3, 3), epochs=2, progress=False))
    assert runs[0].loss == runs[1].loss
    assert "disk_read_bytes" not in runs[0].summary["counters"]
    assert runs[1].summary["counters"]["disk_read_bytes"] > 0
