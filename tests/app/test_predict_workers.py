"""Prediction by several workers, in processes or, where memory is made scarce, in threads: as by one worker."""

from __future__ import annotations

import dataclasses
import errno
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from layer_table import RELATIONS
from pyarrow import parquet
from tests.app.conftest import Command, planted

import outgrow as og
from outgrow.app import predictions
from outgrow.app.output_workers import PredictionJob
from outgrow.graph.graph import Graph, NodeType
from outgrow.graph.store.reader import write_store
from outgrow.inference.chunked import InferenceMemory
from outgrow.nn.decoder import Dot
from outgrow.nn.model import Model
from outgrow.ops.csc import make_edge_index
from outgrow.runtime.distributed import launch
from outgrow.runtime.system.process_memory import PeakMemorySampler, resident_bytes
from suites.cases import Case, features_of, model_of
from suites.exactness import GRAPHS
from support import disk_folder, random_topology
from thread_group import launch_in_threads

SCARCE = InferenceMemory(1, 4000, 100)
"""Several chunks of a layer, and rows of layers and of results in files."""
MIB = 1 << 20
CASES = [
    Case("gcn", "weighted"),
    Case("sage-project-first", "isolated"),
    Case("gat-concatenated", "weighted"),
    Case("gat-concatenated", features="sparse"),
    Case("decoupled", "weighted"),
    Case("film-with-relations", "weighted"),
    Case("foreign", "no-edges"),
    Case("gcn", features="half", dtype=torch.float32),
]


