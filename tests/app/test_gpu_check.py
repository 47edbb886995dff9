"""The check of a GPU, with twins that are the kernels of the CPU: it runs all of them, and finds a wrong one."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor
from typer.testing import CliRunner

from ops.gpu.no_device import MODULES, OPS
from outgrow.app import gpu_check
from outgrow.app.cli.main import app
from outgrow.app.gpu_check import GpuVerdict, check_gpu, require_checked_gpu
from outgrow.core.errors import InputError, TrainingError
from outgrow.runtime.system.device import CPU


def dispatched() -> dict[str, dict[str, Callable[..., Any]]]:
    """The functions with a twin, undecorated, by the name of their module in `outgrow.ops`."""
    found: dict[str, dict[str, Callable[..., Any]]] = {}
    for path in MODULES.values():
        name = ".".join(path.relative_to(OPS).with_suffix("").parts)
        functions = vars(importlib.import_module(f"outgrow.ops.{name}"))
        for node in ast.parse(path.read_text("utf-8")).body:
            if isinstance(node, ast.FunctionDef) and "gpu_dispatch" in map(ast.unparse, node.decorator_list):
                found.setdefault(name, {})[node.name] = functions[node.name].__wrapped__
    return found


@contextmanager
def twins_of_the_cpu(**wrong: Callable[..., Any]) -> Iterator[None]:
    """All tensors count as those of a GPU, whose kernels are those of the CPU, but for some."""
    running = 0

    def twin(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **how: Any) -> Any:
            nonlocal running
            running += 1
            try:
                return wrong.get(function.__name__, function)(*given, **how)
            finally:
                running -= 1

        return run

    modules: dict[str, Any] = {"outgrow.ops.gpu": ModuleType("outgrow.ops.gpu")}
    for name, functions in dispatched().items():
        twins = {key: twin(function) for key, function in functions.items()}
        modules[f"outgrow.ops.gpu.{name.rpartition('.')[2]}"] = SimpleNamespace(**twins)
    # Not by `patch.dict`, which would forget what is imported meanwhile.
    before = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.update(modules)
    try:
        with patch("outgrow.ops.backend._on_gpu", lambda value: isinstance(value, Tensor) and not running):
            yield
    finally:
        for name, module in before.items():
            del sys.modules[name]
            sys.modules.update({} if module is None else {name: module})


def test_all_kernels_are_compared() -> None:
    names = list[str]()
    run = gpu_check.GpuComparison.run

    def noted(self: Any, function: Callable[..., Any], *given: Any) -> Any:
        names.append(f"{function.__module__.removeprefix('outgrow.ops.')}.{function.__name__}")
        return run(self, function, *given)

    with twins_of_the_cpu(), patch.object(gpu_check.GpuComparison, "run", noted):
        verdict = check_gpu(CPU, seed=1)
    assert verdict.differences == {}
    known = {f"{name}.{function}" for name, functions in dispatched().items() for function in functions}
    assert sorted({*names}) == sorted(known)
    assert verdict.num_kernels == len(known)


def test_a_wrong_kernel_is_named() -> None:
    right = dispatched()["aggregation.attention"]["edge_softmax"]

    def edge_softmax(*given: Any) -> None:
        right(*given)
        given[-1][0] += 1

    with twins_of_the_cpu(edge_softmax=edge_softmax):
        verdict = check_gpu(CPU, seed=1)
    assert [*verdict.differences] == ["aggregation.attention.edge_softmax"]


def verdict_of(**differences: str) -> GpuVerdict:
    return GpuVerdict(device="a GPU", num_kernels=40, differences=differences, seed=7, seconds=1.0)


@pytest.fixture
def stamped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(gpu_check, "state_folder", lambda: tmp_path / "state")
    monkeypatch.setattr(gpu_check, "_stamp", lambda device: f"stamp of {device}")
    monkeypatch.setattr(gpu_check, "describe_gpu", lambda device: ("a GPU",))
    return tmp_path / "state" / "gpus.json"


def test_a_gpu_that_has_passed_is_not_checked_again(stamped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = list[torch.device]()

    def check(device: torch.device, seed: int) -> GpuVerdict:
        checked.append(device)
        return verdict_of()

    monkeypatch.setattr(gpu_check, "check_gpu", check)
    first, second = torch.device("cuda", 0), torch.device("cuda", 1)
    for device in (first, first, CPU, second, first):
        require_checked_gpu(device)
    assert checked == [first, second]
    assert json.loads(stamped.read_text())["stamp of cuda:1"]["num_kernels"] == 40
    stamped.write_text("not JSON")
    require_checked_gpu(first)
    assert checked == [first, second, first]


def test_a_wrong_gpu_is_refused_each_time(stamped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu_check, "check_gpu", lambda device, seed: verdict_of(spmm="3 of 8 numbers differ"))
    for _ in range(2):
        with pytest.raises(TrainingError, match="spmm") as raised:
            require_checked_gpu(torch.device("cuda", 0))
        assert "3 of 8 numbers" in str(raised.value)
        assert "--device cpu" in str(raised.value)
    assert not stamped.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
@pytest.mark.parametrize("device", ["cuda", "tpu"])
def test_the_doctor_refuses_a_device_that_is_not_there(device: str) -> None:
    result = CliRunner().invoke(app, ["doctor", "--device", device])
    assert result.exit_code != 0
    assert isinstance(result.exception, InputError)


@pytest.mark.gpu
def test_this_gpu() -> None:
    verdict = check_gpu(torch.device("cuda", 0), seed=1)
    assert verdict.differences == {}
    assert verdict.num_kernels > 30
