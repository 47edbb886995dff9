"""One thread and two give the same bits, forward and backward, on a graph of which one row is cut in each direction."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from outgrow.core.block import Edges
from outgrow.ops.aggregation import spmm
from outgrow.ops.aggregation.attention import attention_weight
from outgrow.ops.aggregation.edge_outer import FeatureWeightedSum
from outgrow.ops.aggregation.edge_relu import GineSum, leaky_scores
from outgrow.ops.aggregation.film import Film
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.max import Max
from outgrow.ops.aggregation.relational import RelationScale, basis_weight
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.csc import cached_transpose
from outgrow.ops.edge_feature_sums import edge_feature_sum
from outgrow.ops.edge_features import project_edges
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.kernels import work_split
from outgrow.ops.kernels.work_split import balanced_work, split_rows
from outgrow.ops.rows.coalesce import scatter_add_rows
from support import Drawn, block_of, normal

NODES, HEAVY, RELATIONS, COLUMNS = 200, 9000, 3, 6


def uneven() -> Edges:
    """Destination 130 has most of the in-edges, source 7 most of the out-edges; with relations."""
    random = np.random.default_rng(0)
    src, dst = random.integers(0, NODES, (2, 2 * HEAVY + 800))
    dst[:HEAVY], src[HEAVY : 2 * HEAVY] = 130, 7
    edges = Drawn(NODES, NODES, list(zip(src.tolist(), dst.tolist(), strict=True))).edges()
    relation = torch.from_numpy(random.integers(0, RELATIONS, edges.num_edges).astype(np.int8))
    return replace(edges, relation=relation)


EDGES = uneven()
BLOCK = block_of(EDGES)
WEIGHT = normal(EDGES.num_edges, 1, seed=40, dtype=torch.float32).abs()


def relation_scale(src: Tensor, scale: Tensor) -> Tensor:
    layer = RelationScale(RELATIONS, COLUMNS)
    del layer.scale
    layer.scale = scale
    return layer(BLOCK, src, None, WEIGHT)


FEATURED = replace(EDGES, features=normal(EDGES.num_edges, 3, seed=41, dtype=torch.float32), cache={})
CODED = replace(FEATURED, features=(EDGES.indices % 4 - 1).to(torch.int8)[:, None], feature_sizes=(3,), cache={})


def gine(src: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    layer = GineSum(3, COLUMNS)
    del layer.weight, layer.bias
    layer.weight, layer.bias = weight, bias
    return layer(block_of(FEATURED), src, None, WEIGHT)


def scores(src: Tensor, dst: Tensor, weight: Tensor, attention: Tensor) -> Tensor:
    return leaky_scores(FEATURED, src, dst, weight, attention, 0.2)


class Case(NamedTuple):
    """An operation, and the shapes of what it is differentiable in."""

    run: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]


def attention(src: Tensor, dst: Tensor, edge: Tensor) -> Tensor:
    return attention_weight(EDGES, src, dst, 0.2, edge)


CASES = {
    "sum": Case(lambda src: WeightedSum()(BLOCK, src, None, None), [(NODES, 1, COLUMNS)]),
    "weighted-sum": Case(
        lambda src, weight: WeightedSum()(BLOCK, src, None, weight),
        [(NODES, 1, COLUMNS), (EDGES.num_edges, 1)],
    ),
    "heads": Case(
        lambda src, weight: WeightedSum()(BLOCK, src, None, weight),
        [(NODES, 2, COLUMNS), (EDGES.num_edges, 2)],
    ),
    "bases": Case(
        lambda src: WeightedSum()(BLOCK, src, None, WEIGHT.expand(-1, 2).contiguous()),
        [(NODES, 1, COLUMNS)],
    ),
    "max": Case(lambda src: Max()(BLOCK, src, None, None), [(NODES, 1, COLUMNS)]),
    "attention": Case(attention, [(NODES, 2), (NODES, 2), (EDGES.num_edges, 2)]),
    "gated": Case(lambda src, dst: Gated()(BLOCK, src, dst, WEIGHT), [(NODES, 2, COLUMNS), (NODES, 1, COLUMNS)]),
    "film": Case(lambda src, dst: Film()(BLOCK, src, dst, WEIGHT), [(NODES, 1, COLUMNS), (NODES, 2, COLUMNS)]),
    "relation-scale": Case(relation_scale, [(NODES, 1, COLUMNS), (RELATIONS, COLUMNS)]),
    "gine": Case(gine, [(NODES, 1, COLUMNS), (3, COLUMNS), (COLUMNS,)]),
    "scores-of-gatv2": Case(scores, [(NODES, 2, 3), (NODES, 2, 3), (3, 6), (2, 3)]),
    "product-of-features": Case(lambda weight: project_edges(FEATURED, weight), [(3, 2)]),
    "product-of-codes": Case(lambda weight: project_edges(CODED, weight), [(3, 2)]),
    "sum-of-features": Case(lambda weight: edge_feature_sum(FEATURED, weight, 3), [(EDGES.num_edges, 2)]),
    "outer-sum": Case(lambda src: FeatureWeightedSum(3)(block_of(FEATURED), src, None, WEIGHT), [(NODES, 1, COLUMNS)]),
    "basis-weight": Case(lambda share: basis_weight(EDGES, share, WEIGHT), [(RELATIONS, 2)]),
}


def bits(case: Case, threads: int) -> list[Tensor]:
    """Result and gradients, as integers, computed by so many threads."""
    numba.set_num_threads(threads)
    leaves = [normal(*shape, seed=seed, dtype=torch.float32).requires_grad_() for seed, shape in enumerate(case.shapes)]
    out = case.run(*leaves)
    found = out.detach(), *torch.autograd.grad(out, leaves, normal(*out.shape, seed=9, dtype=torch.float32))
    return [tensor.contiguous().view(torch.int32) for tensor in found]


@pytest.fixture
def two_threads() -> Iterator[None]:
    if numba.config.NUMBA_NUM_THREADS < 2:
        pytest.skip("needs two threads")
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


def test_one_row_is_cut_in_each_direction() -> None:
    """Otherwise the tests below would show little."""
    for indptr, heavy in ((EDGES.indptr.numpy(), 130), (cached_transpose(EDGES).indptr.numpy(), 7)):
        assert split_rows(balanced_work(indptr), indptr).tolist() == [heavy]


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", CASES)
def test_the_number_of_threads_changes_no_bit(name: str) -> None:
    one, two, again = (bits(CASES[name], threads) for threads in (1, 2, 2))
    assert all(map(torch.equal, one, two))
    assert all(map(torch.equal, two, again))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", CASES)
def test_nor_does_the_form_of_kernels_for_one_thread(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of_two = bits(CASES[name], 2)
    monkeypatch.setenv(MODE_VARIABLE, "serial")
    assert all(map(torch.equal, bits(CASES[name], 2), of_two))


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("name", ["weighted-sum", "max", "gine", "scores-of-gatv2"])
def test_nor_in_kernels_of_a_fixed_width(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (spmm, work_split):
        monkeypatch.setattr(module, "_LARGE", 0)
    of_two = bits(CASES[name], 2)
    assert all(map(torch.equal, bits(CASES[name], 1), of_two))
    monkeypatch.setenv(MODE_VARIABLE, "serial")
    assert all(map(torch.equal, bits(CASES[name], 2), of_two))


@pytest.mark.usefixtures("two_threads")
def test_nor_in_sums_of_gradients_in_memory() -> None:
    rows, values = torch.arange(0, 20_000, 2), normal(10_000, COLUMNS, seed=5, dtype=torch.float32)
    found = []
    for threads in (1, 2, 2):
        numba.set_num_threads(threads)
        table = normal(20_000, COLUMNS, seed=6, dtype=torch.float32)
        scatter_add_rows(table, rows, values, torch.arange(10_000))
        found.append(table)
    assert all(torch.equal(found[0], other) for other in found[1:])
    expected = normal(20_000, COLUMNS, seed=6, dtype=torch.float32)
    expected[rows] += values
    assert torch.equal(found[0], expected)
