"""``outgrow predict``: both forms of file, what they hold, what is refused, and how much memory it takes."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from pyarrow import parquet
from tests.app.conftest import Command, Result, planted

import outgrow as og
from outgrow.app import predictions
from outgrow.app.api import embed
from outgrow.app.model_registry import build_model
from outgrow.app.runs.directory import RunDirectory
from outgrow.graph.graph import Graph
from outgrow.graph.store.reader import write_store
from outgrow.inference.chunked import InferenceMemory
from outgrow.nn.model import Model
from outgrow.runtime.distributed import launch
from outgrow.runtime.system.process_memory import PeakMemorySampler, resident_bytes
from support import random_topology, whole_blocks
from thread_group import launch_in_threads

NAMES = ("ash", "birch", "cedar", "date palm")
MIB = 1 << 20


@pytest.fixture
def run(outgrow: Command, tmp_path: Path) -> Path:
    """A small run on nodes of one class each, which have names."""
    np.savez(tmp_path / "named.npz", **planted(), class_names=np.array(NAMES))
    trained = outgrow("train", "named.npz", "--model", "sage", "--hidden", 16, "--epochs", 3, "--out", "run")
    assert trained.code == 0, trained.err
    return tmp_path / "run"


@pytest.fixture
def several(outgrow: Command, tmp_path: Path) -> Path:
    """A small run on nodes of several classes each."""
    arrays = planted()
    labels = np.stack([arrays["label"] % 2, arrays["label"] // 2, arrays["features"][:, 0] > 0], 1).astype(np.uint8)
    np.savez(tmp_path / "several.npz", **{**arrays, "label": labels})
    trained = outgrow("train", "several.npz", "--model", "gcn", "--hidden", 8, "--epochs", 2, "--out", "run")
    assert trained.code == 0, trained.err
    return tmp_path / "run"


def trained(run: Path) -> tuple[Graph, Model]:
    """The graph of a run, and its best model."""
    directory = RunDirectory.open(run)
    graph, recorded = og.load(directory.config["graph"]), directory.config["model"]
    model = build_model(recorded["name"], graph, recorded["options"])
    directory.load_best(model)
    return graph, model


def written(outgrow: Command, run: Path, name: str, what: str | None = None) -> Any:
    """The array, or the table's columns by name, that the command writes."""
    result = outgrow("predict", run, "--out", name, *(("--what", what) if what else ()))
    assert result.code == 0, result.err
    assert name in result.err
    assert not list(Path().glob(".*"))
    if name.endswith(".npy"):
        return np.load(name)
    table = parquet.read_table(name)
    return {column: table[column].combine_chunks() for column in table.column_names}


def refused(result: Result, *words: str) -> None:
    assert result.code == 2, result.err
    for word in ("needed:", "got:", "repair:", *words):
        assert word in result.err
    assert "Traceback" not in result.err
    assert not list(Path().glob("p.*")) + list(Path().glob(".*"))


@pytest.mark.parametrize("chunk_bytes", [1, 5000, 64 * MIB])
def test_both_forms_hold_what_the_model_says(
    outgrow: Command, run: Path, chunk_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "_CHUNK_BYTES", chunk_bytes)
    graph, model = trained(run)
    logits = og.predict(graph, model).numpy()
    values = {
        "classes": logits.argmax(1),
        "probabilities": torch.from_numpy(logits).softmax(1).numpy(),
        "logits": logits,
        "embeddings": embed(graph, model).numpy(),
    }
    for what, expected in values.items():
        array = written(outgrow, run, "p.npy", what)
        assert array.dtype == (np.int64 if what == "classes" else np.float32)
        np.testing.assert_array_equal(array, expected)
        table = written(outgrow, run, "p.parquet", what)
        np.testing.assert_array_equal(table["node"], np.arange(240))
        np.testing.assert_array_equal(table["label"], values["classes"])
        assert table["class"].to_pylist() == [NAMES[label] for label in values["classes"]]
        np.testing.assert_array_equal(table["probability"], values["probabilities"].max(1))
        if what != "classes":
            rows = table["embedding" if what == "embeddings" else what]
            assert str(rows.type) == f"fixed_size_list<element: float>[{expected.shape[1]}]"
            np.testing.assert_array_equal(rows.flatten(), expected.ravel())
    groups = parquet.ParquetFile("p.parquet").num_row_groups
    assert (groups == 1) == (chunk_bytes == 64 * MIB)


