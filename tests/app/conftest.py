"""The command line in this process, and a small graph to run it on."""

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.app.typed_shop import write_shop

import outgrow as og
from outgrow.app.cli.main import run_cli


@dataclass(frozen=True, kw_only=True)
class Result:
    code: int
    out: str
    err: str

    @property
    def summary(self) -> dict[str, Any]:
        return json.loads(self.out.splitlines()[-1])


Command = Callable[..., Result]


@pytest.fixture(autouse=True)
def _on_a_typical_machine(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """What is chosen does not depend on what was measured here before, and on what runs have taught."""
    cache = tmp_path_factory.mktemp("cache")
    monkeypatch.setattr("outgrow.app.plan.machine_profiles.cache_dir", lambda: cache)


@pytest.fixture
def outgrow(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Command:
    """Run ``outgrow ARGS`` in an empty directory."""
    monkeypatch.chdir(tmp_path)

    def call(*args: object) -> Result:
        monkeypatch.setattr(sys, "argv", ["outgrow", *map(str, args)])
        capsys.readouterr()
        code = 0
        try:
            run_cli()
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        text = capsys.readouterr()
        return Result(code=code, out=text.out, err=text.err)

    return call


def planted(nodes: int = 240, classes: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """Arrays of a graph whose neighbours mostly share a class."""
    rng = np.random.default_rng(seed)
    label = np.arange(nodes) % classes
    src = rng.integers(0, nodes, 6 * nodes)
    same = rng.random(len(src)) < 0.8
    dst = np.where(same, (src + classes * rng.integers(1, 20, len(src))) % nodes, rng.integers(0, nodes, len(src)))
    features = rng.normal(0, 1, (nodes, 8)).astype(np.float32)
    features[:, :classes] += 0.8 * np.eye(classes, dtype=np.float32)[label]
    order = rng.permutation(nodes)
    return {
        "edge_index": np.stack([src, dst]),
        "label": label,
        "features": features,
        "train_idx": order[:120],
        "val_idx": order[120:180],
        "test_idx": order[180:],
    }


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    path = tmp_path / "planted.npz"
    np.savez(path, **planted())
    return path


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of `write_shop`."""
    folder = tmp_path_factory.mktemp("shop")
    og.convert(write_shop(folder / "tables"), folder / "shop.store", split="0.5,0.25,0.25")
    return folder / "shop.store"
