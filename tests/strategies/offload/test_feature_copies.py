"""Copies of features in the order of the waves: what they save is counted, and they change no bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.nn import GAT, GCN, SAGE
from outgrow.nn.model import Model
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.strategies.offload import storage
from outgrow.strategies.offload.feature_copies import FeatureCopies, count_run_bytes
from outgrow.strategies.offload.strategy import Offload
from planted import Planted, planted
from support import normal

MODELS: dict[str, Callable[..., Model]] = {
    "cached": lambda: GCN(8, 12, 2, layers=3, dropout=0.2, input_dropout=0.3),
    "constant": lambda: SAGE(8, 12, 2, layers=2),
    "projected": lambda: GAT(8, 8, 2, layers=2, heads=2),
}
"""Read in waves in each epoch, once in the run, and only chunk by chunk."""


@pytest.fixture(scope="module")
def world() -> Planted:
    return planted()


@pytest.mark.parametrize("width", [3, 32, 1500])
@pytest.mark.parametrize("share", [0.02, 0.3, 1.0])
def test_bytes_of_runs_are_those_that_files_read(width: int, share: float, tmp_path: Path) -> None:
    """A run is cut at a mebibyte, which these are shorter than."""
    pool, generator = IoPool(run_bytes=1 << 30), torch.Generator().manual_seed(0)
    num_rows = 2000
    rows = (torch.rand(num_rows, generator=generator) < share).nonzero()[:, 0]
    file = RowFile.create(pool, tmp_path / "rows", num_rows, width, torch.float32)
    file.read_rows(rows, torch.empty(num_rows, width), rows)
    assert count_run_bytes(rows, 4 * width, pool.gap_bytes) == pool.read_bytes > 0
    assert count_run_bytes(rows[:0], 4 * width, pool.gap_bytes) == 0
    file.close()
    pool.close()


def run(world: Planted, kind: str, folders: tuple[Path, Path], dtype: torch.dtype, **options: Any) -> tuple[Any, ...]:
    """Losses, gradients, logits, facts and ledger of two epochs whose features are in a file."""
    torch.manual_seed(3)
    path, scratch = folders[0] / "features.npy", folders[1]
    np.save(path, world.features.to(dtype).numpy())
    features = torch.from_numpy(np.load(path, mmap_mode="c"))
    problem = replace(
        world.problem(seed=5), model=MODELS[kind]().float(), features=features, find_feature_file=lambda: path
    )
    execution = Offload(chunks=4, scratch_dir=str(scratch), **options).prepare(problem)
    found: list[Tensor] = []
    for epoch in (1, 2):
        found += [torch.tensor(step.loss) for step in execution.steps(epoch)]
    found += [each.grad.clone() for each in problem.model.parameters() if each.grad is not None]
    found += [rows for _, rows in execution.inference()]
    execution.close()
    ledger = problem.shard.comm.ledger
    return found, problem.run_facts, ledger.bytes_by_link[Link.HOST_TO_DEVICE, Kind.FEATURES], ledger.counters


@pytest.mark.parametrize("options", [{}, {"reuse": False}, {"overlap": False, "reorganise": False}], ids=str)
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_copies_change_no_bit(
    world: Planted, kind: str, dtype: torch.dtype, options: dict[str, bool], tmp_path: Path, disk: Path
) -> None:
    plain = run(world, kind, (tmp_path, disk), dtype, **options)
    assert plain[1]["feature_copy_bytes"] >= 0
    both = FeatureCopies(wave_bytes=int(kind != "projected"), chunk_bytes=1)
    counted = []
    for copies in (FeatureCopies(), both):
        with patch.object(storage, "plan_feature_copies", lambda *given, copies=copies, **ways: copies):
            counted.append(run(world, kind, (tmp_path, disk), dtype, **options))
    for found in counted:
        assert all(map(torch.equal, found[0], plain[0]))
        assert found[2] == plain[2]


def test_copies_are_made_where_runs_ask_for_more(tmp_path: Path, disk: Path) -> None:
    """Rows of 32 bytes that lie far apart, of a table of many pages."""
    world = planted()
    many = replace(world, features=normal(120, 8, seed=1))
    _, facts, _, counters = run(many, "cached", (tmp_path, disk), torch.float32)
    assert facts["feature_copy_bytes"] > 0
    assert counters["disk_written_bytes"] > 0


def test_no_copies_without_room(world: Planted, tmp_path: Path, disk: Path) -> None:
    with patch.object(storage, "free_disk_bytes", lambda folder: 0):
        _, facts, _, _ = run(world, "cached", (tmp_path, disk), torch.float32)
    assert facts["feature_copy_bytes"] == 0
