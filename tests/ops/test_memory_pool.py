"""The pool that lends memory for large results, and rows with unused columns behind them."""

from __future__ import annotations

import gc
import itertools

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.ops import memory_pool
from outgrow.ops.linear import affine
from outgrow.ops.memory_pool import (
    LARGE_ROWS,
    LINE,
    as_input_rows,
    as_output_rows,
    idle_bytes,
    pad_to_cache_line,
    pooled_empty,
    pooled_empty_rows,
    release_idle_memory,
    with_padding,
)
from support import normal

LIKE = torch.empty(0)
ROWS = LARGE_ROWS + 3
BITS = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.bfloat16: np.uint16,
    torch.float16: np.int16,
}
PADDED = [47, 48, 62, 63, 241, 250, 255]
"""Widths whose rows are padded to whole lines, or fill them."""


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> memory_pool._BufferPool:
    """An empty pool that lends from 1 KiB on."""
    fresh = memory_pool._BufferPool()
    monkeypatch.setattr(memory_pool, "_POOL", fresh)
    monkeypatch.setattr(memory_pool, "_LARGE_BYTES", 1 << 10)
    return fresh


def lend(kib: int) -> Tensor:
    """Float32 that fill so many KiB."""
    return pooled_empty((kib, 256), LIKE)


def address_of_idle(kib: int) -> int:
    """Where the memory of a tensor lies that nothing uses any more."""
    return lend(kib).data_ptr()


def test_memory_comes_back_after_its_last_use(pool: memory_pool._BufferPool) -> None:
    at = address_of_idle(4)
    assert idle_bytes() == 4 << 10
    assert pool.allocated_bytes == 0
    again = lend(4)
    assert again.data_ptr() == at
    assert idle_bytes() == 0
    assert lend(4).data_ptr() != at


@pytest.mark.usefixtures("pool")
def test_it_is_lent_by_size_in_bytes() -> None:
    both = [lend(4), lend(3)]
    at = both[0].data_ptr()
    both.clear()
    less = lend(3)
    assert less.data_ptr() != at
    wide = pooled_empty((512,), LIKE, torch.float64)
    assert wide.data_ptr() == at
    del wide
    assert pooled_empty((2, 2, 512), LIKE, torch.bfloat16).data_ptr() == at


def test_large_results_are_lent() -> None:
    rows = (8 << 20) // (4 * 64)
    first, spare = pooled_empty((rows, 64), LIKE), pooled_empty((rows, 64), LIKE)
    at = first.data_ptr()
    assert at != spare.data_ptr()
    del first
    again = pooled_empty((64, rows), LIKE)
    assert again.data_ptr() == at
    del spare, again
    release_idle_memory()


@pytest.mark.usefixtures("pool")
@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((0,), None), ((), None), ((3, 0, 2), torch.int64), ((4, 300), torch.bfloat16), ((2000,), None)],
)
def test_what_is_lent_is_as_asked(shape: tuple[int, ...], dtype: torch.dtype | None) -> None:
    x = pooled_empty(shape, torch.empty(0, dtype=torch.float64), dtype)
    assert x.shape == shape
    assert x.dtype == (dtype or torch.float64)
    assert x.is_contiguous()
    assert x.data_ptr() % 64 == 0


def test_small_results_are_not_lent(pool: memory_pool._BufferPool) -> None:
    small, large = pooled_empty((255,), LIKE), pooled_empty((256,), LIKE)
    assert pool.allocated_bytes == 4 * 256
    del small
    assert idle_bytes() == 0
    del large
    pool.collect_freed()
    assert pool.allocated_bytes == 0


def test_other_devices_are_not_lent_to(pool: memory_pool._BufferPool) -> None:
    assert pooled_empty((512, 512), torch.empty(0, device="meta")).device.type == "meta"
    assert pool.peak_bytes == 0


def views(x: Tensor) -> dict[str, object]:
    """What may use the memory of a tensor longer than the tensor itself."""
    return {
        "view": x[3:5, :7],
        "detached": x.detach(),
        "transposed": x.T.unsqueeze(0),
        "other-type": x.view(torch.int32)[1:],
        "numpy": x.numpy(),
        "numpy-view": np.asarray(x.numpy())[2:, ::3],
        "memoryview": memoryview(x.numpy()),
        "storage": x.untyped_storage(),
        "parameter": torch.nn.Parameter(x),
    }


