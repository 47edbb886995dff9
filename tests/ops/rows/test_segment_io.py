"""Parcels of a file: what indexing does, however they are cut, and what the system answers."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.rows import segment_io
from outgrow.ops.rows.file_io import PAGE_BYTES
from outgrow.ops.rows.segment_io import read_segments, write_segments
from support import normal

counts = st.lists(st.integers(0, 400), min_size=1, max_size=6)


@pytest.fixture(scope="module", params=["compiled", "python"])
def form(request: pytest.FixtureRequest):
    """The kernels compiled, and as Python runs them."""
    if request.param == "compiled":
        yield
        return
    with pytest.MonkeyPatch.context() as patch:
        for name in ("_read_segments", "_write_segments", "_end_of_read", "_read_in_order", "_write_in_order"):
            patch.setattr(segment_io, name, getattr(segment_io, name).py_func)
        yield


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory):
    file = os.open(tmp_path_factory.mktemp("parcels") / "parcels", os.O_RDWR | os.O_CREAT)
    yield file
    os.close(file)


def begins_of(sizes: list[int], page: int) -> np.ndarray:
    return np.cumsum([0, *(-(-size // page) * page for size in sizes)])


@settings(deadline=None, max_examples=60)
@given(
    counts=counts,
    width=st.sampled_from([1, 3, 16]),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.float16]),
    page=st.sampled_from([1, PAGE_BYTES]),
    pages=st.integers(2, 4),
    chosen=st.data(),
)
def test_what_was_written_is_read(form, file, counts, width, dtype, page, pages, chosen) -> None:
    row_bytes, staged = width * dtype.itemsize, np.empty(pages * PAGE_BYTES, dtype=np.uint8)
    begins = begins_of([count * row_bytes for count in counts], page)
    os.ftruncate(file, 0)
    os.ftruncate(file, int(begins[-1]))
    values = [normal(count, width, seed=i).to(dtype) for i, count in enumerate(counts)]
    flat = torch.cat(values).contiguous().view(-1).view(torch.uint8).numpy()
    ends = np.cumsum([0, *counts])
    written = write_segments(file, (begins[:-1], ends * row_bytes), page, staged, flat)
    assert written == (begins[-1] if page > 1 else len(flat))
    some = sorted(chosen.draw(st.sets(st.integers(0, len(counts) - 1))))
    rows = torch.cat([values[i] for i in some]) if some else values[0][:0]
    low = chosen.draw(st.integers(0, len(rows)))
    high = chosen.draw(st.integers(low, len(rows)))
    to = np.random.default_rng(0).permutation(len(rows) + 3)[: len(rows)]
    wide = torch.full((len(rows) + 3, width + 2), -1.0, dtype=dtype)
    expected = wide.clone()
    expected[to[low:high], 1:-1] = rows[low:high]
    places = begins[:-1][some], np.cumsum([0, *(counts[i] for i in some)])
    reads, read_pages = read_segments(file, places, (low, high), page, staged, (wide[:, 1:-1], to))
    assert torch.equal(wide, expected)
    assert (reads == 0) == (low == high)
    assert reads <= read_pages
    assert read_pages * PAGE_BYTES >= (high - low) * row_bytes
    in_order = torch.full((len(rows), width), -1.0, dtype=dtype)
    expected = in_order.clone()
    expected[low:high] = rows[low:high]
    reads, read_pages = read_segments(file, places, (low, high), page, staged, (in_order, None))
    assert torch.equal(in_order, expected)
    assert (reads == 0) == (low == high)
    assert read_pages * PAGE_BYTES >= (high - low) * row_bytes


def test_neighbours_are_moved_at_once(form, file) -> None:
    """Four parcels of a page and a half, and one further on, with pages for four to stage."""
    begins, ends = np.array([0, 2, 4, 100]) * PAGE_BYTES, np.arange(5) * 6
    staged, out = np.empty(4 * PAGE_BYTES, dtype=np.uint8), torch.empty(24, 256)
    os.ftruncate(file, 200 * PAGE_BYTES)
    values = normal(24, 256).float()
    given = values.view(-1).view(torch.uint8).numpy()
    assert write_segments(file, (begins, ends * 1024), PAGE_BYTES, staged, given) == 8 * PAGE_BYTES
    assert read_segments(file, (begins, ends), (0, 24), PAGE_BYTES, staged, (out, np.arange(24))) == (3, 8)
    assert torch.equal(out, values)


def test_what_lies_beside_a_parcel_stays(form, file) -> None:
    os.ftruncate(file, 0)
    os.pwrite(file, b"x" * 100, 0)
    ends = np.array([0, 8, 16])
    staged = np.empty(PAGE_BYTES, dtype=np.uint8)
    assert write_segments(file, (np.array([8, 40]), ends), 1, staged, np.full(16, ord("a"), dtype=np.uint8)) == 16
    assert os.pread(file, 100, 0) == b"x" * 8 + b"a" * 8 + b"x" * 24 + b"a" * 8 + b"x" * 52


def test_errors_of_the_system(form, file, tmp_path: Path) -> None:
    staged, one = np.empty(2 * PAGE_BYTES, dtype=np.uint8), (np.array([0]), np.array([0, 4]))
    os.ftruncate(file, 3)
    with pytest.raises(EOFError):
        read_segments(file, one, (0, 4), 1, staged, (torch.empty(4, 1), np.arange(4)))
    closed = os.open(tmp_path / "closed", os.O_RDONLY | os.O_CREAT)
    with pytest.raises(OSError, match="Bad file descriptor"):
        write_segments(closed, one, 1, staged, np.zeros(4, dtype=np.uint8))
    os.close(closed)
