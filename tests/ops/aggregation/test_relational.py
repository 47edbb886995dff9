"""Kernels over edges of several relations against ones with a row per edge."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.core.errors import InputError
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.aggregation.relational import RelationScale, basis_weight, relation_mean_weight
from support import (
    Drawn,
    bipartite,
    block_of,
    destinations_of,
    naive_sum,
    normal,
    one_kernel_thread,
    random_topology,
    with_relations,
)

RELATIONS = 4
TOLERANCE = {torch.float32: 3e-5, torch.float64: 1e-12}


def typed(edges: Edges, seed: int = 0) -> Edges:
    generator = torch.Generator().manual_seed(seed)
    return replace(edges, relation=torch.randint(RELATIONS, (edges.num_edges,), generator=generator, dtype=torch.int8))


def edges_of(nodes: int = 40, count: int = 300, *, weighted: bool = False) -> Edges:
    return with_relations(random_topology(nodes, count, weighted=weighted), RELATIONS).block.edges


def naive_mean(edges: Edges) -> Tensor:
    assert edges.relation is not None
    weight = torch.ones(edges.num_edges, dtype=torch.float64) if edges.weight is None else edges.weight.double()
    slot = destinations_of(edges) * RELATIONS + edges.relation.long()
    return weight / torch.zeros(edges.num_dst * RELATIONS, dtype=torch.float64).index_add(0, slot, weight)[slot]


@given(drawn=bipartite())
@settings(deadline=None, max_examples=40)
def test_a_mean_per_relation_on_any_graph(drawn: Drawn) -> None:
    edges = typed(drawn.edges())
    mean = relation_mean_weight(block_of(edges), RELATIONS, torch.float64)
    torch.testing.assert_close(mean[:, 0], naive_mean(edges), rtol=1e-14, atol=0)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_a_mean_per_relation_is_computed_once_per_block_and_type(weighted: bool, dtype: torch.dtype) -> None:
    block = block_of(edges_of(weighted=weighted))
    mean = relation_mean_weight(block, RELATIONS, dtype)
    torch.testing.assert_close(mean[:, 0], naive_mean(block.edges).to(dtype), rtol=1e-6, atol=0)
    assert relation_mean_weight(block, RELATIONS, dtype) is mean


def test_edges_that_weigh_nothing_have_no_mean_to_divide() -> None:
    edges = typed(Drawn(2, 1, [(0, 0), (1, 0)]).edges())
    edges = replace(edges, weight=torch.zeros(2), cache={})
    assert relation_mean_weight(block_of(edges), RELATIONS, torch.float64).tolist() == [[0.0], [0.0]]


@given(drawn=bipartite(), bases=st.integers(1, 3))
@settings(deadline=None, max_examples=40)
def test_shares_of_bases_on_any_graph(drawn: Drawn, bases: int) -> None:
    edges = typed(drawn.edges())
    assert edges.relation is not None
    scale, relation = normal(edges.num_edges, 1), edges.relation.long()
    share = normal(RELATIONS, bases, seed=1).requires_grad_()
    out, expected = basis_weight(edges, share, scale), share[relation] * scale
    torch.testing.assert_close(out, expected, rtol=1e-14, atol=0)
    probe = normal(*out.shape, seed=2)
    (ours,), (theirs,) = (torch.autograd.grad((value * probe).sum(), share) for value in (out, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def scaled(edges: Edges, src: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    layer = RelationScale(RELATIONS, src.shape[2])
    del layer.scale
    layer.scale = scale
    return layer(block_of(edges), src, None, weight)


def naive_scaled(edges: Edges, src: Tensor, weight: Tensor, scale: Tensor) -> Tensor:
    assert edges.relation is not None
    rows = src[edges.indices.long()] * scale[edges.relation.long()][:, None]
    order = replace(edges, indices=torch.arange(edges.num_edges), num_src=edges.num_edges, cache={})
    return naive_sum(order, rows, weight)


@given(drawn=bipartite(), columns=st.integers(1, 5))
@settings(deadline=None, max_examples=40)
def test_scales_on_any_graph(drawn: Drawn, columns: int) -> None:
    assert_scales(typed(drawn.edges()), columns, torch.float64)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_scales_of_types(dtype: torch.dtype) -> None:
    assert_scales(edges_of(200, 1500), 33, dtype)


def assert_scales(edges: Edges, columns: int, dtype: torch.dtype) -> None:
    results = []
    for aggregate in (scaled, naive_scaled):
        src = normal(edges.num_src, 1, columns, dtype=dtype).requires_grad_()
        scale = normal(RELATIONS, columns, seed=1, dtype=dtype).requires_grad_()
        out = aggregate(edges, src, normal(edges.num_edges, 1, seed=2, dtype=dtype), scale)
        probe = normal(*out.shape, seed=3, dtype=dtype)
        results.append([out.detach(), *torch.autograd.grad((out * probe).sum(), [src, scale])])
    for ours, naive in zip(*results, strict=True):
        torch.testing.assert_close(ours, naive, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def test_gradients_are_those_of_finite_differences() -> None:
    edges = edges_of(9, 20)
    weight, src = normal(edges.num_edges, 1), normal(9, 1, 3, seed=1).requires_grad_()
    scale, share = normal(RELATIONS, 3, seed=2).requires_grad_(), normal(RELATIONS, 2, seed=3).requires_grad_()
    assert torch.autograd.gradcheck(lambda x, s: scaled(edges, x, weight, s), (src, scale))
    assert torch.autograd.gradcheck(lambda s: basis_weight(edges, s, weight), share)


def test_threads_do_not_matter() -> None:
    edges = edges_of(300, 4000)
    weight = normal(edges.num_edges, 1, dtype=torch.float32)
    src = normal(300, 1, 17, dtype=torch.float32).requires_grad_()
    scale = normal(RELATIONS, 17, dtype=torch.float32).requires_grad_()

    def everything() -> list[Tensor]:
        out, mixed = scaled(edges, src, weight, scale), basis_weight(edges, scale, weight)
        return [out, mixed, *torch.autograd.grad(out.square().sum() + mixed.square().sum(), [src, scale])]

    many = everything()
    with one_kernel_thread():
        one = everything()
    assert all(map(torch.equal, many, one))


@pytest.mark.parametrize(
    ("relation", "words"),
    [(None, "without"), ([0, 4, 1], "0 to 4"), ([-1, 0, 0], "-1 to 0")],
)
def test_relations_that_are_missing_or_out_of_range(relation: list[int] | None, words: str) -> None:
    edges = Drawn(3, 1, [(0, 0), (1, 0), (2, 0)]).edges()
    if relation is not None:
        edges = replace(edges, relation=torch.tensor(relation, dtype=torch.int16))
    for _ in range(2):
        with pytest.raises(InputError, match=words):
            validate_relations(edges, RELATIONS)
