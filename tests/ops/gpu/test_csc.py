"""What is derived from in-edges on a CUDA device against the CPU kernels, number by number."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.core.block import Edges
from outgrow.ops.csc import cached_transpose, replace_self_loops
from support import destinations_of, random_topology


@pytest.mark.parametrize("index", [torch.int32, torch.int64])
@pytest.mark.parametrize("num_edges", [0, 16])
def test_transposed(twin: ModuleType, device: str, index: torch.dtype, num_edges: int) -> None:
    given = random_topology(8, num_edges, index=index).block.edges
    edges = Edges(indptr=given.indptr, indices=given.indices, num_src=10)
    mine = twin.transpose_csc(edges.indptr.to(device), edges.indices.to(device), 10, 8)
    for one, other in zip(mine, cached_transpose(edges), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.cpu(), other)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("num_edges", [0, 16])
def test_self_looped(twin: ModuleType, device: str, weighted: bool, num_edges: int) -> None:
    topology = random_topology(8, num_edges, weighted=weighted)
    weight = None if topology.weight is None else topology.weight.to(device)
    mine = twin.replace_self_loops(topology.indptr.to(device), topology.indices.to(device), weight)
    for one, other in zip(mine, replace_self_loops(topology.indptr, topology.indices, topology.weight), strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            assert one.dtype == other.dtype
            assert torch.equal(one.cpu(), other)


def test_row_weights(twin: ModuleType, call: Callable[..., None]) -> None:
    topology = random_topology(8, 16, weighted=True)
    assert topology.weight is not None
    out = torch.full((8,), torch.nan, dtype=torch.float64)
    call(twin.weighted_in_degree, topology.indptr, topology.weight, out)
    at = destinations_of(topology.block.edges)
    torch.testing.assert_close(out, torch.zeros(8, dtype=torch.float64).index_add(0, at, topology.weight.double()))


def test_sorted_rows_of_more_rows_than_their_type_can_name(twin: ModuleType, device: str) -> None:
    indptr, position = twin.sort_by_row(torch.tensor([127, 3, 127], dtype=torch.int8, device=device), 200)
    assert indptr.diff().nonzero().view(-1).tolist() == [3, 127]
    assert indptr.tolist()[-1] == 3
    assert position.tolist() == [1, 0, 2]


def test_loops_are_added_to_numbers_of_any_type(twin: ModuleType, device: str) -> None:
    topology = random_topology(8, 16)
    relation = torch.arange(topology.num_edges, dtype=torch.int8)
    *_, expected = replace_self_loops(topology.indptr, topology.indices, relation)
    *_, mine = twin.replace_self_loops(topology.indptr.to(device), topology.indices.to(device), relation.to(device))
    assert expected is not None
    assert mine.dtype == expected.dtype
    assert torch.equal(mine.cpu(), expected)
