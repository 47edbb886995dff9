"""These tests run on a CUDA device where there is one, else in Triton's interpreter."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

HAS_DEVICE = torch.cuda.is_available()
IMPORTED_BEFORE = "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"

if not HAS_DEVICE and not IMPORTED_BEFORE:
    os.environ["TRITON_INTERPRET"] = "1"


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> str:
    """Where the kernels run: on ``cpu`` it is the interpreter that runs them."""
    name = str(request.param)
    if name == "cuda" and not HAS_DEVICE:
        pytest.skip("needs a CUDA device")
    if name == "cpu" and HAS_DEVICE:
        pytest.skip("the kernels are compiled for the CUDA device, not interpreted")
    if name == "cpu" and IMPORTED_BEFORE:
        pytest.skip("triton was imported before its interpreter could be asked for: set TRITON_INTERPRET=1")
    return name


@pytest.fixture
def twin(request: pytest.FixtureRequest, device: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The module that a test file is named after.

    Rows are cut every 5 edges and tiles have 2, so that rows of small graphs are cut and have several tiles.
    """
    pytest.importorskip("triton", reason="the twins need triton")
    monkeypatch.setattr("outgrow.ops.gpu.launch.SEGMENT", 5)
    monkeypatch.setattr("outgrow.ops.gpu.launch.MOST_EDGES", 2)
    return importlib.import_module(f"outgrow.ops.gpu.{request.path.stem.removeprefix('test_')}")


@pytest.fixture
def call(device: str) -> Callable[..., None]:
    """Calls a twin with tensors of the CPU, which then hold what it has written; on CUDA twice, for the same bits."""

    def move(value: object) -> object:
        if isinstance(value, Tensor):
            return value.to(device, copy=True)
        # Named tuples hold arguments that belong together.
        return type(value)(*map(move, value)) if isinstance(value, tuple) else value

    def on_device(function: Callable[..., None], *given: object) -> None:
        def once() -> list[object]:
            moved = [move(each) for each in given]
            function(*moved)
            return moved

        results = [once() for _ in range(2 if device == "cuda" else 1)]
        for each, *same in zip(given, *results, strict=True):
            if isinstance(each, Tensor):
                for other in same:
                    torch.testing.assert_close(other, same[0], rtol=0, atol=0, equal_nan=True)
                each.copy_(same[0])

    return on_device
