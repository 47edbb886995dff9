"""Segments on a disk: written, read in any selection, counted, and what users are told."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from outgrow.core.errors import InputError
from outgrow.ops.rows.row_encoding import BFLOAT16, FULL, INT8, RowEncoding
from outgrow.runtime.storage.row_file import IoPool
from outgrow.runtime.storage.segment_file import SegmentFile
from support import disk_folder, normal

KINDS = ["disk", "direct"]
PAGE = 4096


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="outgrow-test-", dir=disk_folder()) as name:
        yield Path(name)


@pytest.fixture
def on_disk(folder: Path) -> Iterator[Path]:
    """An empty folder on a disk."""
    yield folder
    for path in folder.iterdir():
        path.unlink()


@contextmanager
def segments(
    kind: str, folder: Path, counts: list[int], width: int, dtype: torch.dtype, precision: str = FULL
) -> Iterator[SegmentFile]:
    disk, path = IoPool(in_flight=2, run_bytes=2 * PAGE), folder / "segments"
    made = SegmentFile(disk, path, np.array(counts), width, RowEncoding(dtype, precision), direct=kind == "direct")
    try:
        yield made
    finally:
        made.close()
        disk.close()
        path.unlink()


@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    counts=st.lists(st.integers(0, 5000), min_size=1, max_size=6),
    width=st.sampled_from([1, 7, 2000]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_any_of_them_are_read_as_they_were_written(
    on_disk: Path, kind: str, counts: list[int], width: int, dtype: torch.dtype, data: st.DataObject
) -> None:
    counts = [count if width < 2000 else count % 9 for count in counts]
    values = [normal(count, width, seed=i, dtype=dtype) for i, count in enumerate(counts)]
    numbers = range(len(counts))
    with segments(kind, on_disk, counts, width, dtype) as made:
        for some in (sorted(data.draw(st.sets(st.sampled_from(numbers)))), list(numbers)):
            made.write_segments(some, torch.cat([values[0][:0], *(values[i] for i in some)]))
        some = sorted(data.draw(st.sets(st.sampled_from(numbers))))
        rows = torch.cat([values[0][:0], *(values[i] for i in some)])
        out = torch.zeros_like(rows)
        made.read_segments(some, out)
        assert torch.equal(out, rows)
        to = torch.randperm(len(rows) + 2, generator=torch.Generator().manual_seed(0))[: len(rows)].int()
        wide = torch.full((len(rows) + 2, width + 1), -1.0, dtype=dtype)
        expected = wide.clone()
        expected[to.long(), 1:] = rows
        made.read_segments(some, wide[:, 1:], to)
        assert torch.equal(wide, expected)


@settings(deadline=None, max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    kind=st.sampled_from(KINDS),
    counts=st.lists(st.integers(0, 3000), min_size=1, max_size=6),
    width=st.sampled_from([1, 7, 2000]),
    precision=st.sampled_from([BFLOAT16, INT8]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    data=st.data(),
)
def test_narrow_rows_are_read_as_they_were_rounded(
    on_disk: Path, kind: str, counts: list[int], width: int, precision: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    counts = [count if width < 2000 else count % 9 for count in counts]
    rows = normal(sum(counts), width, dtype=dtype) * normal(sum(counts), 1, seed=1, dtype=dtype).exp()
    numbers = range(len(counts))
    encoding = RowEncoding(dtype, precision)
    with segments(kind, on_disk, counts, width, dtype, precision) as made:
        stored = encoding.encode_rows(rows)
        made.write_segments(numbers, stored)
        some = sorted(data.draw(st.sets(st.sampled_from(numbers))))
        chosen = torch.cat([torch.arange(0), *(torch.arange(len(rows)).split(counts)[i] for i in some)])
        raw = torch.zeros(len(chosen), stored.shape[1], dtype=stored.dtype)
        made.read_segments(some, raw)
        assert torch.equal(raw, stored[chosen])
        out = torch.zeros(len(chosen), width, dtype=dtype)
        made.read_segments(some, out)
        scale = rows.abs().amax(1, keepdim=True) if precision == INT8 else rows.abs()
        assert ((out - rows[chosen]).abs() <= scale[chosen] * (0.0041 if precision == INT8 else 2.0**-8)).all()
        to = torch.randperm(len(chosen) + 2, generator=torch.Generator().manual_seed(0))[: len(chosen)].int()
        wide = torch.full((len(chosen) + 2, width + 1), -1.0, dtype=dtype)
        expected = wide.clone()
        expected[to.long(), 1:] = out
        made.read_segments(some, wide[:, 1:], to)
        assert torch.equal(wide, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_other_types_and_other_numbers_of_rows_are_refused(kind: str, on_disk: Path) -> None:
    with segments(kind, on_disk, [2, 3], 4, torch.float32) as made:
        with pytest.raises(TypeError):
            made.write_segments([0], torch.zeros(2, 4, dtype=torch.float64))
        with pytest.raises(TypeError):
            made.read_segments([0], torch.zeros(2, 4, dtype=torch.float64))
        with pytest.raises(ValueError, match="3 rows for segments of 2"):
            made.write_segments([0], torch.zeros(3, 4))
        with pytest.raises(ValueError, match="2 rows for segments of 5"):
            made.read_segments([0, 1], torch.zeros(9, 4), torch.arange(2))


@pytest.mark.parametrize("kind", KINDS)
def test_new_ones_are_zero(kind: str, on_disk: Path) -> None:
    with segments(kind, on_disk, [3, 5], 2, torch.float32) as made:
        out = torch.ones(8, 2)
        made.read_segments([0, 1], out)
        assert not out.any()


@pytest.mark.parametrize("direct", [False, True])
def test_bytes_are_counted(direct: bool, on_disk: Path) -> None:
    told = IoPool(in_flight=2)
    made = SegmentFile(told, on_disk / "a", np.array([1, 2]), 1000, RowEncoding(torch.float32), direct=direct)
    paged = direct and hasattr(os, "O_DIRECT")
    made.write_segments([0, 1], torch.zeros(3, 1000))
    assert told.written_bytes == (3 * PAGE if paged else 12000)
    made.read_segments([1], torch.zeros(2, 1000))
    assert (told.read_requests, told.read_bytes) == (1, 2 * PAGE if paged else 3 * PAGE)
    made.close()
    told.close()


@pytest.mark.skipif(not hasattr(os, "O_DIRECT"), reason="the system reads through its memory only")
def test_where_a_file_system_keeps_all_in_memory(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    right = os.open

    def opened(path: Path, flags: int, mode: int = 0o777) -> int:
        if flags & os.O_DIRECT:
            raise OSError(errno.EINVAL, "no such thing here")
        return right(path, flags, mode)

    monkeypatch.setattr(os, "open", opened)
    with segments("direct", on_disk, [3], 2, torch.float32) as made:
        values, out = normal(3, 2, dtype=torch.float32), torch.zeros(3, 2)
        made.write_segments([0], values)
        made.read_segments([0], out)
        assert torch.equal(out, values)


def test_a_file_that_was_cut_is_told(on_disk: Path) -> None:
    told = IoPool()
    made = SegmentFile(told, on_disk / "a", np.array([10]), 100, RowEncoding(torch.float32), direct=False)
    os.truncate(on_disk / "a", 5)
    with pytest.raises(InputError, match="ends before"):
        made.read_segments([0], torch.zeros(10, 100))
    made.close()
    made.close()
    told.close()


def test_a_full_disk_is_told(on_disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = IoPool()
    made = SegmentFile(told, on_disk / "a", np.array([10]), 100, RowEncoding(torch.float32), direct=False)

    def full(*given: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("outgrow.runtime.storage.segment_file.write_segments", full)
    with pytest.raises(InputError, match="cannot grow") as caught:
        made.write_segments([0], torch.zeros(10, 100))
    assert "scratch" in caught.value.repair
    made.close()
    told.close()


def test_an_existing_file_is_not_overwritten(on_disk: Path) -> None:
    (on_disk / "a").write_bytes(b"mine")
    told = IoPool()
    with pytest.raises(FileExistsError):
        SegmentFile(told, on_disk / "a", np.array([10]), 100, RowEncoding(torch.float32), direct=True)
    assert (on_disk / "a").read_bytes() == b"mine"
    told.close()
