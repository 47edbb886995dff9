"""`og.NeighborLoader`: its batches are those of training, and PyG's models compute on them."""

from __future__ import annotations

import subprocess
import sys
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import outgrow as og
from outgrow.core.errors import InputError
from outgrow.engine.batches import BatchConfig
from outgrow.graph.sampling.edge_sampler import SAMPLERS
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from support import normal, random_topology, with_edge_features, with_relations

NODES = 60
SHARES = """
import sys, torch, torch.distributed as dist
import outgrow as og
rank = int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
loader = og.NeighborLoader(og.load(sys.argv[1]), "train", 16, [3, 3], seed=5)
own = [batch.n_id[: batch.batch_size].tolist() for batch in loader]
every = [None, None]
dist.all_gather_object(every, own)
if rank == 0:
    whole = og.NeighborLoader(og.load(sys.argv[1]), "train", 16, [3, 3], seed=5, rank=0, world_size=1)
    expected = [batch.n_id[: batch.batch_size].tolist() for batch in whole]
    assert [first + second for first, second in zip(*every, strict=True)] == expected
# Together: a process that ends while the other one still uses the group may be aborted by threads of gloo.
dist.barrier()
dist.destroy_process_group()
"""


def graph_of(*, weighted: bool = False, relations: int = 0) -> og.Graph:
    topology = random_topology(NODES, 700, weighted=weighted)
    topology = with_relations(topology, relations) if relations else topology
    nodes = torch.arange(NODES)
    return og.Graph(
        name="random",
        topology=topology,
        features=normal(NODES, 5, dtype=torch.float32),
        labels=nodes % 3,
        split=og.Split(train=nodes[:40], val=nodes[40:50], test=nodes[50:]),
        num_classes=3,
    )


def rows_of(batch: Any, row: int) -> list[int]:
    return batch.e_id[batch.edge_index[1] == row].tolist()


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("weighted", [False, True])
def test_each_node_keeps_the_edges_of_its_hop_in_training(sampler: str, weighted: bool) -> None:
    graph = graph_of(weighted=True)
    if weighted and sampler == "fastgcn":
        pytest.skip("draws nodes by themselves")
    loader = og.NeighborLoader(graph, "train", 16, (4, 3), sampler=sampler, weighted=weighted, seed=3)
    batches = BatchConfig(size=16, fanout=(4, 3), weighted=weighted, sampler=sampler)
    seeds = batches.seeds_of_epoch(graph.split.train, 3, 1)
    blocks_of = NeighborSampler([graph.topology] * 2, (4, 3), 3, weighted=weighted, sampler=sampler)
    everything = graph.edge_index
    assert len(loader) == 3
    for step, (batch, expected) in enumerate(zip(loader, seeds, strict=True)):
        src, dst = batch.n_id[batch.edge_index]
        assert torch.equal(batch.n_id[: batch.batch_size], expected)
        assert torch.equal(graph.split.train[batch.input_id], expected)
        assert torch.equal(torch.stack([src, dst]), everything[:, batch.e_id])
        assert len(batch.n_id.unique()) == len(batch.n_id)
        assert torch.equal(batch.x, graph.features[batch.n_id])
        assert torch.equal(batch.y, graph.labels[batch.n_id])
        assert torch.equal(batch.edge_weight, graph.topology.weight[batch.e_id])
        below, last = blocks_of.sample_blocks(expected, 1, step)
        reached = len(last.src_nodes)
        assert torch.equal(batch.n_id[:reached], last.src_nodes)
        for block, rows in ((last, range(len(expected))), (below, range(len(expected), reached))):
            for row in rows:
                first, end = block.edges.indptr[row : row + 2].tolist()
                assert rows_of(batch, row) == block.edge_ids[first:end].tolist()


def test_all_neighbours_give_outputs_of_the_whole_graph() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from torch_geometric.nn import GATConv, GINConv, SAGEConv

    graph = graph_of()
    torch.manual_seed(0)
    for make in (SAGEConv, GATConv, lambda given, wanted: GINConv(torch.nn.Linear(given, wanted))):
        first, second = make(5, 8), make(8, 3)
        whole = second(first(graph.x, graph.edge_index).relu(), graph.edge_index)
        for batch in og.NeighborLoader(graph, "val", 4, num_neighbors=[-1, -1]):
            out = second(first(batch.x, batch.edge_index).relu(), batch.edge_index)[: batch.batch_size]
            assert torch.allclose(out, whole[batch.n_id[: batch.batch_size]], atol=1e-5)


