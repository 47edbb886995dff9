"""Products of rows by segments against one product per row."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.row_slots import Slot
from outgrow.ops.segment_matmul import segment_matmul
from support import normal


@given(
    kinds=st.lists(st.integers(0, 3), max_size=12),
    ordered=st.booleans(),
    bias=st.booleans(),
    added=st.booleans(),
    columns=st.sampled_from([(0, 5), (1, 4)]),
)
@settings(deadline=None, max_examples=60)
def test_every_row_has_the_weight_of_its_segment(
    kinds: list[int], ordered: bool, bias: bool, added: bool, columns: tuple[int, int]
) -> None:
    kind = torch.tensor(sorted(kinds) if ordered else kinds, dtype=torch.int64)
    width = columns[1] - columns[0]
    segments = []
    # Rows of kind 3 are in no segment.
    for number in range(3):
        rows = (kind == number).nonzero()[:, 0]
        span = slice(int(rows[0]), int(rows[-1]) + 1) if ordered and len(rows) else rows
        segments.append(Slot(span, *columns))
    leaves = [normal(len(kind), 5), *(normal(width, 2, seed=seed) for seed in (1, 2, 3))]
    leaves += [normal(2, seed=seed) for seed in (4, 5, 6)] if bias else []
    leaves = [each.requires_grad_() for each in [*leaves, *([normal(len(kind), 2, seed=8)] if added else [])]]
    base = leaves[-1] if added else torch.zeros(len(kind), 2, dtype=torch.float64)
    out = segment_matmul(leaves[0], segments, leaves[1:4], leaves[4:7] if bias else None, base if added else None)
    expected = base
    for number in range(3):
        own = leaves[0][:, slice(*columns)] @ leaves[1 + number] + (leaves[4 + number] if bias else 0)
        expected = torch.where((kind == number)[:, None], base + own, expected)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-12)
    probe = normal(*out.shape, seed=7)
    grads = [torch.autograd.grad((each * probe).sum(), leaves) for each in (out, expected)]
    for ours, theirs in zip(*grads, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("rows", [slice(2, 9), torch.tensor([4, 1, 7])])
def test_constant_rows_in_half_precision(rows: slice | torch.Tensor) -> None:
    x, weight = normal(12, 4).half(), normal(4, 3, dtype=torch.float32).requires_grad_()
    out = segment_matmul(x, [Slot(rows, 0, 4)], [weight])
    expected = torch.zeros(12, 3).index_put((torch.arange(12)[rows],), x[rows].float() @ weight)
    torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-5)
    grads = [torch.autograd.grad(each.sin().sum(), weight)[0] for each in (out, expected)]
    torch.testing.assert_close(*grads, rtol=1e-5, atol=1e-5)
