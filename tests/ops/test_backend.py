"""The gate to compiled kernels: who computes what is on a GPU, and how arrays and tensors share memory."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from types import ModuleType
from typing import Any

import numba
import numpy as np
import pytest
import torch
from torch import Tensor

from outgrow.ops import backend
from outgrow.ops.backend import (
    SMALL_BYTES,
    TINY_BYTES,
    as_numpy,
    as_tensor,
    gpu_dispatch,
    num_threads,
    threading_layer,
)
from outgrow.ops.kernel_cache import MODE_VARIABLE
from outgrow.ops.linear import affine


class OnDevice(Tensor):
    """A tensor that says that it is on a GPU."""

    is_cuda = True  # type: ignore[assignment]


def describe(first: Any, second: Any = None, *rest: Any, **named: Any) -> tuple[str, Any]:
    return "cpu", (first, second, *rest, *named.items())


@pytest.fixture
def described(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[str, Any]]:
    """`describe` as a function of ``outgrow.ops.made_up``, with a twin."""
    twin = ModuleType("outgrow.ops.gpu.made_up")
    twin.describe = lambda *args, **named: ("gpu", (args, named))  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, twin.__name__, twin)
    monkeypatch.setattr(describe, "__module__", "outgrow.ops.made_up")
    return gpu_dispatch(describe)


def on_device() -> Tensor:
    return torch.ones(2).as_subclass(OnDevice)


def test_tensors_on_a_cpu_stay_there(described: Callable[..., tuple[str, Any]]) -> None:
    x, y = torch.ones(2), torch.ones(3)
    assert described(x, second=y) == ("cpu", (x, y))
    assert described(3, None, "x", key=y) == ("cpu", (3, None, "x", ("key", y)))


@pytest.mark.parametrize(
    ("args", "named"),
    [
        ((on_device(),), {}),
        ((torch.ones(2), on_device()), {}),
        ((None, 1, on_device(), torch.ones(2)), {}),
        ((torch.ones(2),), {"second": on_device()}),
        ((3,), {"second": None, "key": on_device()}),
    ],
)
def test_one_tensor_on_a_gpu_calls_the_twin(
    args: tuple[Any, ...], named: dict[str, Any], described: Callable[..., tuple[str, Any]]
) -> None:
    where, (given, by_name) = described(*args, **named)
    assert where == "gpu"
    assert all(mine is theirs for mine, theirs in zip(given, args, strict=True))
    assert by_name.keys() == named.keys()
    assert all(by_name[name] is named[name] for name in named)


def test_a_twin_that_is_missing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(describe, "__module__", "outgrow.ops.made_up")
    with pytest.raises(ModuleNotFoundError, match=r"outgrow\.ops\.gpu\.made_up"):
        gpu_dispatch(describe)(on_device())


def test_a_twinned_function_keeps_its_name(described: Callable[..., tuple[str, Any]]) -> None:
    assert described.__name__ == "describe"
    assert described.__module__ == "outgrow.ops.made_up"


def test_arrays_share_memory_with_contiguous_tensors() -> None:
    x = torch.zeros(3, 4, requires_grad=True)
    as_numpy(x)[1, 2] = 5
    assert x[1, 2] == 5
    assert np.shares_memory(as_numpy(x), as_numpy(x.flatten()))
    turned = as_numpy(x.T)
    assert turned.flags.c_contiguous
    assert not np.shares_memory(turned, as_numpy(x))
    values = np.zeros(3)
    as_tensor(values)[0] = 7
    assert values[0] == 7


@pytest.fixture
def threads() -> Iterator[None]:
    before = numba.get_num_threads()
    yield
    numba.set_num_threads(before)


@pytest.mark.usefixtures("threads")
def test_the_number_of_threads_is_that_of_numba() -> None:
    numba.set_num_threads(1)
    assert num_threads() == 1
    assert threading_layer() in ("tbb", "omp", "workqueue")


def test_fused_operations_refuse_a_second_derivative() -> None:
    x, weight = torch.randn(4, 3, requires_grad=True), torch.randn(3, 2)
    (gradient,) = torch.autograd.grad(affine((x, weight)).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


def double_numbers(values: Any) -> None:
    values *= 2


@pytest.fixture
def doubling(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, str], list[str]]:
    """Doubles as many numbers, in a mode, by a kernel of which nothing was called yet; says in which form it ran."""
    form: list[str] = []

    def run(in_parallel: bool, values: Any) -> None:
        form.append("parallel" if in_parallel else "serial")
        double_numbers(values)

    kernel = backend.LoopKernel(double_numbers, lambda in_parallel: partial(run, in_parallel))

    def double(count: int, mode: str) -> list[str]:
        monkeypatch.setenv(MODE_VARIABLE, mode)
        values = np.arange(float(count))
        kernel(values)
        assert np.array_equal(values, 2 * np.arange(float(count)))
        return form

    return double


TINY, LARGE = TINY_BYTES // 8, SMALL_BYTES // 8 + 1


def test_tiny_arrays_take_one_thread_until_others_were_large(doubling: Callable[[int, str], list[str]]) -> None:
    doubling(TINY, "auto")
    assert doubling(TINY + 1, "") == ["serial", "parallel"]
    assert doubling(3, "auto") == ["serial", "parallel", "serial"]
    assert doubling(LARGE, "auto") == ["serial", "parallel", "serial", "parallel"]
    assert doubling(3, "auto") == ["serial", "parallel", "serial", "parallel", "parallel"]


def test_a_process_with_one_thread_takes_no_form_for_several(
    doubling: Callable[[int, str], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(numba.config, "NUMBA_NUM_THREADS", 1)
    assert doubling(LARGE, "auto") == ["serial"]
    assert doubling(LARGE, "parallel") == ["serial", "parallel"]


def test_what_measures_a_machine_runs_on_all_threads(doubling: Callable[[int, str], list[str]]) -> None:
    with backend.run_on_all_threads():
        assert doubling(3, "serial") == ["serial"]
        assert doubling(3, "auto") == ["serial", "parallel"]


@pytest.mark.parametrize("mode", ["parallel", "serial"])
def test_a_mode_that_is_given_holds_for_all_sizes(mode: str, doubling: Callable[[int, str], list[str]]) -> None:
    doubling(3, mode)
    assert doubling(LARGE, mode) == [mode, mode]
