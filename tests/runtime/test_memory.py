"""The peak of memory is that of this process, and only what cannot be evicted counts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from outgrow.runtime.memory import PeakMemory, resident_bytes

SIZE = 200 << 20


def test_the_peak_sees_a_tensor_that_is_gone_again() -> None:
    with PeakMemory() as memory:
        before = resident_bytes()
        tensor = torch.ones(SIZE // 4)
        time.sleep(0.2)
        del tensor
        between = resident_bytes()
    assert memory.peak_bytes - before == pytest.approx(SIZE, rel=0.1)
    assert between < before + SIZE // 2


def test_the_first_and_the_last_moment_count() -> None:
    memory = PeakMemory()
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
    memory = PeakMemory()
    with pytest.raises(ZeroDivisionError), memory:
        _ = 1 / 0
    assert not memory._thread.is_alive()


def test_a_fresh_process_is_small() -> None:
    """Nothing heavy is loaded to find out how much memory there is."""
    program = (
        "import sys; from outgrow.runtime.memory import resident_bytes; print(resident_bytes(), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    size, with_torch = done.stdout.split()
    assert int(size) < 100 << 20
    assert with_torch == "False"