def test_classes_are_written_unless_told_otherwise(outgrow: Command, run: Path) -> None:
    assert list(written(outgrow, run, "p.parquet")) == ["node", "label", "class", "probability"]
    assert written(outgrow, run, "p.npy").shape == (240,)


def test_several_labels_per_node(outgrow: Command, several: Path) -> None:
    logits = og.predict(*trained(several))
    table = written(outgrow, several, "p.parquet", "logits")
    assert list(table) == ["node", "0", "1", "2", "logits"]
    for i in range(3):
        np.testing.assert_array_equal(table[str(i)], logits.sigmoid()[:, i])
    classes = written(outgrow, several, "p.npy")
    assert classes.dtype == np.uint8
    np.testing.assert_array_equal(classes, logits > 0)
    np.testing.assert_array_equal(written(outgrow, several, "p.npy", "probabilities"), logits.sigmoid())


@pytest.mark.parametrize(
    "make", [og.nn.GCN, og.nn.SAGE, lambda *widths, **more: og.nn.GAT(*widths, heads=2, norm=True, **more)]
)
@pytest.mark.parametrize("layers", [2, 3])
def test_embeddings_are_what_the_last_layer_takes(make: Callable[..., Model], layers: int) -> None:
    torch.manual_seed(0)
    arrays = planted()
    graph = og.from_arrays(arrays["edge_index"], features=arrays["features"], labels=arrays["label"])
    model = make(8, 6, 4, layers=layers, dropout=0.5).double()
    blocks, x = whole_blocks(model, graph.topology), graph.features.double()
    for layer, block in list(zip(model.layers_list(), blocks, strict=True))[:-1]:
        x = layer(block, x, x)
    embeddings = embed(graph, model)
    torch.testing.assert_close(embeddings, x.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(og.predict(graph, model), model.layers_list()[-1](blocks[-1], x, x).detach())


def test_a_model_of_one_layer_has_no_embeddings(outgrow: Command, npz: Path) -> None:
    assert outgrow("train", npz, "--model", "gcn", "--set", "layers=1", "--epochs", 1, "--out", "run").code == 0
    refused(outgrow("predict", "run", "--out", "p.npy", "--what", "embeddings"), "2 layers")
    assert written(outgrow, Path("run"), "p.npy", "logits").shape == (240, 4)


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("--out", "p.csv"), (".parquet or .npy", ".csv")),
        (("--out", "p"), (".parquet or .npy",)),
        (("--out", "no/such/p.npy"), ("no directory",)),
        (("--out", "run"), ("a directory",)),
        (("--out", "p.npy", "--what", "embedding"), ("did you mean embeddings",)),
        (("--out", "p.parquet", "--what", "labels"), ("classes",)),
    ],
)
def test_mistakes_are_refused(outgrow: Command, run: Path, args: tuple[str, ...], words: tuple[str, ...]) -> None:
    before = sorted(Path().rglob("*"))
    refused(outgrow("predict", run, *args), *words)
    assert sorted(Path().rglob("*")) == before


def test_a_folder_that_cannot_be_written_to_is_refused_before_anything_is_computed(
    outgrow: Command, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions.os, "access", lambda path, mode: not mode & os.W_OK)
    refused(outgrow("predict", run, "--out", "p.npy"), "no permission")


def test_what_is_no_run_is_refused(outgrow: Command, npz: Path) -> None:
    refused(outgrow("predict", "nowhere", "--out", "p.parquet"), "no run in")
    og.train(og.load(npz), og.nn.GCN(8, 4, 4), epochs=1, out="python-run", progress=False)
    refused(outgrow("predict", "python-run", "--out", "p.parquet"), "og.save_graph")


def test_a_graph_without_features_is_refused(outgrow: Command, run: Path) -> None:
    Path("edges.csv").write_text("0,1\n1,2\n")
    refused(outgrow("predict", run, "--out", "p.parquet", "--graph", "edges.csv"), "needed:  features")


