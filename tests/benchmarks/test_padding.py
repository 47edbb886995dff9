"""A rival whose widths are padded trains the same model: same losses, and what was added stays zero."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from rivals.common import Arrays, Job
from rivals.layers import Kind, drive, mlp, named_mlp
from rivals.padding import call_padded, count_missing, pad_kind
from torch import Tensor, nn

UNIT, NODES = 16, 40
GIN = Kind(make=lambda given, wanted, heads: mlp(given, wanted), named=named_mlp)


def _make_job(folder: Path, widths: tuple[int, int, int]) -> tuple[Job, Arrays]:
    rng = np.random.default_rng(0)
    shapes = {
        f"{index}.{name}": value.shape
        for index, layer in enumerate((mlp(*widths[:2]), mlp(*widths[1:])))
        for name, value in named_mlp(layer).items()
    }
    start = {name: rng.standard_normal(shape, dtype=np.float32) / 4 for name, shape in shapes.items()}
    np.savez(folder / "start-gin.npz", **start)
    (folder / "data.json").write_text(json.dumps({"widths": widths}))
    arrays = Arrays(
        indptr=np.zeros(NODES + 1, np.int64),
        indices=np.zeros(0, np.int32),
        features=rng.standard_normal((NODES, widths[0]), dtype=np.float32),
        labels=rng.integers(0, widths[2], NODES),
        train=np.arange(0, NODES, 2),
    )
    return Job(model="gin", form="", folder=folder, warmup=1, epochs=5, limit_bytes=0), arrays


def test_widths_are_rounded_up() -> None:
    assert [width + count_missing(width, UNIT) for width in (1, 16, 17, 64, 1433)] == [16, 16, 32, 64, 1440]


@pytest.mark.parametrize("widths", [(37, 64, 7), (60, 64, 16), (21, 24, 5)], ids=["both", "input", "hidden"])
def test_padded_layers_compute_the_same_losses(tmp_path: Path, widths: tuple[int, int, int]) -> None:
    job, arrays = _make_job(tmp_path, widths)
    layers: list[nn.Module] = []
    seen: set[int] = set()

    def make(given: int, wanted: int, heads: int) -> nn.Module:
        layers.append(padded.make(given, wanted, heads))
        return layers[-1]

    def call(layer: nn.Module, x: Tensor) -> Tensor:
        seen.add(x.shape[1])
        out: Tensor = layer(x)
        return out

    padded = pad_kind(GIN, UNIT)
    plain = drive(job, GIN, widths, lambda layer, x: layer(x), arrays)
    found = drive(
        job,
        Kind(make=make, named=padded.named),
        widths,
        lambda layer, x: call_padded(layer, x, UNIT, lambda each: call(layer, each)),
        arrays,
    )

    np.testing.assert_allclose(found["losses"], plain["losses"], rtol=1e-5)
    assert found["losses"][-1] < found["losses"][0]
    assert all(width % UNIT == 0 for width in seen)
    for layer in layers:
        kept = {name: value.clone() for name, value in padded.named(layer).items()}
        with torch.no_grad():
            for value in padded.named(layer).values():
                value.zero_()
        assert all(not parameter.any() for parameter in layer.parameters())
        assert all(value.any() for value in kept.values())
