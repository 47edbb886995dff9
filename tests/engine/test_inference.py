"""Layer-wise inference in chunks against the model on the whole graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
import torch

from outgrow.core.block import Block
from outgrow.engine.inference import infer_full_graph
from outgrow.engine.shard import layer_topology
from outgrow.nn import GAT, GCN, SAGE, Epilogue, GATConv, GCNConv, Layer, Model, SAGEConv, SAGEMaxConv
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.system.process_memory import PeakMemorySampler, resident_bytes
from support import normal, random_topology, topology_of, whole_blocks

MODELS = {
    "gcn": lambda: GCN(6, 8, 3, layers=3, norm=True, residual=True, input_dropout=0.5),
    "sage": lambda: SAGE(6, 8, 3, layers=2),
    "sage-max": lambda: SAGE(6, 8, 3, pool="max"),
    "gat": lambda: GAT(6, 8, 3, heads=2, out_heads=2, attention_dropout=0.5),
    "one-layer": lambda: GCN(6, 8, 3, layers=1),
}
GRAPHS = {
    "random": random_topology(40, 200),
    "weighted": random_topology(40, 200, weighted=True),
    "no-edges": topology_of(5, []),
    "one-node": topology_of(1, [(0, 0)]),
}


def sparse(num_rows: int) -> SparseRows:
    """Every row stores one value in each of the columns 1 and 4."""
    return SparseRows(
        indptr=torch.arange(num_rows + 1) * 2,
        indices=torch.tensor([1, 4], dtype=torch.int32).repeat(num_rows),
        values=normal(2 * num_rows),
        num_columns=6,
    )


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("name", MODELS)
def test_chunks_give_what_the_model_gives(name: str, graph: str) -> None:
    torch.manual_seed(0)
    model, topology = MODELS[name]().double(), GRAPHS[graph]
    x = normal(topology.num_nodes, 6)
    expected = model(whole_blocks(model, topology), x)
    for chunk_bytes in (1, 700, 5000, 1 << 30):
        logits = infer_full_graph(model, topology, x, chunk_bytes=chunk_bytes)
        assert not logits.requires_grad
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [lambda: GCN(6, 8, 3, sparse_input=True), lambda: SAGE(6, 8, 3, sparse_input=True), lambda: GAT(6, 8, 3)],
)
def test_sparse_features(make: Callable[[], Model]) -> None:
    model, topology, rows = make().double(), GRAPHS["random"], sparse(40)
    expected = model(whole_blocks(model, topology), rows)
    for chunk_bytes in (1, 1 << 30):
        logits = infer_full_graph(model, topology, rows, chunk_bytes=chunk_bytes)
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_features_of_another_type_are_converted(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    model, topology = MODELS[name]().double(), GRAPHS["random"]
    x = normal(40, 6).to(dtype)
    expected = infer_full_graph(model, topology, x.double())
    for chunk_bytes in (1, 700, 1 << 30):
        logits = infer_full_graph(model, topology, x, chunk_bytes=chunk_bytes)
        assert logits.dtype == torch.float64
        torch.testing.assert_close(logits, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", MODELS)
def test_some_of_the_layers(name: str) -> None:
    torch.manual_seed(0)
    model, topology = MODELS[name]().double(), GRAPHS["random"]
    x, stages = normal(40, 6), model.layers_list()
    for split in range(1, len(stages)):
        between = infer_full_graph(model, topology, x, layers=stages[:split])
        assert between.shape == (40, 8)
        logits = infer_full_graph(model, topology, between, layers=stages[split:])
        torch.testing.assert_close(logits, infer_full_graph(model, topology, x), rtol=1e-12, atol=1e-12)


MAPPED = {
    "project-first": (lambda: SAGEConv(1000, 8), np.float32),
    "aggregate-first": (lambda: SAGEConv(1000, 8, project_first=False), np.float32),
    "half, aggregate-first": (lambda: SAGEConv(1000, 8, project_first=False), np.float16),
    "attention, of another type": (lambda: GATConv(1000, 8, 2), np.float64),
    "maximum, of another type": (lambda: SAGEMaxConv(1000, 8), np.float64),
}


@pytest.fixture(scope="module")
def fresh_process() -> Iterator[ProcessPoolExecutor]:
    """A process that has run no other tests, whose allocators keep nothing of them."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def measure_growth(name: str, path: Path) -> tuple[int, int]:
    """Infer from features in a new file at a path; by how many bytes memory grew, and the bytes of the file."""
    conv, dtype = MAPPED[name]
    model = Model([Layer(conv(), Epilogue(norm=True)), Layer(GCNConv(8, 3))])
    topology = random_topology(40_000, 200_000)
    file = np.lib.format.open_memmap(path, "w+", dtype, (40_000, 1000))
    features = torch.from_numpy(file)
    infer_full_graph(model, GRAPHS["random"], features[:40])  # compiles
    before = resident_bytes()
    with PeakMemorySampler() as memory:
        infer_full_graph(model, topology, features, chunk_bytes=8 << 20)
    return memory.peak_bytes - before, file.nbytes


