"""Rows that are stored in less than they are computed with: losses, bytes, what is told, and what is refused."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import cache
from typing import Any
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.ledger import Link
from outgrow.engine.shard import FullGraphShard
from outgrow.nn import GAT, GCN, SAGE
from outgrow.nn.model import Model
from outgrow.nn.tasks import NodeClassification
from outgrow.ops.rows import row_encoding
from outgrow.ops.rows.row_encoding import BFLOAT16, FULL, INT8, STORAGE_PRECISIONS, RowEncoding
from outgrow.runtime.distributed.comm import SingleProcessComm
from outgrow.strategies.base import Problem
from outgrow.strategies.offload.execution import ChunkedExecution
from outgrow.strategies.offload.strategy import Offload
from planted import WIDTH, planted
from support import disk_folder, normal

Array = NDArray[Any]
MODELS: dict[str, Callable[[], Model]] = {
    "gcn": lambda: GCN(WIDTH, 16, 2, layers=3),
    "sage": lambda: SAGE(WIDTH, 16, 2),
    "gat": lambda: GAT(WIDTH, 16, 2),
}
CLOSE = {BFLOAT16: 0.01, INT8: 0.05}
"""Relative distances of gradients: a rounding is 0.4% of a number, or of the largest of a row, in each layer."""


def problem_of(model: str) -> Problem:
    world = planted()
    torch.manual_seed(0)
    return Problem.from_node_labels(
        FullGraphShard(world.topology, SingleProcessComm()),
        features=world.features.float(),
        labels=world.labels,
        train=torch.arange(0, len(world.labels), 3),
        task=NodeClassification(),
        model=MODELS[model]().float(),
        seed=4,
    )


def gradients(model: str, **options: Any) -> tuple[float, Tensor, int, int]:
    """The loss of a step, its gradient, the bytes of rows that crossed, and those of its scratch files."""
    problem = problem_of(model)
    execution = replace(Offload(chunks=4, scratch_dir=str(disk_folder())), **options).prepare(problem)
    assert isinstance(execution, ChunkedExecution)
    [step] = execution.steps(1)
    found = torch.cat([each.grad.flatten() for each in problem.model.parameters() if each.grad is not None])
    moved = problem.shard.comm.ledger.bytes_by_link
    rows = sum(count for (link, kind), count in moved.items() if link in _LINKS and kind.value in _ROWS)
    scratch = problem.run_facts["scratch_bytes"]
    execution.close()
    assert isinstance(scratch, int)
    return step.loss, found, rows, scratch


_LINKS, _ROWS = (Link.HOST_TO_DEVICE, Link.DEVICE_TO_HOST), ("activations", "gradients")


@cache
def in_full(model: str) -> tuple[float, Tensor, int, int]:
    return gradients(model)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("precision", CLOSE)
def test_gradients_are_close(model: str, precision: str) -> None:
    (loss, right, rows, scratch), (near, found, fewer, less) = (
        in_full(model),
        gradients(model, storage_precision=precision),
    )
    assert near == pytest.approx(loss, rel=CLOSE[precision])
    apart = ((found - right).norm() / right.norm()).item()
    assert 0 < apart < CLOSE[precision]
    assert fewer == rows // 2 if precision == BFLOAT16 else fewer < rows / 2
    assert less == scratch // 2 if precision == BFLOAT16 else less < scratch / 2


def test_full_is_the_default_and_changes_no_bit() -> None:
    loss, right, *_ = in_full("gcn")
    again, found, *_ = gradients("gcn", storage_precision=FULL)
    assert (Offload().storage_precision, again) == (FULL, loss)
    assert torch.equal(found, right)


@pytest.mark.parametrize("precision", STORAGE_PRECISIONS)
def test_what_is_exact(precision: str) -> None:
    assert Offload(storage_precision=precision).is_exact(Mock()) is (precision == FULL)


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="storage_precision"):
        Offload(storage_precision="float8")
    narrow = Offload(storage_precision=INT8, sharing=False)
    narrow.validate_workers(1, 1)
    Offload(sharing=False).validate_workers(2, 1)
    with pytest.raises(InputError, match="sharing=false"):
        narrow.validate_workers(2, 1)
    problem = Mock()
    problem.shard.comm.device = torch.device("cuda")
    with pytest.raises(InputError, match="for rows on a disk"):
        Offload(storage_precision=BFLOAT16).prepare(problem)


def test_roundings_of_known_rows() -> None:
    """Those of rows of different sizes: half a step of each row at most, which mutants get wrong."""
    rows = normal(7, 9, dtype=torch.float32) * normal(7, 1, seed=1, dtype=torch.float32).exp()
    assert torch.equal(RowEncoding(torch.float32, BFLOAT16).encode_rows(rows), rows.bfloat16())
    stored = RowEncoding(torch.float32, INT8).encode_rows(rows)
    scale = stored[:, -4:].contiguous().view(torch.float32)
    assert ((stored[:, :9] * scale - rows).abs() <= 0.501 / 127 * rows.abs().amax(1, keepdim=True)).all()


@contextmanager
def truncated_instead_of_rounded() -> Iterator[None]:
    """A bfloat16 is the upper half of a float32, whatever the lower half is."""

    encode = RowEncoding.encode_rows

    def truncate(encoding: RowEncoding, rows: Tensor) -> Tensor:
        stored = encode(encoding, rows)
        if encoding.precision == BFLOAT16:
            stored.view(torch.int16).copy_(rows.detach().float().contiguous().view(torch.int32) >> 16)
        return stored

    with patch.object(RowEncoding, "encode_rows", truncate):
        yield


@contextmanager
def scale_of_another_row() -> Iterator[None]:
    """A row of int8 has the scale of the row before it."""
    scale = row_encoding._scale_to_int8

    def misplace(rows: Array, out: Array, scales: Array) -> None:
        scale(rows, out, scales)
        scales[:] = np.roll(scales, 1, axis=0)

    with patch.object(row_encoding, "_scale_to_int8", misplace):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each for each in (truncated_instead_of_rounded, scale_of_another_row)
}


@pytest.mark.mutant
@pytest.mark.parametrize("name", MUTANTS)
def test_a_mutant_is_found(name: str) -> None:
    with MUTANTS[name](), pytest.raises(AssertionError):
        test_roundings_of_known_rows()