def test_blocks_give_the_logits_of_a_model() -> None:
    graph = graph_of()
    model = og.nn.GCN(5, 8, 3)
    expected = og.predict(graph, model)
    loader = og.NeighborLoader(graph, None, 25, (-1, -1), output="block", model=model)
    assert len(loader) == 3
    for batch in loader:
        assert torch.allclose(model(batch.blocks, batch.x), expected[batch.seeds], atol=1e-5)
        assert torch.equal(batch.y, graph.labels[batch.seeds])


def test_batches_have_the_features_of_their_edges() -> None:
    """Half precision is widened for the layers of PyG, and blocks carry them as stored to layers that read them."""
    graph = graph_of()
    graph = replace(graph, topology=with_edge_features(graph.topology, dtype=torch.float16))
    assert graph.edge_features is not None
    for batch in og.NeighborLoader(graph, "train", 16, (4, 3)):
        assert torch.equal(batch.edge_attr, graph.edge_features[batch.e_id].float())
    for made in og.NeighborLoader(graph, "train", 16, (4, 3), output="block"):
        for block in made.blocks:
            assert torch.equal(block.edge_features, graph.edge_features[block.edge_ids])


def test_data_of_pyg_with_names_of_pyg() -> None:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        from torch_geometric.data import Data

    graph = graph_of(relations=2)
    data = Data(x=graph.x, y=graph.y, edge_index=graph.edge_index, train_mask=graph.train_mask)
    data.edge_type = graph.topology.relation
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True}
    loader = og.NeighborLoader(data, input_nodes=data.train_mask, num_neighbors=[4, 3], batch_size=16, **options)
    own = og.NeighborLoader(og.load(data), "train", 16, (4, 3))
    for batch, expected in zip(loader, own, strict=True):
        assert batch.to_dict().keys() == expected.to_dict().keys()
        assert all(torch.equal(batch[name], expected[name]) for name in ("n_id", "e_id", "edge_index", "edge_type"))


def test_epochs_are_keyed_and_iterations_independent() -> None:
    graph = graph_of()
    loader = og.NeighborLoader(graph, "train", 16, (4, 3), threads=2)
    first, second = ([batch.e_id.tolist() for batch in loader] for _ in range(2))
    assert first != second
    loader.set_epoch(1)
    together = [(one.e_id.tolist(), other.e_id.tolist()) for one, other in zip(loader, loader, strict=True)]
    assert together == list(zip(first, second, strict=True))
    for _ in loader:
        break
    assert not [each for each in threading.enumerate() if each.name.startswith("outgrow-ahead")]
    ordered = og.NeighborLoader(graph, [7, 3, 5], 2, (1,), shuffle=False, drop_last=True)
    assert [batch.n_id[:2].tolist() for batch in ordered] == [[7, 3]]
    assert len(ordered) == 1


def test_features_of_a_store_are_read_in_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = graph_of()
    og.save_graph(graph, tmp_path / "store")
    monkeypatch.setattr("outgrow.engine.features.assembly.available_bytes", lambda: 1)
    for batch in og.NeighborLoader(og.load(tmp_path / "store"), "train", 16, (4, 3)):
        assert torch.equal(batch.x, graph.features[batch.n_id])


def test_two_processes_share_every_batch(tmp_path: Path) -> None:
    og.save_graph(graph_of(), tmp_path / "store")
    words = [sys.executable, "-c", SHARES, str(tmp_path / "store"), str(tmp_path / "group")]
    processes = [subprocess.Popen([*words, str(rank)]) for rank in range(2)]
    assert [process.wait(60) for process in processes] == [0, 0]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seeds": [3, 60]}, "no such node"),
        ({"seeds": [3, 4, 3]}, "repeated"),
        ({"seeds": "tran"}, "train"),
        ({"fanout": (0,)}, "no fan-outs"),
        ({"output": "dgl"}, "output"),
        ({"batch_size": 0}, "batch_size"),
        ({"rank": 2, "world_size": 2}, "share"),
        ({"model": "sage"}, "block"),
        ({"model": "sage", "output": "block", "fanout": (5,)}, "fan-out"),
        ({"fanout": (5,), "num_neighbors": (5,)}, "twice"),
    ],
)
def test_bad_input(options: dict[str, Any], message: str) -> None:
    if "model" in options:
        options = {**options, "model": og.nn.SAGE(5, 8, 3)}
    with pytest.raises(InputError, match=message):
        og.NeighborLoader(graph_of(), **options)
