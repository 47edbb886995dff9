"""Copies of batches: what a stream of a GPU reads, its allocator is told."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import closing
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from outgrow.core.tensors import iterate_tensors
from outgrow.engine.device_staging import Copied, copy_ahead
from outgrow.graph.topology import Topology
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.runtime.system.device import let_current_stream_read

TRIANGLE = Topology(indptr=torch.arange(4), indices=torch.tensor([2, 0, 1], dtype=torch.int32))


def test_the_computing_stream_is_told_of_copies() -> None:
    told, rows = list[tuple[Tensor, Any]](), torch.ones(3, 2)
    with (
        patch("torch.cuda.current_stream", lambda device: "computes"),
        patch.object(Tensor, "is_cuda", new=True),
        patch.object(Tensor, "record_stream", lambda tensor, stream: told.append((tensor, stream))),
    ):
        let_current_stream_read(iterate_tensors([TRIANGLE.block, rows]), torch.device("cuda"))
    assert {stream for _, stream in told} == {"computes"}
    assert any(tensor is rows for tensor, _ in told)
    assert any(tensor is TRIANGLE.block.edges.indices for tensor, _ in told)


def test_copies_are_one_ahead_in_a_thread_of_their_own() -> None:
    copied, closed = list[tuple[int, str]](), threading.Event()

    def items() -> Generator[int]:
        try:
            yield from range(9)
        finally:
            closed.set()

    def copy(item: int) -> Copied[int]:
        copied.append((item, threading.current_thread().name))
        return -item, ()

    with closing(copy_ahead(items(), copy, SingleProcessComm())) as results:
        assert next(results) == 0
        while len(copied) < 2:
            time.sleep(0.001)
        assert next(results) == -1
        time.sleep(0.05)
        assert [item for item, _ in copied] == [0, 1, 2]
        assert {name for _, name in copied} == {"outgrow-copy"}
    assert closed.wait(30)


def test_an_error_of_a_copy_is_raised_where_it_is_used() -> None:
    def copy(item: int) -> Copied[int]:
        raise MemoryError(str(item))

    results = copy_ahead((each for each in range(2)), copy, SingleProcessComm())
    with closing(results), pytest.raises(MemoryError, match="0"):
        next(results)