def test_another_graph_needs_no_labels(outgrow: Command, run: Path, tmp_path: Path) -> None:
    other = {name: array for name, array in planted(nodes=100, seed=1).items() if name in ("edge_index", "features")}
    np.savez(tmp_path / "other.npz", **other)
    result = outgrow("predict", run, "--graph", "other.npz", "--out", "other.parquet")
    assert result.code == 0, result.err
    table = parquet.read_table("other.parquet").to_pydict()
    assert len(table["label"]) == 100
    assert set(table["class"]) <= set(NAMES)


@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
def test_a_full_disk_leaves_the_old_file(
    outgrow: Command, run: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*args: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    Path(name).write_bytes(b"old")
    with monkeypatch.context() as patch:
        patch.setattr("pyarrow.parquet.ParquetWriter.write_table", full)
        patch.setattr("outgrow.graph.store.writer.write_fully", full)
        result = outgrow("predict", run, "--out", name)
        assert result.code == 2
        assert "No space left" in result.err
        assert Path(name).read_bytes() == b"old"
        assert not list(Path().glob(".*"))
    assert len(written(outgrow, run, name)) > 0


@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
def test_features_larger_than_memory_stay_on_disk(outgrow: Command, tmp_path: Path, name: str) -> None:
    nodes, columns = 120_000, 800
    np.savez(tmp_path / "wide.npz", **{**planted(), "features": np.ones((240, columns), np.float32)})
    assert outgrow("train", "wide.npz", "--model", "gcn", "--hidden", 8, "--epochs", 1, "--out", "run").code == 0
    written(outgrow, Path("run"), f"small.{name}", "embeddings")
    features = torch.linspace(0, 1, columns).expand(nodes, columns)  # in memory one row, on disk all
    graph = Graph(name="big", topology=random_topology(nodes, 2 * nodes), features=features)
    write_store(graph, tmp_path / "big.store")
    assert (tmp_path / "big.store" / "features.npy").stat().st_size > 360 * MIB
    with PeakMemorySampler() as memory:
        before = resident_bytes()
        result = outgrow("predict", "run", "--graph", "big.store", "--out", name, "--what", "embeddings")
    assert result.code == 0, result.err
    assert memory.peak_bytes - before < 100 * MIB


@pytest.mark.parametrize("workers", [1, 2])
def test_a_limit_of_memory_is_kept_to(workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What chunks and tables may take is a part of what the limit leaves; the outputs stay."""
    monkeypatch.setattr(launch, "run_workers", launch_in_threads)
    graph = og.load("products@0.002")
    torch.manual_seed(0)
    model = og.nn.SAGE(graph.num_features, 8, graph.num_classes).double()
    every, seen = og.predict(graph, model), list[InferenceMemory]()

    def noted(comm: Any, limit: int | None = None) -> InferenceMemory:
        seen.append(right(comm, limit))
        return seen[-1]

    right = InferenceMemory.of_worker
    limit = resident_bytes() + 64 * MIB
    # Other threads allocate and free meanwhile: what is used is given here, so that what is left is known.
    used = patch("outgrow.inference.chunked.used_device_bytes", return_value=limit - 64 * MIB)
    with used, patch.object(InferenceMemory, "of_worker", noted):
        found = og.predict(graph, model, workers=workers, memory=f"{limit}B")
    torch.testing.assert_close(found, every, rtol=1e-10, atol=1e-10)
    limited = [memory for memory in seen if memory.limit is not None]
    assert len(limited) >= workers
    assert all((memory.total_bytes, memory.chunk_bytes) == (32 * MIB, 4 * MIB) for memory in limited)


def test_a_model_without_parameters_predicts() -> None:
    """Two rounds of propagation, each the product with the normalised adjacency."""
    edges = torch.tensor([[0, 1, 1, 2, 2, 3], [1, 0, 2, 1, 3, 2]])
    x = torch.arange(8.0).view(4, 2)
    layers = [og.nn.Layer(og.nn.PropagateConv(2)) for _ in range(2)]
    dense = torch.eye(4).index_put((edges[1], edges[0]), torch.ones(6))
    root = dense.sum(1).rsqrt()
    dense = root[:, None] * dense * root
    logits = og.predict(og.from_arrays(edges, features=x), og.nn.Model(layers))
    torch.testing.assert_close(logits, dense @ dense @ x)
