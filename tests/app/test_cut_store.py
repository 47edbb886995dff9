"""A store that is cut off while a run trains on it, in a page that can still be read."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.app.conftest import planted

import outgrow as og
from outgrow.app.runs.local_workers import run_session
from outgrow.app.runs.session import Session
from outgrow.app.runs.workers import Workers
from outgrow.graph.store.manifest import HEADER_BYTES
from outgrow.strategies.base import Strategy
from outgrow.strategies.full import Full
from outgrow.strategies.orchestrate.strategy import Orchestrate
from outgrow.strategies.sampled import Sampled
from outgrow.training.config import TrainConfig
from outgrow.training.trainer import EpochReport


class Cutting:
    """Leaves a file of a store its header, after the first epoch."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def on_epoch(self, report: EpochReport) -> None:
        os.truncate(self.path, HEADER_BYTES)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    np.savez(tmp_path / "planted.npz", **planted())
    og.convert(tmp_path / "planted.npz", tmp_path / "store")
    return tmp_path / "store"


@pytest.mark.usefixtures("launched")
@pytest.mark.parametrize(
    ("strategy", "workers", "options"),
    [
        (Full(), 1, {}),
        (Sampled(), 1, {"batch_size": 16, "fanout": (3, 3)}),
        (Orchestrate(), 2, {"batch_size": 16, "fanout": (3, 3)}),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_the_run_ends_and_says_which_file_it_was(
    strategy: Strategy, workers: int, options: dict[str, object], store: Path, scratch: Path
) -> None:
    graph = og.load(str(store))
    torch.manual_seed(0)
    session = Session(
        graph=graph,
        model=og.nn.SAGE(graph.num_features, 8, graph.num_classes),
        config=TrainConfig(epochs=2000, **options),  # type: ignore[arg-type]
        strategy=strategy,
        callbacks=(Cutting(store / "train.npy"),),
    )
    with pytest.raises(og.InputError, match=r"train\.npy has another size than when it was opened"):
        run_session(session, Workers(number=workers), resume=False, log=lambda text: None)
