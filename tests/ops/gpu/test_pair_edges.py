"""Edges by pairs on a CUDA device against the CPU kernel, number by number."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.ops.aggregation.pair_edges import add_rows, sort_by_pair
from outgrow.ops.csc import cached_transpose
from support import normal, random_topology, with_relations


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("num_edges", [0, 40])
def test_sorted_by_pair(twin: ModuleType, device: str, num_edges: int, backward: bool) -> None:
    edges = with_relations(random_topology(8, num_edges), 3).block.edges
    assert edges.relation is not None
    back = cached_transpose(edges)
    given = (back.indptr, back.edge, edges.relation, 5) if backward else (edges.indptr, None, edges.relation, 5)
    moved = [each.to(device) if isinstance(each, torch.Tensor) else each for each in given]
    for one, other in zip(twin.sort_by_pair(*moved), sort_by_pair(*given), strict=True):
        assert one.dtype == other.dtype
        assert torch.equal(one.cpu(), other)


def test_added_rows(twin: ModuleType, call: Callable[..., None]) -> None:
    out, rows, values = normal(9, 3), torch.tensor([7, 0]), normal(2, 3, seed=1)
    expected = out.clone()
    add_rows(expected, rows, values)
    call(twin.add_rows, out, rows, values)
    assert torch.equal(out, expected)
