"""What runs around the kernels stays on the device of its tensors: see `ops.gpu.no_device`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from layer_table import CONVS, EDGE_DIM, IN, RELATIONS, layer_of
from torch import Tensor

from ops.gpu.no_device import real, twins_that_check, whole
from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.pair_edges import PairEdges
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.csc import in_degree, replace_self_loops
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue
from outgrow.ops.linear import affine
from outgrow.ops.memory_pool import LARGE_ROWS
from outgrow.ops.rng import dropout_edges, dropout_sparse
from outgrow.ops.sparse import SparseRows

NODES, EDGES = LARGE_ROWS + 3, 20_000
"""Enough for a CPU to pad rows."""


def leaf(*shape: int) -> Tensor:
    return real(*shape).requires_grad_()


@pytest.fixture(autouse=True)
def called() -> Iterator[list[str]]:
    with twins_that_check() as names:
        yield names


def block() -> Block:
    """A block of which all is known that is read from its edges once, because there is no memory to read it from."""
    edges = Edges(
        indptr=whole(NODES + 1),
        indices=whole(EDGES, dtype=torch.int32),
        num_src=NODES,
        relation=whole(EDGES, dtype=torch.int8),
        weight=real(EDGES),
        features=real(EDGES, EDGE_DIM),
    )
    pairs = replace(edges, indptr=whole(NODES * RELATIONS + 1), num_src=NODES * RELATIONS, cache={})
    edges.cache["relations"] = [0, RELATIONS - 1]
    edges.cache[f"pairs of {RELATIONS} relations"] = pairs, whole(EDGES)
    edges.cache[f"loops of relation {RELATIONS}"] = replace(edges, cache={"relations": [0, RELATIONS]})
    by_pair = PairEdges(
        rows=whole(2 * RELATIONS),
        indptr=whole(2 * RELATIONS + 1),
        indices=whole(EDGES, dtype=torch.int32),
        edge=whole(EDGES, dtype=torch.int32),
        borders=tuple(range(0, 2 * RELATIONS + 1, 2)),
    )
    edges.cache[f"in-edges of {RELATIONS} relations by pair"] = by_pair
    edges.cache[f"out-edges of {RELATIONS} relations by pair"] = by_pair
    edges.cache["edge_index"] = whole(2, EDGES)
    nodes, degree = whole(NODES), real(NODES, dtype=torch.float64)
    return Block(edges=edges, src_nodes=nodes, dst_nodes=nodes, src_degree=degree, dst_degree=degree, key=7)


def backward(out: Tensor, *leaves: Tensor) -> None:
    """Gradients as they come from a sum: all the same number, in one place of memory."""
    assert out.is_meta
    out.sum().backward()
    assert all(each.grad is not None and each.grad.is_meta for each in leaves)


@pytest.mark.parametrize("finish", ["bare", "finished"])
@pytest.mark.parametrize("conv", CONVS)
def test_layers(called: list[str], conv: str, finish: str) -> None:
    layer = layer_of(CONVS[conv](), finish, dtype=torch.float32).to("meta")
    x = leaf(NODES, IN)
    backward(layer(block(), x, x), x, *layer.parameters())
    assert called or conv == "foreign"


@pytest.mark.parametrize("columns", [7, 100])
def test_products(columns: int) -> None:
    x, weight, bias = leaf(NODES, 5), leaf(5, columns), leaf(columns)
    narrow, of_narrow = real(NODES, 3, dtype=torch.bfloat16), leaf(3, columns)
    backward(affine((x, weight), (narrow, of_narrow), bias_O=bias), x, weight, of_narrow, bias)
    backward(affine((narrow, of_narrow)), of_narrow)


@pytest.mark.parametrize("activation", [torch.relu, torch.nn.functional.elu, torch.tanh, None])
def test_what_follows(activation: Callable[[Tensor], Tensor] | None) -> None:
    y, weight, bias, residual = leaf(NODES, 7), leaf(7), leaf(7), leaf(NODES, 7)
    norm, drop = LayerNormSpec(weight, bias, 1e-5), DropoutSpec(whole(NODES), 7, 0.5)
    out = epilogue(y, norm=norm, activation=activation, residual_NF=residual, drop=drop)
    backward(out, y, weight, bias, residual)


def test_weights_alone(called: list[str]) -> None:
    x, weight = real(NODES, 1, 500, dtype=torch.float16), leaf(EDGES, 3)
    backward(WeightedSum()(block(), x, None, weight), weight)
    assert called == ["spmm", "sddmm_dot"]


def test_attention() -> None:
    scores, edge = leaf(6, NODES), leaf(3, EDGES)
    weight = attention_weight(block().edges, scores[:3].T, scores[3:].T, 0.2, edge.T)
    backward(dropout_edges(weight, None, 5, 7, 0.5), scores, edge)


def test_sparse_rows(called: list[str]) -> None:
    rows = SparseRows(indptr=whole(NODES + 1), indices=whole(EDGES), values=real(EDGES), num_columns=9)
    weight = leaf(9, 4)
    backward(dropout_sparse(rows, whole(NODES), 7, 0.5) @ weight, weight)
    assert called == ["write_dropout_sparse", "sparse_product", "sparse_gradient"]


def test_topology(called: list[str]) -> None:
    given = whole(NODES + 1), whole(EDGES), real(EDGES)
    assert in_degree(given[0], given[2]).is_meta
    assert in_degree(given[0], None).is_meta
    assert replace_self_loops(*given) == given
    assert called == ["weighted_in_degree", "replace_self_loops"]
