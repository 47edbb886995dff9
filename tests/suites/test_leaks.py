"""Memory does not grow with the number of epochs, under any strategy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch

from outgrow.app.runs.local_workers import TrainingJob
from outgrow.graph.store.reader import write_store
from outgrow.nn import SAGE
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.runtime.system.process_memory import resident_bytes, trim_memory
from outgrow.strategies.base import Strategy
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import EpochReport
from planted import NODES, WIDTH, planted
from suites.sessions import graph_of
from suites.test_diverged import STRATEGIES
from support import disk_folder

pytestmark = pytest.mark.real_processes

EPOCHS, SETTLED, HIDDEN = 200, 40, 512
MATRIX_BYTES = NODES * HIDDEN * 4
"""Of the rows of a layer: to keep one in each epoch would take 40 MB."""
MOST_GROWTH = 4 << 20


def half_a_matrix_leaks() -> torch.Tensor:
    """Half a row matrix is kept in each epoch."""
    return torch.ones(MATRIX_BYTES // 8)


MUTANTS = {mutant.__name__: mutant for mutant in (half_a_matrix_leaks,)}


def growth(held: list[int]) -> int:
    """By how much more is held after the last epochs than after those in which all had been done once."""
    return max(held[-SETTLED:]) - max(held[SETTLED : 2 * SETTLED])


def held(
    place: WorkerContext, plans: Mapping[str, Strategy], store: Path, keep: Callable[[], object]
) -> dict[str, list[int]]:
    """Bytes that a worker holds after each epoch."""
    found = {}
    for name, strategy in plans.items():
        bytes_after: list[int] = []

        def tell(message: object, bytes_after: list[int] = bytes_after) -> None:
            if isinstance(message, EpochReport):
                keep()
                trim_memory()
                bytes_after.append(resident_bytes())

        torch.manual_seed(0)
        batches: dict[str, Any] = {"batch_size": 20, "fanout": (5, 5)} if strategy.uses_minibatches else {}
        config = TrainConfig(epochs=EPOCHS, eval_every=5, **batches)
        options: dict[str, Any] = {"directory": None, "resume": False, "needs_checkpoints": False}
        model = SAGE(WIDTH, HIDDEN, 2, dropout=0.5)
        TrainingJob(store=store, model=model, config=config, strategy=strategy, **options)(
            replace(place, send_message=tell)
        )
        found[name] = bytes_after
    return found


@cache
def found(workers: int) -> dict[str, list[int]]:
    with TemporaryDirectory(dir=disk_folder()) as folder:
        write_store(graph_of(planted()), Path(folder, "store"))
        task = partial(held, plans=STRATEGIES, store=Path(folder, "store"), keep=lambda: None)
        return run_workers(task, workers)[0]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_memory_does_not_grow(strategy: str, workers: int) -> None:
    bytes_after = found(workers)[strategy]
    assert len(bytes_after) == EPOCHS
    assert growth(bytes_after) < MOST_GROWTH


@pytest.mark.mutant
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_leak_is_noticed(mutant: str, tmp_path: Path) -> None:
    write_store(graph_of(planted()), tmp_path / "store")
    kept: list[torch.Tensor] = []
    keep = lambda: kept.append(MUTANTS[mutant]())  # noqa: E731
    task = partial(held, plans={"full": STRATEGIES["full"]}, store=tmp_path / "store", keep=keep)
    assert growth(run_workers(task, 1)[0]["full"]) > MOST_GROWTH