@pytest.mark.parametrize("kind", views(torch.empty(8, 256)))
def test_it_never_comes_back_while_something_uses_it(kind: str, pool: memory_pool._BufferPool) -> None:
    spare = lend(8)
    x = lend(8)
    at = x.data_ptr()
    user = views(x)[kind]
    del x
    gc.collect()
    assert pool.allocated_bytes == 16 << 10
    other = lend(8)
    assert at not in (other.data_ptr(), spare.data_ptr())
    del user
    gc.collect()
    assert lend(8).data_ptr() == at


def test_it_never_comes_back_while_a_backward_pass_needs_it(pool: memory_pool._BufferPool) -> None:
    spare, x = lend(8).fill_(0), lend(8).fill_(3)
    at, weight = x.data_ptr(), torch.ones(256, requires_grad=True)
    loss = (x * weight).sum()
    del x, spare
    taken = [lend(8).fill_(-1) for _ in range(3)]
    assert at not in [other.data_ptr() for other in taken]
    (gradient,) = torch.autograd.grad(loss, weight)
    assert torch.equal(gradient, torch.full((256,), 24.0))
    del loss
    assert at in [other.data_ptr() for other in [lend(8), lend(8)]]


def test_idle_and_lent_memory_together_are_at_most_what_was_lent_at_once(pool: memory_pool._BufferPool) -> None:
    lent = [lend(4), lend(3)]
    del lent[0]
    assert idle_bytes() == 4 << 10
    lent.append(lend(2))  # 3 + 2 are lent, 7 were: the 4 must go
    assert idle_bytes() == 0
    lent.clear()
    assert idle_bytes() == 5 << 10
    lent.append(lend(6))  # the 3 that came back first go, and the 2 too: 6 are lent
    assert idle_bytes() == 0
    assert pool.peak_bytes == 7 << 10


def test_what_has_been_idle_longest_goes_first() -> None:
    pool = memory_pool._BufferPool()
    first, second, third = (pool.allocate(size) for size in (3000, 2000, 1000))
    del second
    pool.collect_freed()
    del first, third
    held = pool.allocate(500)
    assert sorted(pool.order) == [1000, 3000]  # 6000 were lent: 500 and what is kept are at most that
    assert len(held) == 500


def test_clear_gives_back_what_is_idle_and_forgets_how_much_was_lent(pool: memory_pool._BufferPool) -> None:
    address_of_idle(4)
    held = lend(1)
    release_idle_memory()
    assert idle_bytes() == 0
    assert pool.peak_bytes == 1 << 10
    del held
    assert idle_bytes() == 1 << 10
    address_of_idle(2)
    assert idle_bytes() == 2 << 10


@given(steps=st.lists(st.one_of(st.integers(1, 4), st.integers(-6, 0)), max_size=60))
@settings(deadline=None, max_examples=60)
def test_any_order_of_lending_and_returning(steps: list[int]) -> None:
    """Positive numbers lend so many KiB, others return one of those that are lent."""
    pool, live, most = memory_pool._BufferPool(), [], 0
    for step in steps:
        if step > 0:
            live.append(pool.allocate(step << 10))
        elif live:
            live.pop(step % len(live))
        pool.collect_freed()
        spans = sorted((x.ctypes.data, x.ctypes.data + len(x)) for x in live)
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))
        lent = sum(map(len, live))
        most = max(most, lent)
        assert (pool.allocated_bytes, pool.peak_bytes) == (lent, most)
        idle = [len(base) for bases in pool.idle.values() for base in bases]
        assert pool.idle_bytes == sum(idle) <= most - lent
        assert sorted(pool.order) == sorted(idle)


@given(columns=st.integers(0, 600))
def test_many_rows_fill_whole_lines_where_that_costs_little(columns: int) -> None:
    stride = pad_to_cache_line(columns, LARGE_ROWS)
    assert pad_to_cache_line(columns, LARGE_ROWS - 1) == columns
    assert columns <= stride <= columns + columns / 16
    lines = next(width for width in range(columns, columns + LINE) if width % LINE == 0)
    assert stride == (lines if lines - columns <= columns / 16 else columns)


@pytest.mark.parametrize("shape", [(47,), (2, 31), (255,), (10,), (5, 16), (0,), (3, 0)])
@pytest.mark.parametrize("rows", [0, 5, ROWS])
def test_rows(shape: tuple[int, ...], rows: int) -> None:
    columns = int(np.prod(shape))
    x = pooled_empty_rows(rows, shape, LIKE)
    assert x.shape == (rows, *shape)
    x.fill_(1)
    wide = with_padding(x.flatten(1))
    assert wide.shape == (rows, pad_to_cache_line(columns, rows))
    assert wide.is_contiguous()
    assert wide.data_ptr() == x.data_ptr()
    if wide.shape[1] > columns:
        assert wide.shape[1] * wide.element_size() % 64 == 0
    assert bool((wide[:, :columns] == 1).all())


