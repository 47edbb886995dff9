"""Rows of 100,000 edges among small ones, in either direction: kernels cut them, and no result depends on threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import numba
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from outgrow.core.block import Edges
from outgrow.ops.aggregation.film import Film
from outgrow.ops.aggregation.gated import Gated
from outgrow.ops.aggregation.max import Max
from outgrow.ops.aggregation.relational import RelationScale, basis_weight, relation_mean_weight
from outgrow.ops.csc import in_degree, replace_self_loops
from outgrow.ops.edge_weight import symmetric_weight
from outgrow.ops.kernels import work_split
from outgrow.ops.kernels.work_split import ROW, balanced_work, continues_row
from outgrow.ops.rng import dropout_sparse
from outgrow.ops.sparse import SparseRows
from support import Drawn, block_of, destinations_of, normal

NODES, HEAVY, RELATIONS, COLUMNS = 300, 100_000, 3, 8
TOLERANCE = 2e-5


def heavy_edges() -> Edges:
    """One destination hears, and one source is heard, 100,000 times; weights and relations included."""
    random = np.random.default_rng(0)
    few = random.integers(0, NODES - 50, (2, 900))
    many = random.integers(0, NODES - 50, (2, HEAVY))
    src = np.concatenate((few[0], many[0], np.full(HEAVY, 7)))
    dst = np.concatenate((few[1], np.full(HEAVY, 130), many[1]))
    edges = Drawn(NODES, NODES, list(zip(src.tolist(), dst.tolist(), strict=True))).edges()
    relation = torch.from_numpy(random.integers(0, RELATIONS, edges.num_edges).astype(np.int8))
    weight = torch.from_numpy(0.5 + random.random(edges.num_edges, dtype=np.float32))
    return replace(edges, relation=relation, weight=weight)


EDGES = heavy_edges()
OWNER, SOURCE = destinations_of(EDGES), EDGES.indices.long()
assert EDGES.relation is not None
assert EDGES.weight is not None
RELATION, WEIGHT = EDGES.relation.long(), EDGES.weight


def total(message_EF: Tensor) -> Tensor:
    return message_EF.new_zeros(NODES, message_EF.shape[1]).index_add(0, OWNER, message_EF)


def weights(like: Tensor) -> Tensor:
    return WEIGHT.to(like.dtype)[:, None]


def naive_film(src: Tensor, dst: Tensor) -> Tensor:
    message = functional.leaky_relu(dst[OWNER, 0] * src[SOURCE, 0] + dst[OWNER, 1], 0.2)
    return total(weights(src) * message)


def naive_related_film(src: Tensor, dst: Tensor) -> Tensor:
    scale, shift = dst[OWNER, 2 * RELATION], dst[OWNER, 2 * RELATION + 1]
    return total(weights(src) * functional.leaky_relu(scale * src[SOURCE, RELATION] + shift, 0.2))


def naive_gated(src: Tensor, dst: Tensor) -> Tensor:
    return total(weights(src) * (src[SOURCE, 0] + dst[OWNER, 0]).sigmoid() * src[SOURCE, 1])


def naive_max(src: Tensor) -> Tensor:
    """Of the source rows, no two numbers of which are equal, so that ties are between parallel edges only."""
    at = OWNER[:, None].expand(-1, COLUMNS)
    with torch.no_grad():
        empty = torch.full((NODES, COLUMNS), -torch.inf, dtype=src.dtype)
        best = empty.scatter_reduce(0, at, src[SOURCE, 0], "amax")
        wins = src[SOURCE, 0] == best[OWNER]
        place = torch.arange(EDGES.num_edges)[:, None].expand(-1, COLUMNS)
        first = torch.full((NODES, COLUMNS), EDGES.num_edges)
        first = first.scatter_reduce(0, at, torch.where(wins, place, EDGES.num_edges), "amin")
    heard = first < EDGES.num_edges
    return torch.where(heard, src[SOURCE[first.clamp(max=EDGES.num_edges - 1)], 0, torch.arange(COLUMNS)], 0.0)


def ours_scaled(src: Tensor, scale: Tensor) -> Tensor:
    layer = RelationScale(RELATIONS, COLUMNS)
    del layer.scale
    layer.scale = scale
    return layer(block_of(EDGES), src, None, weights(src))[:, 0]


def sparse_rows(values: Tensor) -> SparseRows:
    return SparseRows(indptr=EDGES.indptr, indices=EDGES.indices, values=values, num_columns=NODES)


class Case(NamedTuple):
    """An operation on rows, the same with a row per edge, and the shapes of what it is differentiable in."""

    ours: Callable[..., Tensor]
    naive: Callable[..., Tensor]
    shapes: list[tuple[int, ...]]


CASES = {
    "film": Case(
        lambda src, dst: Film(0.2)(block_of(EDGES), src, dst, weights(src))[:, 0],
        naive_film,
        [(NODES, 1, COLUMNS), (NODES, 2, COLUMNS)],
    ),
    "film-with-relations": Case(
        lambda src, dst: Film(0.2, RELATIONS)(block_of(EDGES), src, dst, weights(src))[:, 0],
        naive_related_film,
        [(NODES, RELATIONS, COLUMNS), (NODES, 2 * RELATIONS, COLUMNS)],
    ),
    "gated": Case(
        lambda src, dst: Gated()(block_of(EDGES), src, dst, weights(src))[:, 0],
        naive_gated,
        [(NODES, 2, COLUMNS), (NODES, 1, COLUMNS)],
    ),
    "max": Case(lambda src: Max()(block_of(EDGES), src, None, None)[:, 0], naive_max, [(NODES, 1, COLUMNS)]),
    "relation-scale": Case(
        ours_scaled,
        lambda src, scale: total(weights(src) * scale[RELATION] * src[SOURCE, 0]),
        [(NODES, 1, COLUMNS), (RELATIONS, COLUMNS)],
    ),
    "basis-weight": Case(
        lambda share: basis_weight(EDGES, share, weights(share)),
        lambda share: weights(share) * share[RELATION],
        [(RELATIONS, 2)],
    ),
    "sparse": Case(
        lambda dense: sparse_rows(WEIGHT) @ dense,
        lambda dense: total(weights(dense) * dense[SOURCE]),
        [(NODES, COLUMNS)],
    ),
}


def results(function: Callable[..., Tensor], shapes: list[tuple[int, ...]], dtype: torch.dtype) -> list[Tensor]:
    """Result and gradients."""
    leaves = [normal(*shape, seed=seed, dtype=dtype).requires_grad_() for seed, shape in enumerate(shapes)]
    out = function(*leaves)
    probe = normal(*out.shape, seed=9, dtype=dtype)
    return [out.detach(), *torch.autograd.grad((out * probe).sum(), leaves)]


@pytest.fixture(params=[False, True], ids=["any-width", "fixed-width"])
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel for all widths, and the one that is compiled for the width."""
    if request.param:
        monkeypatch.setattr(work_split, "_LARGE", 1)


