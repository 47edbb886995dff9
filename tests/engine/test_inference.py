"""Layer-wise inference in chunks against the model on the whole graph."""

from __future__ import annotations

import pytest
import torch

from outgrow.core.block import Block
from outgrow.engine.inference import infer
from outgrow.engine.share import view_of
from outgrow.nn import GAT, GCN, SAGE, Model
from outgrow.ops.sparse import SparseRows
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
        logits = infer(model, topology, x, chunk_bytes=chunk_bytes)
        assert not logits.requires_grad
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("model", [GCN(6, 8, 3, sparse_input=True), SAGE(6, 8, 3, sparse_input=True), GAT(6, 8, 3)])
def test_sparse_features(model: Model) -> None:
    topology, rows = GRAPHS["random"], sparse(40)
    expected = model.double()(whole_blocks(model, topology), rows)
    for chunk_bytes in (1, 1 << 30):
        logits = infer(model, topology, rows, chunk_bytes=chunk_bytes)
        torch.testing.assert_close(logits, expected.detach(), rtol=1e-12, atol=1e-12)


def test_chunks_are_as_small_as_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[int] = []
    cut = Block.destinations
    monkeypatch.setattr(Block, "destinations", lambda t, a, b: (made.append(b - a), cut(t, a, b))[1])
    model = GCN(6, 8, 3, layers=1).double()
    row_bytes = (3 + 2 * 3) * 8
    infer(model, GRAPHS["random"], normal(40, 6), chunk_bytes=10 * row_bytes)
    assert made == [10, 10, 10, 10]


def test_the_graph_as_a_layer_wants_it() -> None:
    topology = GRAPHS["random"]
    assert view_of(topology, SAGE(6, 8, 3).stages()[0]) is topology
    assert view_of(topology, GCN(6, 8, 3).stages()[0]) is topology.with_self_loops


def test_blocks_of_equal_layers_are_one() -> None:
    blocks = whole_blocks(GCN(6, 8, 3, layers=3), GRAPHS["random"])
    assert len(blocks) == 3
    assert blocks[0] is blocks[1] is blocks[2]
