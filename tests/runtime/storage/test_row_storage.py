"""Rows in memory and rows on disk do the same, which is what plain indexing does."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage
from support import normal

WIDER = [
    (torch.float16, torch.float16),
    (torch.float16, torch.float32),
    (torch.bfloat16, torch.float32),
    (torch.float32, torch.float32),
    (torch.float32, torch.float64),
    (torch.float64, torch.float64),
]
KINDS = ["memory", "disk", "one thread", "tiny runs", "no gaps"]
DISKS = {
    "disk": {},
    "one thread": {"in_flight": 1, "gap_bytes": 50, "run_bytes": 500},
    "tiny runs": {"in_flight": 3, "run_bytes": 1},
    "no gaps": {"gap_bytes": 0, "run_bytes": 100},
}


@contextmanager
def host(kind: str, values: Tensor) -> Iterator[RowStorage]:
    """Some rows in the HOST tier that hold these values."""
    if kind == "memory":
        yield InMemoryRows(values.clone())
        return
    with tempfile.TemporaryDirectory() as folder:
        disk = IoPool(**DISKS[kind])
        rows = RowFile.create(disk, Path(folder) / "rows", *values.shape, values.dtype)
        rows.write_range(0, values)
        yield rows
        rows.close()
        disk.close()


def held(rows: RowStorage) -> Tensor:
    """All that some rows hold."""
    out = torch.empty(rows.num_rows, rows.width, dtype=rows.dtype)
    rows.read_range(0, rows.num_rows, out)
    return out


@st.composite
def ascending(draw: st.DrawFn) -> Tensor:
    rows = sorted(draw(st.lists(st.integers(0, 49), unique=True)))
    return torch.tensor(rows, dtype=draw(st.sampled_from([torch.int32, torch.int64])))


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    types=st.sampled_from(WIDER),
    rows=ascending(),
    width=st.integers(1, 12),
    padding=st.integers(0, 5),
    seed=st.integers(0, 99),
)
def test_read(kind: str, types: tuple[torch.dtype, torch.dtype], rows: Tensor, width: int, padding: int, seed: int):
    values = normal(50, width, seed=seed).to(types[0])
    wide = torch.full((60, width + padding), -1.0, dtype=types[1])
    out = wide[:, padding // 2 : padding // 2 + width]
    to = torch.randperm(60, generator=torch.Generator().manual_seed(seed))[: len(rows)].to(rows.dtype)
    expected = wide.clone()
    expected[to, padding // 2 : padding // 2 + width] = values[rows].to(types[1])
    with host(kind, values) as there:
        there.read_rows(rows, out, to)
    assert torch.equal(wide, expected)


@settings(deadline=None, max_examples=100)
@given(
    kind=st.sampled_from(KINDS),
    types=st.sampled_from(WIDER),
    ends=st.tuples(st.integers(0, 50), st.integers(0, 50)).map(sorted),
    padding=st.integers(0, 3),
)
def test_ranges(kind: str, types: tuple[torch.dtype, torch.dtype], ends: list[int], padding: int) -> None:
    (first, last), (given_type, wide_type) = ends, types
    values, changed = normal(50, 7).to(wide_type), normal(last - first, 7 + padding, seed=1).to(given_type)
    expected = values.clone()
    expected[first:last] = changed[:, :7].to(wide_type)
    with host(kind, values) as there:
        there.write_range(first, changed[:, :7])
        assert torch.equal(held(there), expected)
    with host(kind, values.to(given_type)) as there:
        out = torch.full((last - first, 7 + padding), -1.0, dtype=wide_type)
        there.read_range(first, last, out[:, :7])
        assert torch.equal(out[:, :7], values[first:last].to(given_type).to(wide_type))
        assert (out[:, 7:] == -1).all()


@settings(deadline=None, max_examples=150)
@given(
    kind=st.sampled_from(KINDS),
    types=st.sampled_from(WIDER[3:]),
    rows=ascending(),
    padding=st.integers(0, 3),
    seed=st.integers(0, 99),
)
def test_add(kind: str, types: tuple[torch.dtype, torch.dtype], rows: Tensor, padding: int, seed: int) -> None:
    random = torch.Generator().manual_seed(seed)
    at = torch.randint(20, (len(rows),), generator=random).to(rows.dtype)
    sums, added = normal(50, 6).to(types[1]), normal(20, 6 + padding, seed=1).to(types[0])[:, padding:]
    expected = sums.clone()
    expected[rows] += added[at].to(types[1])
    with host(kind, sums) as there:
        there.add_rows(rows, added, at)
        torch.testing.assert_close(held(there), expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_nothing_is_narrowed(kind: str) -> None:
    one, two = torch.tensor([1]), torch.zeros(2, 3)
    with host(kind, normal(5, 3, dtype=torch.float64)) as there:
        before = held(there)
        for narrow in (torch.float32, torch.float16):
            with pytest.raises(TypeError, match="without loss"):
                there.read_rows(one, two.to(narrow), one)
            with pytest.raises(TypeError, match="without loss"):
                there.read_range(0, 2, two.to(narrow))
        with pytest.raises(TypeError, match="sums"):
            there.add_rows(one, two.half(), one)
        assert torch.equal(held(there), before)
    with host(kind, normal(5, 3).half()) as there:
        for wide in (torch.float32, torch.bfloat16):
            with pytest.raises(TypeError, match="without loss"):
                there.write_range(0, two.to(wide))
            with pytest.raises(TypeError, match="sums"):
                there.add_rows(one, two.to(wide), one)


@pytest.mark.parametrize("kind", KINDS[:2])
def test_rows_must_exist(kind: str) -> None:
    out = torch.zeros(4, 3)
    to = torch.arange(2)
    with host(kind, normal(5, 3).float()) as there:
        for rows in ([-1, 2], [3, 5]):
            with pytest.raises(ValueError, match="of 5"):
                there.read_rows(torch.tensor(rows), out, to)
            with pytest.raises(ValueError, match="of 5"):
                there.add_rows(torch.tensor(rows), out, to)
        with pytest.raises(ValueError, match="of 5"):
            there.read_range(2, 6, out)
        with pytest.raises(ValueError, match="of 5"):
            there.write_range(2, out)
        with pytest.raises(ValueError, match="width 3"):
            there.read_range(0, 5, out)
        with pytest.raises(ValueError, match="width 3"):
            there.write_range(0, out[:, :2])


def test_memory_is_written_in_place() -> None:
    values = torch.zeros(4, 2)
    rows = InMemoryRows(values)
    rows.write_range(1, torch.ones(2, 2))
    rows.add_rows(torch.tensor([2]), torch.ones(1, 2), torch.tensor([0]))
    assert values[:, 0].tolist() == [0, 1, 2, 0]
