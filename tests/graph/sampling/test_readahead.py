"""Rows of mapped arrays are read ahead in coalesced runs."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.sampling.readahead import RowReadahead, coalesce_ranges, is_mapped, make_row_readahead
from outgrow.graph.topology import Topology
from support import disk_folder

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads ahead on Linux only")


@given(st.lists(st.integers(0, 50), min_size=1, max_size=40), st.data(), st.integers(0, 30))
def test_runs_cover_the_rows_and_no_wide_gap(sizes: list[int], data: st.DataObject, gap: int) -> None:
    indptr = np.concatenate([[0], np.cumsum(sizes)])
    rows = np.array(sorted(data.draw(st.sets(st.integers(0, len(sizes) - 1)))), dtype=np.int64)
    runs = coalesce_ranges(indptr[rows], indptr[rows + 1], gap)
    wanted = {at for row in rows for at in range(indptr[row], indptr[row + 1])}
    covered = [at for begin, end in runs for at in range(begin, end)]
    assert wanted <= set(covered)
    assert len(covered) == len(set(covered))
    # Runs begin and end where a row does, and are further apart than the gap.
    assert all(begin in wanted and end - 1 in wanted for begin, end in runs)
    assert all(after[0] - before[1] > gap for before, after in pairwise(runs))


@linux
def test_only_large_mapped_arrays_are_read_ahead(tmp_path: Path) -> None:
    made = np.arange(1 << 20, dtype=np.int32)
    np.save(tmp_path / "indices.npy", made)
    mapped = np.load(tmp_path / "indices.npy", mmap_mode="r")
    indptr = np.arange(0, len(made) + 1, 4)
    assert is_mapped(mapped)
    assert not is_mapped(made)
    assert make_row_readahead(indptr, [made], limit=1 << 20) is None
    assert make_row_readahead(indptr, [mapped], limit=16 << 20) is None
    assert make_row_readahead(indptr, [mapped, made], limit=1 << 20) is not None


@linux
def test_rows_are_in_the_page_cache_afterwards(request: pytest.FixtureRequest) -> None:
    """As advice: the kernel is asked which pages it holds."""
    place = tempfile.TemporaryDirectory(prefix="outgrow-test-", dir=disk_folder())
    request.addfinalizer(place.cleanup)
    tmp_path = Path(place.name)
    np.save(tmp_path / "indices.npy", np.arange(1 << 21, dtype=np.int32))
    with (tmp_path / "indices.npy").open("rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    mapped = np.load(tmp_path / "indices.npy", mmap_mode="r")
    pages = -(-mapped.nbytes // mmap.PAGESIZE) + 1

    def resident() -> np.ndarray:
        held = (ctypes.c_ubyte * pages)()
        begin = mapped.ctypes.data - mapped.ctypes.data % mmap.PAGESIZE
        if ctypes.CDLL(None).mincore(ctypes.c_void_p(begin), ctypes.c_size_t(mapped.nbytes), held):
            pytest.skip("the system does not tell which pages it holds")
        return np.frombuffer(held, dtype=np.uint8) & 1

    if resident().mean() > 0.25:
        pytest.skip("the system keeps all pages of this file")
    indptr = np.arange(0, len(mapped) + 1, 1024)
    rows = np.array([1001, 1000, 1900])
    assert RowReadahead(indptr, [mapped]).read_rows(rows) == 2
    wanted = [(int(row) * 4096 + mapped.ctypes.data % mmap.PAGESIZE) // mmap.PAGESIZE for row in rows]
    for _ in range(100):
        if resident()[wanted].all():
            break
        time.sleep(0.05)
    assert resident()[wanted].all()
    assert resident().mean() < 0.5


@linux
def test_a_sampler_reads_ahead_the_rows_of_each_hop(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    indptr = np.concatenate([[0], np.cumsum(generator.integers(0, 9, 500))])
    np.save(tmp_path / "indices.npy", np.sort(generator.integers(0, 500, indptr[-1])).astype(np.int32))
    mapped = np.load(tmp_path / "indices.npy", mmap_mode="r+")
    topology = Topology(indptr=torch.from_numpy(indptr), indices=torch.from_numpy(mapped))
    seeds = torch.arange(0, 500, 50)
    plain = NeighborSampler([topology] * 2, (3, 3), 0).sample_blocks(seeds, 1, 0)
    asked: list[np.ndarray] = []
    with patch.object(RowReadahead, "read_rows", lambda self, rows: asked.append(rows.copy())):
        limited = NeighborSampler([topology] * 2, (3, 3), 0, memory_limit=1 << 10).sample_blocks(seeds, 1, 0)
    assert [len(rows) for rows in asked] == [len(plain[1].dst_nodes), len(plain[0].dst_nodes)]
    for one, other in zip(plain, limited, strict=True):
        assert torch.equal(one.src_nodes, other.src_nodes)
        assert torch.equal(one.edges.indices, other.edges.indices)