@pytest.fixture
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers are threads of this process, where what is patched is patched for them too."""
    monkeypatch.setenv("TMPDIR", str(disk_folder()))
    monkeypatch.setattr(launch, "run_workers", launch_in_threads)


@pytest.fixture
def run(outgrow: Command, tmp_path: Path) -> Path:
    """A small run."""
    np.savez(tmp_path / "planted.npz", **planted())
    trained = outgrow("train", "planted.npz", "--model", "sage", "--hidden", 16, "--epochs", 2, "--out", "run")
    assert trained.code == 0, trained.err
    return tmp_path / "run"


def graph_of(case: Case) -> Graph:
    topology = GRAPHS[case.graph]
    sizes = {"num_nodes": topology.num_nodes, "relation": topology.relation, "weight": topology.weight}
    graph = og.from_arrays(make_edge_index(topology.block.edges), **sizes)
    names = tuple(map(str, range(RELATIONS)))
    return dataclasses.replace(graph, features=features_of(case, topology.num_nodes), relation_names=names)


def scarcity(scarce: bool) -> Any:
    return patch.object(InferenceMemory, "of_worker", lambda *given: SCARCE) if scarce else nullcontext()


@pytest.mark.usefixtures("threads")
@pytest.mark.filterwarnings("ignore::outgrow.ModelWarning", "ignore::outgrow.DataWarning")
@pytest.mark.parametrize(
    ("case", "scarce"),
    [
        (CASES[0], False),
        *((case, True) for case in CASES[::2]),
        *(pytest.param(case, False, marks=pytest.mark.slow) for case in CASES[1:]),
        *(pytest.param(case, True, marks=pytest.mark.slow) for case in CASES[1::2]),
    ],
    ids=str,
)
def test_all_and_some_nodes_are_as_by_one_worker(case: Case, scarce: bool) -> None:
    graph, model = graph_of(case), model_of(case)
    every, rows = og.predict(graph, model), og.embed(graph, model)
    nodes = [3, 1, 3, graph.num_nodes - 1, 0]
    close = {"rtol": case.tolerance, "atol": case.tolerance}
    with scarcity(scarce):
        for workers in (2, 3):
            torch.testing.assert_close(og.predict(graph, model, workers=workers), every, **close)
            torch.testing.assert_close(og.predict(graph, model, nodes, workers=workers), every[nodes], **close)
            torch.testing.assert_close(og.embed(graph, model, nodes, workers=workers), rows[nodes], **close)
        assert og.predict(graph, model, [], workers=2).shape == (0, every.shape[1])


@pytest.mark.usefixtures("threads")
def test_types_of_nodes_and_links(tmp_path: Path) -> None:
    arrays = planted()
    plain = og.from_arrays(arrays["edge_index"], features=arrays["features"], labels=arrays["label"])
    types = (
        NodeType(name="a", first=0, last=100, num_columns=3),
        NodeType(name="b", first=100, last=240, num_columns=5),
    )
    write_store(dataclasses.replace(plain, node_types=types), tmp_path / "typed")
    graph = og.load(tmp_path / "typed")
    model = Model(og.nn.GCN(8, 6, 4).double().layers_list(), decoder=Dot())
    torch.testing.assert_close(og.embed(graph, model, workers=2), og.embed(graph, model), rtol=1e-10, atol=1e-10)
    with pytest.raises(og.InputError, match="link models"):
        og.predict(graph, model, workers=2)


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize("workers", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_processes_give_what_one_worker_gives(workers: int, tmp_path: Path, scratch: Path) -> None:
    write_store(og.load("products@0.002"), tmp_path / "store")
    graph = og.load(tmp_path / "store")
    torch.manual_seed(0)
    model = og.nn.GCN(graph.num_features, 8, graph.num_classes).double()
    found = og.predict(graph, model, workers=workers)
    torch.testing.assert_close(found, og.predict(graph, model), rtol=1e-10, atol=1e-10)


@pytest.mark.usefixtures("pooled")
def test_more_workers_than_nodes(scratch: Path) -> None:
    graph = og.from_arrays(torch.tensor([[0, 1], [1, 0]]), features=torch.ones(2, 3), labels=torch.tensor([0, 1]))
    model = og.nn.GCN(3, 4, 2)
    torch.testing.assert_close(og.predict(graph, model, workers=3), og.predict(graph, model))
    torch.testing.assert_close(og.embed(graph, model, [1], workers=4), og.embed(graph, model)[1:])


@pytest.mark.usefixtures("pooled")
@pytest.mark.parametrize(
    "what", ["classes", "embeddings", *(pytest.param(each, marks=pytest.mark.slow) for each in predictions.WHAT[1:3])]
)
def test_files_of_several_workers(outgrow: Command, run: Path, scratch: Path, what: str) -> None:
    nodes = [5, 200, 5, 17]
    Path("nodes.txt").write_text("\n".join(map(str, nodes)))
    for given in ((), ("--nodes", "nodes.txt")):
        for name in ("p.npy", "p.parquet"):
            answers: list[Any] = []
            for workers in (1, 2):
                made = outgrow("predict", run, "--what", what, "--workers", workers, "--out", name, *given)
                assert made.code == 0, made.err
                assert not list(Path().glob(".*"))
                answers.append(np.load(name) if name == "p.npy" else parquet.read_table(name))
            one, two = answers
            if name == "p.npy":
                assert (one.dtype, one.shape) == (two.dtype, two.shape)
                np.testing.assert_allclose(two, one, rtol=1e-5, atol=1e-6)
                continue
            assert one.schema == two.schema
            assert two["node"].to_pylist() == (nodes if given else [*range(240)])
            assert one["label"] == two["label"]
            last = one.column_names[-1]
            np.testing.assert_allclose(*(np.array(each[last].to_pylist()) for each in answers), rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("workers", [1, 2])
def test_groups_of_rows_do_not_depend_on_who_computes_them(
    outgrow: Command, run: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "_CHUNK_BYTES", 5000)
    with scarcity(True):
        assert outgrow("predict", run, "--workers", workers, "--out", "p.parquet").code == 0
    file = parquet.ParquetFile("p.parquet")
    sizes = [file.metadata.row_group(number).num_rows for number in range(file.num_row_groups)]
    assert sizes == [102, 102, 36]  # of 4 classes, in 4 bytes, up to three times


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--memory", "1MiB"), ("so little memory", "of which the worker holds", "a larger memory")),
        (("--memory", "much"), ("'much' is not a size", "such as 512MiB")),
        (("--memory", "0GiB"), ("in no memory",)),
        (("--workers", 0), ("the number of workers", "at least 1", "0")),
        (("--workers", -1), ("at least 1", "-1")),
        (("--workers", 10_000), ("too many workers",)),
        (("--workers", 2, "--device", "tpu"), ("device", "tpu")),
        (("--device", "tpu"), ("device", "tpu")),
        (("--workers", 2, "--nodes", "nodes.txt"), ("no such node", "240")),
    ],
    ids=str,
)
def test_mistakes(outgrow: Command, run: Path, options: tuple[object, ...], words: tuple[str, ...]) -> None:
    Path("nodes.txt").write_text("1\n240\n")
    before = sorted(Path().rglob("*"))
    made = outgrow("predict", run, "--out", "p.npy", *options)
    assert made.code == 2, made.err
    assert all(word in made.err for word in ("needed:", "got:", "repair:", *words))
    assert "Traceback" not in made.err
    assert sorted(Path().rglob("*")) == before


@pytest.mark.usefixtures("pooled")
@pytest.mark.skipif(torch.cuda.device_count() > 1, reason="there are devices for all workers")
def test_workers_without_a_device_each(outgrow: Command, run: Path, scratch: Path) -> None:
    made = outgrow("predict", run, "--out", "p.npy", "--workers", 2, "--device", "cuda")
    assert made.code == 2, made.err
    assert "fewer CUDA devices" in made.err
    assert not list(Path().glob("*p.npy*"))


@pytest.mark.parametrize("workers", [0, -1, 1.5, True, "two"])
def test_numbers_of_workers_that_are_none(workers: Any) -> None:
    graph = og.load("products@0.002")
    with pytest.raises(og.InputError, match=r"needed: (.|\n)*got: (.|\n)*repair: "):
        og.predict(graph, og.nn.SAGE(graph.num_features, 4, graph.num_classes), workers=workers)


def test_torchrun_is_refused(outgrow: Command, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "localhost", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(name, value)
    made = outgrow("predict", run, "--out", "p.npy")
    assert made.code == 2
    assert "does not run under torchrun" in made.err
    graph = og.load("planted.npz")
    model = og.nn.GCN(8, 4, 4)
    with pytest.raises(og.InputError, match="torchrun"):
        og.predict(graph, model, workers=2)
    assert og.predict(graph, model).shape == (240, 4)  # each of its processes may compute alone


@pytest.fixture(params=["refused at first", "full later"])
def full_disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(*given: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    place = (
        "os.posix_fallocate"
        if request.param == "refused at first"
        else ("outgrow.runtime.storage.row_file.pwrite_from")
    )
    with monkeypatch.context() as context:
        context.setattr(place, fail)
        yield


@pytest.mark.usefixtures("threads", "run", "full_disk")
@pytest.mark.parametrize("name", ["p.npy", "p.parquet"])
def test_a_full_disk_leaves_the_old_file(outgrow: Command, name: str) -> None:
    Path(name).write_bytes(b"old")
    made = outgrow("predict", "run", "--out", name, "--workers", 2)
    assert made.code == 2, made.err
    assert "No space left" in made.err
    assert Path(name).read_bytes() == b"old"
    assert not list(Path().glob(".*"))


@pytest.mark.parametrize("workers", [1, 2])
def test_too_little_room_is_told_at_once(
    outgrow: Command, run: Path, workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})
    monkeypatch.setattr("outgrow.app.prediction_run.shutil.disk_usage", lambda path: usage)
    made = outgrow("predict", run, "--out", "p.npy", "--workers", workers)
    assert made.code == 2, made.err
    assert "1,920 bytes are needed, 1,000 are free" in made.err
    assert not list(Path().glob("*p.npy*"))


@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("p.npy", ()),
        ("p.npy", ("--workers", 2)),
        pytest.param("p.parquet", (), marks=pytest.mark.slow),
        pytest.param("p.npy", ("--nodes", "nodes.npy"), marks=pytest.mark.slow),
        pytest.param("p.parquet", ("--workers", 2), marks=pytest.mark.slow),
        pytest.param("p.parquet", ("--what", "embeddings", "--nodes", "nodes.npy"), marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_outputs_larger_than_memory_go_to_the_disk(
    outgrow: Command, tmp_path: Path, name: str, options: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predictions, "_CHUNK_BYTES", 4 * MIB)
    nodes, classes = 60_000, 600
    label = np.arange(240) * classes // 240
    np.savez(tmp_path / "wide.npz", **{**planted(), "label": label, "class_names": [*map(str, range(classes))]})
    assert outgrow("train", "wide.npz", "--model", "gcn", "--hidden", 600, "--epochs", 1, "--out", "run").code == 0
    features = torch.linspace(0, 1, 8).expand(nodes, 8)
    write_store(Graph(name="big", topology=random_topology(nodes, nodes), features=features), tmp_path / "big.store")
    np.save("nodes.npy", np.arange(nodes)[::-1])
    given = ("--what", "logits", *options)
    scarce = patch.object(InferenceMemory, "of_worker", lambda *given: InferenceMemory(1, MIB, MIB))
    with scarce, PeakMemorySampler() as memory:
        before = resident_bytes()
        made = outgrow("predict", "run", "--graph", "big.store", "--out", name, *given)
    assert made.code == 0, made.err
    assert (len(np.load(name, mmap_mode="r")) if name == "p.npy" else parquet.read_metadata(name).num_rows) == nodes
    assert memory.peak_bytes - before < 100 * MIB  # the outputs are 137 MiB


MUTANTS: dict[str, tuple[str, Callable[[], AbstractContextManager[object]]]] = {
    "workers_begin_with_the_first_row": (
        "Every worker writes its rows from the first one of the file on.",
        lambda: patch.object(PredictionJob, "_find_first_row", lambda self, shard: 0),
    ),
    "rows_are_not_put_in_order": (
        "Each row of the answer is the first one that was computed.",
        lambda: patch.object(torch, "index_select", lambda table, axis, order, out: out.copy_(table[:1])),
    ),
}


@pytest.mark.mutant
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    graph, model, nodes = graph_of(CASES[0]), model_of(CASES[0]), [39, 3, 3]
    expected = og.predict(graph, model)[nodes]
    with MUTANTS[name][1]():
        assert not torch.allclose(og.predict(graph, model, nodes, workers=2), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("scarce", [False, True])
def test_on_a_device(scarce: bool) -> None:
    graph, model = graph_of(CASES[0]), model_of(CASES[0])
    expected = og.predict(graph, model, device="cpu")
    with scarcity(scarce):
        found = og.predict(graph, model, device="cuda")
    assert not found.is_cuda
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10)
