"""How much memory a process holds and may take: only what cannot be evicted counts."""

from __future__ import annotations

import ctypes
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.runtime.system.process_memory import (
    PeakMemorySampler,
    allocate_mapped_tensor,
    resident_bytes,
    return_freed_memory,
)

SIZE = 200 << 20


def test_the_peak_sees_a_tensor_that_is_gone_again() -> None:
    with PeakMemorySampler() as memory:
        before = resident_bytes()
        tensor = torch.ones(SIZE // 4)
        time.sleep(0.2)
        del tensor
        between = resident_bytes()
    assert memory.peak_bytes - before == pytest.approx(SIZE, rel=0.1)
    assert between < before + SIZE // 2


def test_the_first_and_the_last_moment_count() -> None:
    memory = PeakMemorySampler()
    assert memory.peak_bytes == pytest.approx(resident_bytes(), rel=0.05)
    with memory:
        tensor = torch.ones(SIZE // 4)
    assert memory.peak_bytes >= SIZE
    assert tensor[0] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells file pages apart")
def test_pages_of_mapped_files_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "big.npy"
    np.save(path, np.ones(SIZE // 8))
    before, all_before = resident_bytes(), psutil.Process().memory_info().rss
    mapped = np.load(path, mmap_mode="r")
    assert mapped.sum() == SIZE // 8
    assert psutil.Process().memory_info().rss - all_before > SIZE // 2
    assert resident_bytes() - before < SIZE // 4


def test_the_watching_thread_ends_when_the_work_fails() -> None:
    memory = PeakMemorySampler()
    with pytest.raises(ZeroDivisionError), memory:
        _ = 1 / 0
    assert not memory._thread.is_alive()


def test_a_fresh_process_is_small() -> None:
    """Nothing heavy is loaded to find out how much memory there is."""
    program = (
        "import sys; from outgrow.runtime.system.process_memory import resident_bytes;"
        " print(resident_bytes(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    size, with_torch = done.stdout.split()
    assert int(size) < 100 << 20
    assert with_torch == "False"


@pytest.mark.skipif(sys.platform != "linux", reason="glibc")
def test_freed_memory_goes_back_although_something_lies_above_it() -> None:
    """What glibc allocates after a large tensor was freed once would stay until all above it is freed as well."""
    program = """
import ctypes, sys
from outgrow.runtime.system.process_memory import resident_bytes, return_freed_memory
if sys.argv[1] == "returned":
    return_freed_memory()
c = ctypes.CDLL(None)
c.malloc.restype, c.malloc.argtypes, c.free.argtypes = ctypes.c_void_p, [ctypes.c_size_t], [ctypes.c_void_p]
c.free(c.malloc(30 << 20))
large = c.malloc(24 << 20)
ctypes.memset(large, 1, 24 << 20)
above = c.malloc(100 << 10)
before = resident_bytes()
c.free(large)
print(before - resident_bytes())
"""
    freed = {
        way: int(subprocess.run([sys.executable, "-c", program, way], capture_output=True, check=True).stdout)
        for way in ("kept", "returned")
    }
    assert freed["returned"] == pytest.approx(24 << 20, rel=0.1)
    assert freed["kept"] < 8 << 20


@pytest.mark.parametrize("library", [object(), None])
def test_a_system_without_that_choice_is_left_alone(library: object, monkeypatch: pytest.MonkeyPatch) -> None:
    def load(name: None) -> object:
        if library is None:
            raise OSError("no such library")
        return library

    monkeypatch.setattr(ctypes, "CDLL", load)
    return_freed_memory()


def test_a_mapped_file_is_zeros_and_can_be_written(disk: Path) -> None:
    rows = allocate_mapped_tensor(disk, (3, 2), torch.float64)
    assert (rows.shape, rows.dtype, rows.count_nonzero()) == ((3, 2), torch.float64, 0)
    rows[1] = 5
    assert rows.sum() == 10
    assert list(disk.iterdir()) == []
    assert allocate_mapped_tensor(disk, (0, 2), torch.int32).shape == (0, 2)


def test_a_mapped_file_is_refused_where_the_disk_is_full(disk: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would otherwise end the process when a page is written."""

    def full(file: int, offset: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.posix_fallocate", full)
    with pytest.raises(InputError, match="too little room") as caught:
        allocate_mapped_tensor(disk, (1000,), torch.int64)
    assert "8,000 bytes" in caught.value.needed
    assert "scratch" in caught.value.repair
