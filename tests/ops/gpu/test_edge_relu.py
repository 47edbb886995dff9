"""Twins of the kernels that read features of edges, in small chunks, against the kernels of the CPU."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import replace
from types import ModuleType

import pytest
import torch

from outgrow.core.block import Edges
from outgrow.ops import edge_feature_sums, edge_features
from outgrow.ops.aggregation import edge_outer, edge_relu
from outgrow.ops.aggregation.edge_relu import EdgeSums
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_features import read_edge_features
from support import normal, random_topology

LIMIT = 1e-12


@pytest.fixture(autouse=True)
def small_chunks(twin: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("outgrow.ops.gpu.edge_chunks._NUMBERS_AT_ONCE", 40)
    monkeypatch.setattr("outgrow.ops.gpu.edge_features._EDGES_AT_ONCE", 7)


@pytest.fixture(params=["numbers", "half", "codes"])
def edges(request: pytest.FixtureRequest) -> Edges:
    """Edges with features that are 3 inputs."""
    given = random_topology(9, 20).block.edges
    values, sizes = normal(given.num_edges, 3, seed=4), ()
    if request.param == "half":
        values = values.half()
    if request.param == "codes":
        codes = torch.stack([torch.arange(given.num_edges) % 3 - 1, torch.zeros(given.num_edges)], 1).to(torch.int16)
        return replace(given, features=codes, feature_sizes=(2, 1))
    return replace(given, features=values, feature_sizes=sizes)


def assert_twins(
    call: Callable[..., None], name: str, ours: ModuleType, *given: object, shapes: tuple[tuple[int, ...], ...]
) -> None:
    """The twin writes its last arguments as the kernel of the CPU does."""
    twin = importlib.import_module(f"outgrow.ops.gpu.{ours.__name__.rpartition('.')[2]}")
    expected, mine = ([torch.full(shape, torch.nan, dtype=torch.float64) for shape in shapes] for _ in range(2))
    getattr(ours, name)(*given, *expected)
    call(getattr(twin, name), *given, *mine)
    for one, other in zip(mine, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=LIMIT, atol=LIMIT)


@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_relus(call: Callable[..., None], edges: Edges, slope: float) -> None:
    heads, width, count = 2, 6, edges.num_edges
    back = cached_transpose(edges)
    features = read_edge_features(edges, 3)
    terms, attention = normal(4, width, seed=1), normal(width, seed=2)
    both = EdgeSums(normal(9, width), normal(9, width, seed=3), features, terms, slope)
    alone, plain = both._replace(dst=None), both._replace(features=None, terms=terms[-1:])
    grad, scale, weight = normal(9, width, seed=5), normal(count, heads, seed=6), normal(count, 1, seed=7)
    ends, out_ends = (edges.indptr, edges.indices), (back.indptr, back.indices, back.edge)
    for given in (weight, None):
        assert_twins(call, "relu_sum", edge_relu, *ends, alone, given, shapes=((9, width),))
        assert_twins(call, "relu_grad_src", edge_relu, *out_ends, alone, 1, given, grad, shapes=((9, width),))
        assert_twins(call, "relu_grad_terms", edge_relu, *ends, alone, 1, given, grad, None, shapes=((4, width),))
    for sums in (both, plain):
        rows = ((9, width), (len(sums.terms) + 1, width))
        assert_twins(call, "leaky_score", edge_relu, *ends, sums, attention, shapes=((count, heads),))
        assert_twins(call, "relu_grad_src", edge_relu, *out_ends, sums, heads, scale, None, shapes=((9, width),))
        assert_twins(call, "relu_grad_terms", edge_relu, *ends, sums, heads, scale, None, shapes=rows)


def test_products_and_sums(call: Callable[..., None], edges: Edges) -> None:
    count, heads = edges.num_edges, 2
    features = read_edge_features(edges, 3)
    weight = normal(count, heads, seed=1)
    assert_twins(call, "edge_projection", edge_features, *features, normal(3, heads), shapes=((count, heads),))
    assert_twins(call, "edge_projection_grad", edge_features, *features, weight, shapes=((3, heads),))
    assert_twins(call, "feature_sum", edge_feature_sums, edges.indptr, features, weight, shapes=((9, heads, 3),))
    rows = normal(9, heads, 3, seed=2)
    assert_twins(call, "feature_dot", edge_feature_sums, edges.indptr, features, rows, shapes=((count, heads),))


@pytest.mark.parametrize("weighted", [False, True])
def test_outer_sums(call: Callable[..., None], edges: Edges, weighted: bool) -> None:
    back, features = cached_transpose(edges), read_edge_features(edges, 3)
    weight = normal(edges.num_edges, 1, seed=1) if weighted else None
    ends, out_ends = (edges.indptr, edges.indices), (back.indptr, back.indices, back.edge)
    assert_twins(call, "outer_sum", edge_outer, *ends, features, normal(9, 5), weight, shapes=((9, 4, 5),))
    grad = normal(9, 4, 5, seed=3)
    assert_twins(call, "outer_grad_src", edge_outer, *out_ends, features, grad, weight, shapes=((9, 5),))
