"""The largest value over in-edges on a CUDA device against the CPU kernel."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import pytest
import torch

from outgrow.ops.csc import cached_transpose
from support import destinations_of, normal, random_topology


@pytest.mark.parametrize(("dtype", "index"), [(torch.float32, torch.int32), (torch.float64, torch.int64)])
def test_largest(twin: ModuleType, call: Callable[..., None], dtype: torch.dtype, index: torch.dtype) -> None:
    edges = random_topology(8, 40, index=index).block.edges
    src = normal(8, 5, dtype=dtype).round()  # ties, from parallel edges and equal values
    src[2, 0], src[0, 1] = torch.nan, -torch.inf
    at, rows = destinations_of(edges), src[edges.indices.long()]
    out, winner = torch.full((8, 5), torch.nan, dtype=dtype), torch.full((8, 5), -2, dtype=index)
    call(twin.segment_max, edges.indptr, edges.indices, src, out, winner)
    expected, chosen = torch.zeros(8, 5, dtype=dtype), torch.full((8, 5), -1)
    for v in range(8):
        for f in range(5):
            for e in torch.nonzero(at == v).view(-1).tolist():
                if chosen[v, f] < 0 or rows[e, f] > expected[v, f]:
                    expected[v, f], chosen[v, f] = rows[e, f], e
    assert torch.equal(winner, chosen.to(index))
    torch.testing.assert_close(out, expected, rtol=0, atol=0, equal_nan=True)

    grad, back = normal(8, 5, seed=1, dtype=dtype), cached_transpose(edges)
    mine = torch.full((8, 5), torch.nan, dtype=dtype)
    call(twin.segment_max_backward, back.indptr, back.indices, back.edge, winner, grad, mine)
    summed = torch.zeros(8, 5, dtype=dtype)
    for v, f in torch.nonzero(winner >= 0).tolist():
        summed[edges.indices[winner[v, f]].long(), f] += grad[v, f]
    torch.testing.assert_close(mine, summed)


def test_a_first_value_that_is_not_a_number_wins(twin: ModuleType, call: Callable[..., None]) -> None:
    indptr, indices = torch.tensor([0, 2, 4]), torch.tensor([0, 1, 1, 0], dtype=torch.int32)
    out, winner = torch.empty(2, 1), torch.empty(2, 1, dtype=torch.int32)
    call(twin.segment_max, indptr, indices, torch.tensor([[torch.nan], [-torch.inf]]), out, winner)
    assert torch.isnan(out[0, 0])
    assert out[1, 0] == -torch.inf
    assert winner.view(-1).tolist() == [0, 2]
