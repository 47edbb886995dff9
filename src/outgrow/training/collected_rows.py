"""Output of nodes that an evaluation reads once it is complete, collected piece by piece."""

from __future__ import annotations

from contextlib import ExitStack

import torch
from torch import Tensor

from outgrow.engine.objective import row_range
from outgrow.inference.chunked import InferenceMemory
from outgrow.inference.scored_rows import ScoredRows, StorageRows, TensorRows
from outgrow.runtime.distributed.comm import Comm
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage
from outgrow.runtime.storage.scratch_dir import scratch_directory


class CollectedRows:
    """Output of some nodes, collected piece by piece: in memory, or in a scratch file.

    Args:
        nodes: ``[n]`` int64, ascending.
        memory_bytes: What may be in memory.
        readers: How often `release` is called before rows are dropped.
    """

    def __init__(self, nodes: Tensor, memory_bytes: int, readers: int) -> None:
        self._nodes = nodes
        self._memory_bytes = memory_bytes
        self._readers = readers
        self._last: Tensor | None = None
        self._whole: Tensor | None = None
        self._storage: RowStorage | None = None
        self._stack = ExitStack()

    @staticmethod
    def of_worker(nodes: Tensor, comm: Comm, memory_limit: int | None, readers: int) -> CollectedRows:
        """Return rows of a worker whose DEVICE tier has a limit in bytes, or None for what there is."""
        return CollectedRows(nodes, InferenceMemory.of_worker(comm, memory_limit).table_bytes, readers)

    def add(self, nodes: Tensor, out: Tensor) -> None:
        """Add the output of some nodes, ascending; the same output once more is passed over."""
        if out is self._last:
            return
        self._last = out
        if len(nodes) == len(self._nodes) and torch.equal(nodes, self._nodes):
            self._whole = out
            return
        if self._storage is None:
            self._storage = self._create(out.shape[1], out.dtype)
        if not len(nodes):
            return
        near = row_range(self._nodes, int(nodes[0]), int(nodes[-1]) + 1)
        wanted = self._nodes[near]
        rows = out if len(wanted) == len(nodes) else out[torch.searchsorted(nodes, wanted)]
        self._storage.write_range(near.start, rows)

    def _create(self, width: int, dtype: torch.dtype) -> RowStorage:
        count = len(self._nodes)
        num_bytes = count * width * dtype.itemsize
        if num_bytes <= self._memory_bytes:
            return InMemoryRows(torch.empty(count, width, dtype=dtype))
        folder = self._stack.enter_context(scratch_directory(None, num_bytes))
        io_pool = IoPool()
        self._stack.callback(io_pool.close)
        file = RowFile.create(io_pool, folder / "rows", count, width, dtype)
        self._stack.callback(file.close)
        return file

    @property
    def rows(self) -> ScoredRows:
        """All rows, once they were added."""
        if self._whole is not None:
            return TensorRows(self._nodes, self._whole)
        if self._storage is None:
            return TensorRows(self._nodes[:0], torch.empty(0, 0))
        return StorageRows(self._nodes, self._storage)

    def release(self) -> None:
        """Drop the rows, if no other reader needs them."""
        self._readers -= 1
        if not self._readers:
            self._whole = self._storage = self._last = None
            self._stack.close()
