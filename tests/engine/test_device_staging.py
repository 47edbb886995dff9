"""Copies of batches: what a stream of a GPU reads, its allocator is told."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.engine.device_staging import DeviceStaging, iterate_tensors
from outgrow.graph.topology import Topology
from outgrow.runtime.distributed.comm import SingleProcessComm
from support import sparse_rows

TRIANGLE = Topology(indptr=torch.arange(4), indices=torch.tensor([2, 0, 1], dtype=torch.int32))


def test_all_tensors_of_a_block_and_of_rows() -> None:
    block = TRIANGLE.block
    found = {id(tensor) for tensor in iterate_tensors([block, torch.ones(3, 2)])}
    expected = [block.src_nodes, block.dst_nodes, block.src_degree, block.edges.indptr, block.edges.indices]
    assert found >= {id(tensor) for tensor in expected}
    rows = sparse_rows(torch.eye(3), least=0.5)
    assert {id(tensor) for tensor in iterate_tensors(rows)} >= {id(rows.indptr), id(rows.indices), id(rows.values)}
    assert list(iterate_tensors({"a": (1, None), "b": "text"})) == []


def test_the_computing_stream_is_told_of_copies() -> None:
    staging, told = DeviceStaging(SingleProcessComm()), list[tuple[Tensor, Any]]()
    staging._streams = SimpleNamespace(asynchronous=True)  # type: ignore[assignment]
    rows = torch.ones(3, 2)
    with (
        patch("torch.cuda.current_stream", lambda device: "computes"),
        patch.object(Tensor, "is_cuda", new=True),
        patch.object(Tensor, "record_stream", lambda tensor, stream: told.append((tensor, stream))),
    ):
        staging.hand_over([TRIANGLE.block], rows)
    assert {stream for _, stream in told} == {"computes"}
    assert any(tensor is rows for tensor, _ in told)
    assert any(tensor is TRIANGLE.block.edges.indices for tensor, _ in told)


def test_on_a_cpu_nobody_is_told() -> None:
    with patch.object(Tensor, "record_stream") as told:
        DeviceStaging(SingleProcessComm()).hand_over([TRIANGLE.block], torch.ones(3, 2))
    assert not told.called
