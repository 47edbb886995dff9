"""What the disk and the link to a GPU give at most, beside what `offload.py` reaches."""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path

MIB = 1 << 20


def link_rate() -> float:
    """Bytes a second of plain copies from pinned memory to the device."""
    import torch

    here, there = torch.empty(1 << 28).pin_memory(), torch.empty(1 << 28, device="cuda")
    best = float("inf")
    for _ in range(5):
        torch.cuda.synchronize()
        began = time.perf_counter()
        there.copy_(here, non_blocking=True)
        torch.cuda.synchronize()
        best = min(best, time.perf_counter() - began)
    return here.nbytes / best


def sequential_rate(folder: Path, num_bytes: int) -> float:
    """Bytes a second that a plain sequential read of a file gives that is not in memory."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        piece = os.urandom(MIB)
        for _ in range(num_bytes // MIB):
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        began, read = time.perf_counter(), 0
        while data := os.pread(file.fileno(), MIB, read):
            read += len(data)
        return read / (time.perf_counter() - began)