def test_rows_of_a_given_type() -> None:
    assert pooled_empty_rows(3, (2,), LIKE, torch.float64).dtype == torch.float64
    assert pooled_empty_rows(3, (2,), torch.empty(0, device="meta")).device.type == "meta"
    assert pooled_empty_rows(ROWS, (47,), torch.empty(0, device="meta")).stride() == (47, 1)


@pytest.mark.parametrize("columns", [47, 63])
def test_slices_of_tensors_of_another_width_have_no_padding(columns: int) -> None:
    stride = pad_to_cache_line(columns, ROWS)
    for base, first in [
        (torch.zeros(ROWS, columns), 0),
        (torch.zeros(ROWS, columns + 30), 0),
        (torch.zeros(ROWS, columns + 30), 30),
        (torch.zeros(ROWS, stride), stride - columns),  # the last row would go on behind the end of the memory
        (torch.zeros(columns, ROWS).T, 0),
        (torch.zeros(1, columns).expand(ROWS, columns), 0),
        (torch.zeros(LARGE_ROWS - 1, stride), 0),
    ]:
        x = base[:, first : first + columns]
        assert with_padding(x) is x


@pytest.mark.parametrize("columns", PADDED)
@pytest.mark.parametrize("rows", [slice(None), slice(2, None), slice(0, LARGE_ROWS)])
def test_padding_is_found_again_in_views(columns: int, rows: slice) -> None:
    x = pooled_empty_rows(ROWS, (columns,), LIKE).fill_(2)[rows]
    if len(x) < LARGE_ROWS:
        assert with_padding(x) is x
        return
    wide = with_padding(x)
    assert wide.shape == (len(x), pad_to_cache_line(columns, ROWS))
    assert wide.data_ptr() == x.data_ptr()
    assert torch.equal(wide[:, :columns], x)


@pytest.mark.parametrize("dtype", BITS)
@pytest.mark.parametrize("rows", [0, 6, ROWS])
def test_flat_rows_are_the_memory_itself(rows: int, dtype: torch.dtype) -> None:
    x = pooled_empty_rows(rows, (2, 31), LIKE, dtype).fill_(0)
    flat = as_input_rows(x)
    assert flat.shape == (rows, 64 if rows == ROWS else 62)
    assert flat.dtype == BITS[dtype]
    if rows:
        assert flat.__array_interface__["data"][0] == x.data_ptr()
        flat[rows - 1, 61] = 1
        assert x[rows - 1, 1, 30] != 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("rows", [6, ROWS])
def test_flat_rows_copy_what_is_laid_out_otherwise(rows: int, dtype: torch.dtype) -> None:
    base = normal(rows, 5, 70, dtype=dtype)
    for x in (base[:, 1:3, :31], base.transpose(1, 2), base[:, 0, :1].expand(rows, 9), base[::2], base[:, 2]):
        flat, given = as_input_rows(x), x.flatten(1)
        assert flat.shape == given.shape
        assert flat.flags.c_contiguous
        assert flat.tobytes() == given.contiguous().view(torch.uint8).numpy().tobytes()


def test_flat_rows_of_what_trains() -> None:
    x = normal(4, 2, 3).requires_grad_()
    assert as_input_rows(x).__array_interface__["data"][0] == x.data_ptr()


def test_a_result_must_lie_in_rows() -> None:
    out = pooled_empty_rows(5, (3, 4), LIKE)
    assert as_output_rows(out).ctypes.data == out.data_ptr()
    with pytest.raises(ValueError, match=r"\[3, 5\] with strides \[1, 3\]"):
        as_output_rows(torch.empty(5, 3).T)


def test_gradients_of_a_tensor_that_is_used_twice_are_added_in_place(pool: memory_pool._BufferPool) -> None:
    x = normal(5000, 64, dtype=torch.float32).requires_grad_()
    middle = x * 1
    gradients: list[int] = []
    middle.register_hook(lambda gradient: gradients.append(gradient.data_ptr()))
    weights = [normal(64, 64, seed=seed, dtype=torch.float32) for seed in range(2)]
    torch.autograd.backward(sum(affine((middle, weight)).sum() for weight in weights))
    torch.testing.assert_close(x.grad, (weights[0] + weights[1]).sum(1).expand(5000, 64), rtol=1e-4, atol=1e-4)
    pool.collect_freed()
    addresses = {base.data_ptr() for bases in pool.idle.values() for base in bases}
    assert set(gradients) <= addresses
