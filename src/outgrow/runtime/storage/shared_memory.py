"""Rows in memory that several processes of a host have in common."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.runtime.storage.tempdir_reaper import temporary_directory

_SHARED_MEMORY = Path("/dev/shm")


@contextmanager
def shared_memory_directory() -> Iterator[Path]:
    """Create a folder whose files are in memory, removed when the context or this process ends.

    Raises:
        InputError: The system has no such folder.
    """
    if not _SHARED_MEMORY.is_dir():
        raise InputError(
            "workers cannot have memory in common",
            needed=f"the folder {_SHARED_MEMORY} of Linux",
            got="no such folder",
            repair="leave sharing on",
        )
    with temporary_directory("outgrow-rows-", _SHARED_MEMORY) as folder:
        yield folder


def map_shared_rows(path: Path, num_rows: int, width: int, dtype: torch.dtype) -> Tensor:
    """Return ``[num_rows, width]``: the contents of a file in memory, zeros where it is new; changes are seen by all.

    Args:
        path: In a folder of `shared_memory_directory`.
        num_rows: Number of rows.
        width: Number of columns.
        dtype: Type of the values.
    """
    if not num_rows * width:
        return torch.zeros(num_rows, width, dtype=dtype)
    return torch.from_file(str(path), shared=True, size=num_rows * width, dtype=dtype).view(num_rows, width)