@pytest.mark.parametrize("name", MAPPED)
def test_mapped_features_are_never_in_memory_whole(
    name: str, tmp_path: Path, fresh_process: ProcessPoolExecutor
) -> None:
    growth, file_bytes = fresh_process.submit(measure_growth, name, tmp_path / "features.npy").result(120)
    assert growth < 30 << 20 < file_bytes // 2


def test_chunks_are_as_small_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    cut = Block.slice_destinations
    monkeypatch.setattr(Block, "slice_destinations", lambda t, a, b: (made.append(b - a), cut(t, a, b))[1])
    model = GCN(6, 8, 3, layers=1).double()
    row_bytes, edge_bytes = (6 + 3 + 2 * 3) * 8, 8 + 8
    topology = topology_of(40, [(v, (v + 1) % 40) for v in range(40)])  # and a self-loop for each node
    infer_full_graph(model, topology, normal(40, 6), chunk_bytes=10 * (row_bytes + 2 * edge_bytes))
    assert made == [10, 10, 10, 10]


@pytest.mark.parametrize("heads", [1, 4])
def test_edges_count(heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk holds less than asked, edges included, or one node."""
    made: list[tuple[int, int]] = []
    cut = Block.slice_destinations
    monkeypatch.setattr(Block, "slice_destinations", lambda t, a, b: (made.append((a, b)), cut(t, a, b))[1])
    topology = topology_of(60, [(u, v) for v in range(60) for u in range(59 if v == 20 else v % 7)])
    model = GAT(6, 8, 3, layers=1, out_heads=heads).double()
    infer_full_graph(model, topology, normal(60, 6), chunk_bytes=3000)
    row_bytes, edge_bytes = (6 + 3 * heads + 2 * 3) * 8, 8 * heads + 8
    sizes = [(b - a) * row_bytes + int(topology.with_self_loops.indptr[[a, b]].diff()) * edge_bytes for a, b in made]
    assert [a for a, _ in made] == [0, *(b for _, b in made[:-1])]
    assert made[-1][1] == 60
    assert all(size <= 3000 or b - a == 1 for size, (a, b) in zip(sizes, made, strict=True))
    assert len(made) < 30


def test_the_graph_as_a_layer_wants_it() -> None:
    topology = GRAPHS["random"]
    assert layer_topology(topology, SAGE(6, 8, 3).layers_list()[0]) is topology
    assert layer_topology(topology, GCN(6, 8, 3).layers_list()[0]) is topology.with_self_loops


def test_blocks_of_equal_layers_are_one() -> None:
    blocks = whole_blocks(GCN(6, 8, 3, layers=3), GRAPHS["random"])
    assert len(blocks) == 3
    assert blocks[0] is blocks[1] is blocks[2]
