"""Files of rows: what is asked of them, what is counted, and what goes wrong."""

from __future__ import annotations

import errno
import gc
import io
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch

import outgrow.runtime.storage.row_file as disk_module
from outgrow.core.errors import InputError
from outgrow.runtime.storage.row_file import IoPool, RowFile
from support import normal

PAGE = 4096


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """No descriptor and no thread stays behind."""
    # What earlier tests of this process have left may be collected at any time, here or within the test.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert len(os.listdir("/proc/self/fd")) <= before
    assert not [thread.name for thread in threading.enumerate() if thread.name.startswith("outgrow-disk")]


@pytest.fixture
def disk() -> Iterator[IoPool]:
    disk = IoPool(gap_bytes=2 * PAGE, run_bytes=8 * PAGE)
    yield disk
    disk.close()


def page_rows(disk: IoPool, path: Path, num_rows: int) -> RowFile:
    """Rows of one page each, which hold their number."""
    rows = RowFile.create(disk, path, num_rows, PAGE // 4, torch.float32)
    rows.write_range(0, torch.arange(num_rows, dtype=torch.float32)[:, None].expand(-1, PAGE // 4))
    return rows


@pytest.mark.parametrize(
    ("wanted", "requests", "pages"),
    [
        ([], 0, 0),
        ([5], 1, 1),
        ([5, 6, 7], 1, 3),
        ([5, 8], 1, 4),
        ([5, 9], 2, 2),
        ([0, 3, 4, 20, 22, 40], 3, 9),
        (list(range(8)), 1, 8),
        (list(range(9)), 2, 9),
        (list(range(0, 24, 3)), 3, 18),
    ],
)
def test_reads_are_counted(disk: IoPool, tmp_path: Path, wanted: list[int], requests: int, pages: int) -> None:
    rows = page_rows(disk, tmp_path / "rows", 50)
    out = torch.zeros(len(wanted), PAGE // 4)
    rows.read_rows(torch.tensor(wanted, dtype=torch.int64), out, torch.arange(len(wanted)))
    assert out[:, -1].tolist() == wanted
    assert (disk.read_requests, disk.read_bytes) == (requests, pages * PAGE)
    rows.close()


def physical_bytes() -> int:
    """What this process has made disks read so far."""
    counts = dict(line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(counts["read_bytes"])


def evict(path: Path) -> None:
    """Let the kernel forget what it holds of a file."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def test_the_disk_reads_no_more_than_is_counted(tmp_path: Path) -> None:
    disk = IoPool(in_flight=2, gap_bytes=0)
    rows, wanted = page_rows(disk, tmp_path / "rows", 4000), torch.arange(0, 4000, 2)
    evict(tmp_path / "rows")
    before = physical_bytes()
    (tmp_path / "rows").read_bytes()
    if physical_bytes() - before < 4000 * PAGE:
        pytest.skip("needs a disk whose reads the kernel counts")
    evict(tmp_path / "rows")
    before = physical_bytes()
    rows.read_rows(wanted, torch.empty(2000, PAGE // 4), torch.arange(2000))
    assert disk.read_bytes == 2000 * PAGE
    assert physical_bytes() - before < 1.1 * disk.read_bytes
    rows.close()
    disk.close()


def test_bytes_are_rounded_out_to_pages(disk: IoPool, tmp_path: Path) -> None:
    rows = RowFile.create(disk, tmp_path / "rows", 5000, 3, torch.float32)
    out, one = torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64)
    rows.read_rows(torch.tensor([340]), out, one)
    assert disk.read_bytes == PAGE
    rows.read_rows(torch.tensor([341]), out, one)  # bytes 4092 to 4104
    assert disk.read_bytes == 3 * PAGE
    rows.close()


def test_ranges_are_counted(disk: IoPool, tmp_path: Path) -> None:
    rows = page_rows(disk, tmp_path / "rows", 50)
    assert (disk.written_bytes, disk.read_bytes) == (50 * PAGE, 0)
    rows.read_range(3, 21, torch.empty(18, PAGE // 4))
    assert (disk.read_requests, disk.read_bytes) == (3, 18 * PAGE)
    rows.close()


def test_sums_read_old_rows_and_write_what_lies_between(disk: IoPool, tmp_path: Path) -> None:
    rows = page_rows(disk, tmp_path / "rows", 50)
    disk.written_bytes = 0
    named = torch.tensor([2, 3, 5, 30, 31])
    rows.add_rows(named, torch.ones(5, PAGE // 4), torch.arange(5))
    assert (disk.read_requests, disk.read_bytes, disk.written_bytes) == (2, 6 * PAGE, 6 * PAGE)
    out = torch.empty(50, PAGE // 4)
    rows.read_range(0, 50, out)
    expected = torch.arange(50).float()
    expected[named] += 1
    assert torch.equal(out, expected[:, None].expand_as(out))
    rows.close()


def test_rows_far_from_named_ones_are_not_written(disk: IoPool, tmp_path: Path) -> None:
    rows = RowFile.create(disk, tmp_path / "rows", 50, PAGE // 4, torch.float32)
    rows.add_rows(torch.tensor([2, 3, 8]), torch.ones(3, PAGE // 4), torch.arange(3))
    with (tmp_path / "rows").open("rb") as file:
        assert os.lseek(file.fileno(), 0, os.SEEK_DATA) == 2 * PAGE
        assert os.lseek(file.fileno(), 2 * PAGE, os.SEEK_HOLE) == 4 * PAGE
        assert os.lseek(file.fileno(), 4 * PAGE, os.SEEK_DATA) == 8 * PAGE
        assert os.lseek(file.fileno(), 8 * PAGE, os.SEEK_HOLE) == 9 * PAGE
    rows.close()


def test_new_rows_are_zero_and_take_no_room(disk: IoPool, tmp_path: Path) -> None:
    rows = RowFile.create(disk, tmp_path / "rows", 1 << 20, 256, torch.float32)
    assert (tmp_path / "rows").stat().st_size == 1 << 30
    assert (tmp_path / "rows").stat().st_blocks * 512 < 1 << 20
    out = torch.ones(2, 256)
    rows.read_rows(torch.tensor([0, (1 << 20) - 1]), out, torch.arange(2))
    assert not out.any()
    with pytest.raises(FileExistsError):
        RowFile.create(disk, tmp_path / "rows", 1, 1, torch.float32)
    rows.close()


def test_several_reads_are_in_flight(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = IoPool(in_flight=3, gap_bytes=0, run_bytes=PAGE)
    rows = page_rows(disk, tmp_path / "rows", 24)
    together = threading.Barrier(3, timeout=20)
    for name in ("pread_into", "read_file_rows"):
        real = getattr(disk_module, name)
        monkeypatch.setattr(disk_module, name, lambda *what, real=real: (together.wait(), real(*what))[1])
    out = torch.empty(24, PAGE // 4)
    rows.read_range(0, 24, out)
    rows.read_rows(torch.arange(24), out, torch.arange(24))
    assert out[:, 0].tolist() == list(range(24))
    rows.close()
    disk.close()


def test_callers_side_by_side(tmp_path: Path) -> None:
    disk = IoPool(in_flight=2, gap_bytes=300, run_bytes=2000)
    rows, values = RowFile.create(disk, tmp_path / "rows", 2000, 16, torch.float32), normal(2000, 16).float()
    rows.write_range(0, values)
    even, odd = torch.arange(0, 2000, 2), torch.arange(1, 2000, 2)
    at = torch.arange(1000)

    def load() -> bool:
        out = torch.empty(1000, 16)
        rows.read_rows(even, out, at.flip(0))
        return torch.equal(out.flip(0), values[even])

    with ThreadPoolExecutor(2) as callers:
        loads = [callers.submit(load) for _ in range(10)]
        store = callers.submit(rows.add_rows, odd, values[odd], at)
        assert all(future.result() for future in loads)
        assert store.exception() is None
    out = torch.empty(2000, 16)
    rows.read_range(0, 2000, out)
    assert torch.equal(out[even], values[even])
    assert torch.equal(out[odd], 2 * values[odd])
    rows.close()
    disk.close()


def test_staging_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = [], torch.empty
    disk = IoPool(in_flight=2, run_bytes=8000)
    rows = RowFile.create(disk, tmp_path / "rows", 20000, 10, torch.float32)
    out, at = torch.zeros(10000, 10, dtype=torch.float64), torch.arange(10000)
    added = torch.ones(10000, 10)
    monkeypatch.setattr(torch, "empty", lambda size, **kind: made.append(size) or real(size, **kind))
    rows.read_rows(2 * at, out, at)
    rows.read_range(5, 10005, out)
    rows.write_range(0, out[:, :10].float().t().contiguous().t())
    rows.add_rows(2 * at, added, at)
    assert set(made) == {8000 + PAGE}
    assert len(made) <= 2
    rows.close()
    disk.close()


def test_a_file_that_shrinks(disk: IoPool, tmp_path: Path) -> None:
    rows = page_rows(disk, tmp_path / "rows", 50)
    os.truncate(tmp_path / "rows", 40 * PAGE + 7)
    out = torch.zeros(50, PAGE // 4)
    with pytest.raises(InputError, match="ends before") as caught:
        rows.read_rows(torch.tensor([3, 40]), out, torch.arange(2))
    assert caught.value.needed == f"{50 * PAGE:,} bytes"
    assert caught.value.got == f"{40 * PAGE + 7:,} bytes"
    with pytest.raises(InputError, match="ends before"):
        rows.read_range(0, 50, out)
    with pytest.raises(InputError, match="ends before"):
        RowFile.open_existing(disk, tmp_path / "rows", 41, PAGE // 4, torch.float32)
    rows.close()


def test_nothing_runs_after_a_failure(disk: IoPool) -> None:
    running, done = threading.Event(), []

    def slow() -> None:
        running.wait(20)
        done.append(True)

    def fails() -> None:
        running.set()
        raise ArithmeticError

    with pytest.raises(ArithmeticError):
        disk.run_tasks([slow, fails, *[slow] * 50])
    assert 1 <= len(done) < 51
    before = len(done)
    disk.run_tasks([])
    assert len(done) == before


@pytest.mark.parametrize("add", [False, True])
def test_a_full_disk(disk: IoPool, add: bool) -> None:
    values, at = torch.ones(3, 1000), torch.arange(3)
    rows = RowFile(disk, io.FileIO("/dev/full", "r+"), 5, 1000, torch.float32)
    with pytest.raises(InputError, match="cannot grow") as caught:
        rows.add_rows(at, values, at) if add else rows.write_range(0, values)
    rows.close()
    assert caught.value.needed == "room for 20,000 bytes in all"
    assert caught.value.got == os.strerror(errno.ENOSPC)


def test_other_failures_are_told_as_they_are(disk: IoPool, tmp_path: Path) -> None:
    rows = page_rows(disk, tmp_path / "rows", 5)
    file = os.open(tmp_path / "rows", os.O_WRONLY)
    os.dup2(file, rows._file.fileno())
    with pytest.raises(OSError, match="Bad file descriptor") as caught:
        rows.read_rows(torch.arange(5), torch.empty(5, PAGE // 4), torch.arange(5))
    assert caught.value.errno == errno.EBADF
    assert caught.value.filename == tmp_path / "rows"
    os.close(file)
    rows.close()


def test_a_row_may_be_longer_than_a_run(tmp_path: Path) -> None:
    disk = IoPool(run_bytes=16)
    rows, values = RowFile.create(disk, tmp_path / "rows", 6, 100, torch.float64), normal(6, 100)
    rows.write_range(0, values.float())
    out = torch.empty(6, 100, dtype=torch.float64)
    rows.read_rows(torch.arange(6), out, torch.arange(6).flip(0))
    assert torch.equal(out.flip(0), values.float().double())
    rows.close()
    disk.close()


def test_existing_rows_of_another_worker(disk: IoPool, tmp_path: Path) -> None:
    mine = page_rows(disk, tmp_path / "rows", 10)
    other = IoPool()
    theirs = RowFile.open_existing(other, tmp_path / "rows", 4, PAGE // 4, torch.float32, offset=6 * PAGE)
    theirs.write_range(1, torch.full((1, PAGE // 4), -1.0))
    out = torch.empty(10, PAGE // 4)
    mine.read_range(0, 10, out)
    assert out[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 6, -1, 8, 9]
    assert other.written_bytes == PAGE
    theirs.close()
    mine.close()
    other.close()
