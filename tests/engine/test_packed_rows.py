"""Rows of several types in one vector: nothing but used columns, and the same rows again, in any order."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.core.graph_types import GraphTypes, RowWidths
from outgrow.engine.packed_rows import RowPacking


@given(
    sizes=st.lists(st.integers(0, 4), min_size=1, max_size=4),
    counts=st.lists(st.integers(0, 5), min_size=1, max_size=3),
    parts=st.lists(st.integers(0, 3), min_size=1, max_size=2),
    seed=st.integers(0, 1000),
)
@settings(deadline=None, max_examples=60)
def test_used_columns_cross_and_no_others(sizes: list[int], counts: list[int], parts: list[int], seed: int) -> None:
    draw = torch.Generator().manual_seed(seed)
    borders = tuple(sum(sizes[:count]) for count in range(len(sizes) + 1))
    used = [tuple(int(torch.randint(width + 1, (), generator=draw)) for _ in sizes) for width in parts]
    widths = RowWidths(borders, tuple(zip(parts, used, strict=True)))
    if not borders[-1]:
        counts = [0] * len(counts)
    nodes = torch.randint(max(1, borders[-1]), (sum(counts),), generator=draw)
    kinds = GraphTypes(names=tuple(map(str, sizes)), borders=borders, columns=(), edge_types=()).types_of(nodes)
    packing = RowPacking(widths, nodes, counts)
    per_row = torch.tensor([sum(each[kind] for each in used) for kind in kinds.tolist()], dtype=torch.int64)
    assert packing.sizes == tuple(int(each.sum()) for each in per_row.split(counts))
    rows = torch.randn(len(nodes), sum(parts), generator=draw, dtype=torch.float64, requires_grad=True)
    vector = packing.pack(rows)
    assert len(vector) == sum(packing.sizes)
    mask = torch.cat(
        [
            torch.arange(width)[None]
            < torch.tensor([each[kind] for kind in kinds.tolist()], dtype=torch.int64)[:, None]
            for width, each in zip(parts, used, strict=True)
        ],
        1,
    )
    again = packing.unpack(vector)
    assert torch.equal(again, rows * mask)
    factor = torch.randn(again.shape, generator=draw, dtype=torch.float64)
    [grad] = torch.autograd.grad((again * factor).sum(), rows)
    assert torch.equal(grad, factor * mask)