@pytest.fixture
def threads() -> Iterator[list[int]]:
    """Numbers of threads to compare."""
    before = numba.get_num_threads()
    yield [1, min(2, numba.config.NUMBA_NUM_THREADS)]
    numba.set_num_threads(before)


@pytest.mark.usefixtures("width")
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients(name: str, threads: list[int]) -> None:
    ours, naive, shapes = CASES[name]
    by_threads = []
    for count in threads:
        numba.set_num_threads(count)
        by_threads.append(results(ours, shapes, torch.float32))
    assert all(map(torch.equal, *by_threads))
    for mine, other in zip(by_threads[0], results(naive, shapes, torch.float64), strict=True):
        scale = max(1.0, other.abs().max().item())
        assert (mine.double() - other).abs().max().item() <= TOLERANCE * scale


def narrow_results() -> list[Tensor]:
    """What is computed per edge or per node, without columns."""
    block = block_of(replace(EDGES, cache={}))
    dropped = dropout_sparse(sparse_rows(WEIGHT), torch.arange(NODES), 5, 0.5)
    looped = replace_self_loops(EDGES.indptr, EDGES.indices, WEIGHT)
    assert looped[2] is not None
    means = relation_mean_weight(block, RELATIONS, torch.float64)[:, 0], symmetric_weight(block, torch.float64)[:, 0]
    return [in_degree(EDGES.indptr, WEIGHT), *means, dropped.values, looped[0], looped[1], looped[2]]


def test_numbers_of_edges_and_nodes(threads: list[int]) -> None:
    by_threads = []
    for count in threads:
        numba.set_num_threads(count)
        by_threads.append(narrow_results())
    assert all(map(torch.equal, *by_threads))
    degree, mean, symmetric, dropped, *looped = by_threads[0]
    wide = WEIGHT.double()
    torch.testing.assert_close(degree, torch.zeros(NODES).double().index_add(0, OWNER, wide), rtol=1e-12, atol=0)
    slot = OWNER * RELATIONS + RELATION
    of_relation = torch.zeros(NODES * RELATIONS).double().index_add(0, slot, wide)
    torch.testing.assert_close(mean, wide / of_relation[slot], rtol=1e-12, atol=0)
    count = torch.bincount(OWNER, minlength=NODES).double()
    torch.testing.assert_close(symmetric, wide / count[OWNER].sqrt(), rtol=1e-12, atol=0)
    assert torch.equal(dropped[dropped != 0], 2 * WEIGHT[dropped != 0])
    assert abs((dropped != 0).double().mean().item() - 0.5) < 0.2
    assert_looped(*looped)


def assert_looped(indptr: Tensor, indices: Tensor, weight: Tensor) -> None:
    """Other edges in their order, then a loop, row by row."""
    others = SOURCE != OWNER
    sizes = torch.bincount(OWNER[others], minlength=NODES) + 1
    assert torch.equal(indptr, torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)]))
    order = torch.cat([OWNER[others], torch.arange(NODES)]).argsort(stable=True)
    assert torch.equal(indices.long(), torch.cat([SOURCE[others], torch.arange(NODES)])[order])
    of_loops = torch.ones(NODES)
    # In order, so that of several loops of a node the last one counts.
    for edge in torch.nonzero(~others).view(-1).tolist():
        of_loops[OWNER[edge]] = WEIGHT[edge]
    assert torch.equal(weight, torch.cat([WEIGHT[others], of_loops])[order])


def test_heavy_rows_are_cut() -> None:
    """Otherwise the tests above would show nothing."""
    parts = balanced_work(EDGES.indptr.numpy())
    assert sum(continues_row(parts, part, EDGES.indptr.numpy(), parts[part, ROW]) for part in range(len(parts))) > 10


def test_what_is_not_a_number_loses_in_any_piece() -> None:
    src = normal(NODES, 1, 1, dtype=torch.float32)
    heard = SOURCE[int(EDGES.indptr[130]) : int(EDGES.indptr[131])]
    lost = heard[HEAVY // 2 :: HEAVY // 20]
    assert heard[0] not in lost
    src[lost] = torch.nan
    out = Max()(block_of(EDGES), src, None, None)
    assert out[130, 0, 0] == src[heard].nan_to_num(-torch.inf).max()
