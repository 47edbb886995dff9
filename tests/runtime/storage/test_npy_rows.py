"""Rows of .npy files: of every type of features, and what is no such file."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.runtime.storage.row_file import IoPool, open_npy_rows
from support import normal


@pytest.fixture
def disk() -> Iterator[IoPool]:
    """A disk that leaves no descriptor behind."""
    before = len(os.listdir("/proc/self/fd"))
    disk = IoPool()
    yield disk
    disk.close()
    # Of other tests some may be closed meanwhile, when what held them is collected.
    assert len(os.listdir("/proc/self/fd")) <= before


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64])
@pytest.mark.parametrize("version", [(1, 0), (2, 0)])
def test_npy_rows(disk: IoPool, tmp_path: Path, kind: type[np.generic], version: tuple[int, int]) -> None:
    values = normal(9, 5).numpy().astype(kind)
    with (tmp_path / "rows.npy").open("wb") as file:
        np.lib.format.write_array(file, values, version)
    rows = open_npy_rows(disk, tmp_path / "rows.npy")
    out = torch.empty(9, 5, dtype=torch.float64)
    rows.read_rows(torch.tensor([0, 3, 8]), out, torch.tensor([1, 0, 2]))
    assert np.array_equal(out[:3].numpy(), values[[3, 0, 8]].astype(np.float64))
    rows.read_range(0, 9, out)
    assert np.array_equal(out.numpy(), values.astype(np.float64))
    one = torch.zeros(1, dtype=torch.int64)
    with pytest.raises(io.UnsupportedOperation, match="reading only"):
        rows.write_range(0, out[:1].to(rows.dtype))
    if kind != np.float16:
        with pytest.raises(io.UnsupportedOperation, match="reading only"):
            rows.add_rows(one, out[:1].to(rows.dtype), one)
    rows.close()


def test_npy_rows_in_bfloat16(disk: IoPool, tmp_path: Path) -> None:
    values = normal(9, 5).bfloat16()
    np.save(tmp_path / "rows.npy", values.view(torch.uint16).numpy())
    rows = open_npy_rows(disk, tmp_path / "rows.npy")
    assert rows.dtype == torch.bfloat16
    out = torch.empty(9, 5)
    rows.read_range(0, 9, out)
    assert torch.equal(out, values.float())
    rows.read_rows(torch.tensor([0, 3, 8]), out, torch.tensor([1, 0, 2]))
    assert torch.equal(out[:3], values[[3, 0, 8]].float())
    rows.close()


@pytest.mark.parametrize(
    ("values", "why"),
    [
        (np.zeros(4), "shape"),
        (np.zeros((2, 2, 2)), "shape"),
        (np.asfortranarray(np.ones((3, 4))), "column by column"),
        (np.zeros((2, 2), dtype=">f4"), "byte order"),
        (np.zeros((2, 2), dtype="U3"), "type"),
        (np.zeros((2, 2), dtype=np.int64), "int64"),
    ],
)
def test_other_npy_files(disk: IoPool, tmp_path: Path, values: np.ndarray, why: str) -> None:
    np.save(tmp_path / "rows.npy", values)
    with pytest.raises(InputError, match="does not hold rows") as caught:
        open_npy_rows(disk, tmp_path / "rows.npy")
    assert why in caught.value.got


def test_files_that_are_no_npy_files(disk: IoPool, tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    header = b"{'descr': ',<f8', 'fortran_order': False, 'shape': (2, 2), }"
    for text in (b"something else", b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + bytes(32)):
        path.write_bytes(text)
        with pytest.raises(InputError, match="does not hold rows"):
            open_npy_rows(disk, path)
    np.save(path, np.zeros((10, 10)))
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(InputError, match="ends before"):
        open_npy_rows(disk, path)
