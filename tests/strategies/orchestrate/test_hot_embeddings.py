"""What was made of hot nodes: found by node, moved, counted, and turned into rows with a gradient."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from outgrow.core.ledger import Kind, Link
from outgrow.nn import Epilogue, GCNConv, Layer, SAGEConv
from outgrow.nn.layer import Features
from outgrow.ops.rng import dropout
from outgrow.ops.sparse import SparseRows
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.strategies.orchestrate.hot_embeddings import HotEmbeddings, HotEmbeddingTable, compute_hot_output
from support import normal

NODES = 12


def rows_of(nodes: list[int], version: int, *, target: Features | None = None) -> HotEmbeddings:
    """Rows that say whose they are."""
    values = torch.tensor(nodes, dtype=torch.float64)[:, None]
    of = torch.tensor(nodes, dtype=torch.int64)
    return HotEmbeddings(of, torch.full((len(nodes),), version), values, (10 * values)[:, None], target)


@st.composite
def dealt(draw: st.DrawFn) -> tuple[list[list[int]], list[int]]:
    """Distinct nodes in several parts, some empty, and some of the nodes."""
    nodes = draw(st.permutations(range(NODES)))[: draw(st.integers(1, NODES))]
    cuts = sorted(draw(st.lists(st.integers(0, len(nodes)), max_size=3)))
    parts = [nodes[a:b] for a, b in zip([0, *cuts], [*cuts, len(nodes)], strict=True)]
    return parts, draw(st.lists(st.sampled_from(nodes), min_size=1, unique=True))


@given(dealt())
def test_rows_are_found_by_node(given_: tuple[list[list[int]], list[int]]) -> None:
    parts, asked = given_
    table = HotEmbeddingTable([rows_of(part, version) for version, part in enumerate(parts)], NODES)
    found = table.select_nodes(torch.tensor(asked))
    assert found.embedding is not None
    assert found.aggregate is not None
    assert found.nodes.tolist() == asked == found.embedding[:, 0].tolist()
    assert found.aggregate[:, 0, 0].tolist() == [10 * node for node in asked]
    assert found.versions.tolist() == [next(v for v, part in enumerate(parts) if node in part) for node in asked]
    assert found.target is None


def test_a_node_that_is_not_there_is_not_found() -> None:
    table = HotEmbeddingTable([rows_of([3, 5], 0), rows_of([], 1)], NODES)
    with pytest.raises(AssertionError):
        table.select_nodes(torch.tensor([3, 4]))


@pytest.mark.parametrize("empty", [False, True])
def test_inputs_may_be_sparse(empty: bool) -> None:
    dense = normal(4, 3, seed=1) * (normal(4, 3, seed=2) > 0)
    parts = [[7, 2], [], [9, 0]] if not empty else [[], [7, 2, 9, 0]]
    begins = [sum(len(part) for part in parts[:number]) for number in range(len(parts))]
    targets = [sparse(dense[begin : begin + len(part)]) for begin, part in zip(begins, parts, strict=True)]
    table = HotEmbeddingTable(
        [rows_of(part, 0, target=target) for part, target in zip(parts, targets, strict=True)], NODES
    )
    found = table.select_nodes(torch.tensor([0, 7, 2])).target
    assert isinstance(found, SparseRows)
    assert torch.equal(found @ torch.eye(3, dtype=torch.float64), dense[[3, 0, 1]])


def sparse(dense: Tensor) -> SparseRows:
    stored = dense != 0
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), stored.sum(1).cumsum(0)])
    return SparseRows(indptr=ends, indices=stored.nonzero()[:, 1].int(), values=dense[stored], num_columns=3)


def test_what_crosses_to_the_device_is_counted() -> None:
    comm, rows = SingleProcessComm(), rows_of([1, 2, 3], 0, target=normal(3, 5))
    moved = rows.move_to_device(comm)
    assert moved.embedding is not None
    assert torch.equal(moved.embedding, rows.embedding)  # type: ignore[arg-type]
    crossed = {
        (Link.HOST_TO_DEVICE, Kind.ACTIVATIONS): 2 * 3 * 8,
        (Link.HOST_TO_DEVICE, Kind.FEATURES): 3 * 5 * 8,
    }
    assert dict(comm.ledger.bytes_by_link) == crossed
    nothing = SingleProcessComm()
    rows._replace(embedding=None, aggregate=None, target=None).move_to_device(nothing)
    assert dict(nothing.ledger.bytes_by_link) == {}


@pytest.mark.parametrize("key", [None, 5])
@pytest.mark.parametrize("conv", [GCNConv, SAGEConv])
def test_values_are_stale_and_gradients_fresh(conv: type[GCNConv | SAGEConv], key: int | None) -> None:
    torch.manual_seed(1)
    layer = Layer(
        conv(4, 4, project_first=False), Epilogue(norm=True, activation=nn.functional.elu, dropout=0.4)
    ).double()
    nodes, own, aggregate, stale = torch.tensor([4, 1, 8]), normal(3, 4), normal(3, 1, 4, seed=1), normal(3, 4, seed=2)
    versions = torch.tensor([9, 6, -2])
    rows = HotEmbeddings(nodes, versions, stale, aggregate, own if layer.reads_target else None)
    # After 9 updates rows of version 9 are new, and count whole.
    probe, weight = normal(3, 4, seed=3), torch.tensor([1, 1 / 4, 1 / 12], dtype=torch.float64)[:, None]
    fresh = layer.update_nodes(own, aggregate, nodes, key)
    expected = torch.autograd.grad((fresh * weight * probe).sum(), [*layer.parameters()])
    found = compute_hot_output(layer, rows, key, 9)
    assert torch.allclose(found, stale if key is None else dropout(stale, nodes, key, 0.4), atol=1e-14)
    for mine, theirs in zip(torch.autograd.grad((found * probe).sum(), [*layer.parameters()]), expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)
    assert torch.allclose(compute_hot_output(layer, rows._replace(embedding=None), key, 9), fresh, atol=1e-14)
    constant = compute_hot_output(layer, rows._replace(aggregate=None, target=None), key, 9)
    assert not constant.requires_grad
    assert torch.allclose(constant, found, atol=1e-14)
