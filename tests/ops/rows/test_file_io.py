"""Rows of files, moved by compiled loops and by Python's: what plain indexing does, and what the system answers."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from outgrow.ops.rows import file_io
from support import normal

ROWS, WIDTH, OFFSET = 60, 5, 7


def another(name: str) -> ModuleType:
    """The module once more, made for the platform that `sys.platform` names."""
    spec = importlib.util.spec_from_file_location(name, file_io.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", params=["compiled", "python"])
def module(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    if request.param == "compiled":
        yield file_io
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "platform", "win32")
        python = another("file_rows_in_python")
    assert not isinstance(python._read_rows, type(file_io._read_rows))
    yield python


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    file = os.open(tmp_path_factory.mktemp("rows") / "rows", os.O_RDWR | os.O_CREAT)
    yield file
    os.close(file)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), unique=True).map(sorted),
    gap_rows=st.integers(0, 9),
    run_rows=st.integers(1, 20),
    wide=st.booleans(),
    seed=st.integers(0, 99),
)
def test_read(module: ModuleType, file: int, rows: list[int], gap_rows: int, run_rows: int, wide: bool, seed: int):
    values = normal(ROWS, WIDTH, seed=seed).float()
    module.pwrite_from(file, OFFSET, values.numpy())
    to = np.random.default_rng(seed).permutation(ROWS)[: len(rows)].astype(np.int32)
    out = torch.zeros(ROWS, WIDTH, dtype=torch.float64 if wide else torch.float32)
    staged, given_rows = torch.empty(run_rows, WIDTH), np.array(rows, dtype=np.int32)
    runs, _ = module.read_file_rows(file, OFFSET, given_rows, gap_rows, staged, out, to)
    expected = torch.zeros_like(out)
    expected[torch.from_numpy(to).long()] = values[rows].to(out.dtype)
    assert torch.equal(out, expected)
    assert runs >= len(rows) / run_rows
    assert runs == len(rows) or gap_rows or any(np.diff(rows) == 1)


@settings(deadline=None, max_examples=100)
@given(
    rows=st.lists(st.integers(0, ROWS - 1), unique=True).map(sorted),
    gap_rows=st.integers(0, 9),
    run_rows=st.integers(1, 20),
    seed=st.integers(0, 99),
)
def test_add(module: ModuleType, file: int, rows: list[int], gap_rows: int, run_rows: int, seed: int) -> None:
    random = np.random.default_rng(seed)
    held, added = normal(ROWS, WIDTH, seed=seed).float(), normal(20, WIDTH, seed=seed + 1).float()
    at = random.integers(0, 20, len(rows))
    module.pwrite_from(file, OFFSET, held.numpy())
    staged, given_rows = torch.full((run_rows, WIDTH), float("nan")), np.array(rows, dtype=np.int64)
    runs, pages, written = module.change_file_rows(file, OFFSET, given_rows, gap_rows, staged, (added, at), adds=True)
    expected = held.clone()
    expected[rows] += added[at]
    module.pread_into(file, OFFSET, found := np.empty((ROWS, WIDTH), dtype=np.float32))
    assert np.array_equal(found, expected.numpy())
    assert written >= len(rows) * WIDTH * 4
    assert written == len(rows) * WIDTH * 4 or gap_rows
    assert runs <= min(len(rows), pages)
    assert runs or not rows


def test_runs_and_pages_are_counted(module: ModuleType, file: int) -> None:
    rows, width = np.array([0, 3, 9, 10, 30]), 1024
    module.pwrite_from(file, 0, np.zeros((40, width), dtype=np.float32))
    staged, out = torch.empty(8, width), torch.empty(5, width)
    assert module.read_file_rows(file, 0, rows, 2, staged, out, np.arange(5)) == (3, 4 + 2 + 1)
    assert module.read_file_rows(file, 100, rows, 2, staged, out, np.arange(5)) == (3, 5 + 3 + 2)
    added = torch.ones(5, width), np.arange(5)
    assert module.change_file_rows(file, 0, rows, 2, staged, added, adds=True) == (3, 7, 7 * 4096)
    assert module.change_file_rows(file, 100, rows, 1, staged, added, adds=True) == (4, 9, 5 * 4096)


def test_far_into_a_file(module: ModuleType, tmp_path: Path) -> None:
    file = os.open(tmp_path / "far", os.O_RDWR | os.O_CREAT)
    rows, at = np.array([9_000_000, 9_000_002], dtype=np.int32), np.arange(2)  # behind 9 GB
    added, out = normal(2, 256).float(), torch.empty(2, 256)
    os.truncate(file, 10 << 30)
    module.change_file_rows(file, 3, rows, 0, torch.empty(4, 256), (added, at), adds=True)
    module.read_file_rows(file, 3, rows, 4, torch.empty(4, 256), out, at)
    assert torch.equal(out, added)
    assert os.pread(file, 1024, 3 + 9_000_002 * 1024) == added[1].numpy().tobytes()
    os.close(file)


def test_the_end_of_a_file_and_other_errors(module: ModuleType, file: int, tmp_path: Path) -> None:
    some, at = np.ones(8, dtype=np.uint8), np.arange(1)
    staged, values = torch.ones(1, 2), torch.ones(1, 2)
    size, closed = 100, os.open(tmp_path / "closed", os.O_RDONLY | os.O_CREAT)
    for each in (file, tmp_path / "closed"):
        os.truncate(each, size)
    with pytest.raises(EOFError):
        module.pread_into(file, size - 7, some)
    with pytest.raises(EOFError):
        module.read_file_rows(file, size - 7, at, 0, staged, values, at)
    with pytest.raises(EOFError):
        module.change_file_rows(file, size - 7, at, 0, staged, (values, at), adds=True)
    for call in (
        lambda: module.pwrite_from(closed, 0, some),
        lambda: module.change_file_rows(closed, 0, at, 0, staged, (values, at), adds=True),
    ):
        with pytest.raises(OSError, match="Bad file descriptor") as caught:
            call()
        assert caught.value.errno == errno.EBADF
    os.close(closed)
    with open("/dev/full", "r+b", buffering=0) as full, pytest.raises(OSError, match="No space") as caught:
        module.pwrite_from(full.fileno(), 0, some)
    assert caught.value.errno == errno.ENOSPC
    folder = os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(IsADirectoryError):
        module.pread_into(folder, 0, some)
    os.close(folder)


@pytest.mark.parametrize("size", [100, 1])
def test_moving_begins_again_where_it_stopped(monkeypatch: pytest.MonkeyPatch, file: int, size: int) -> None:
    calls, code = [], ctypes.c_int32(0)

    def at_most(move: str) -> None:
        real = getattr(ctypes.CDLL(None, use_errno=True), move)

        def call(file: int, address: int, wanted: int, start: int) -> int:
            calls.append(move)
            code.value = errno.EINTR
            if len(calls) % 3 == 0:
                return -1
            return int(real(file, ctypes.c_void_p(address), ctypes.c_size_t(min(wanted, size)), ctypes.c_int64(start)))

        monkeypatch.setattr(file_io, f"_{move}", call)

    at_most("pread")
    at_most("pwrite")
    monkeypatch.setattr(file_io, "_errno_place", lambda: ctypes.pointer(code))
    values, found = np.random.default_rng(0).random((10, 10)), np.empty((10, 10))
    assert file_io.pwrite_memory.py_func(file, 5, values) == 0
    assert file_io.pread_memory.py_func(file, 5, found) == 0
    assert np.array_equal(found, values)
    assert len(calls) == 3 * values.nbytes / size - 1  # of three calls one is interrupted


def test_kernels_are_kept_on_disk(file: int) -> None:
    """Calls of the system by name are; calls by address would be compiled again by each process."""
    rows, staged, out = np.arange(3), torch.empty(4, 2), torch.empty(3, 2)
    file_io.pwrite_from(file, 0, np.zeros(100, dtype=np.uint8))
    copies = [file_io, another("file_rows_again")]
    for module in copies:
        module.read_file_rows(file, 0, rows, 0, staged, out, rows)
        module.change_file_rows(file, 0, rows, 0, staged, (out, rows), adds=True)
    for kernel in (copies[1]._read_rows, copies[1]._change_rows):
        assert sum(kernel.stats.cache_hits.values()) == 1
        assert not kernel.stats.cache_misses
