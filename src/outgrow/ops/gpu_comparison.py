"""Comparison of the kernels of a GPU with those of the CPU, call by call, while something is trained."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from outgrow.core.tensors import iterate_tensors
from outgrow.ops.gpu_runner import run_gpu_kernels_by

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float16: 4e-3}
"""Of the largest number of an array: sums over edges are added in other orders."""


class GpuComparison:
    """Runs each kernel on the GPU, then on the CPU with copies of its arguments, and compares what both write. Final.

    Attributes:
        num_calls: Calls of each kernel, by name.
        differences: What the first wrong call of a kernel has written, by name of the kernel.
    """

    def __init__(self) -> None:
        self.num_calls: Counter[str] = Counter()
        self.differences: dict[str, str] = {}

    @contextmanager
    def compare_all(self) -> Iterator[None]:
        """Compare all kernels that run on the GPU within the context; new arrays hold NaN until they are written.

        The context is for one thread.
        """
        before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
        # What makes torch fill new memory; the operations of torch itself are not the subject.
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            with run_gpu_kernels_by(self.run):
                yield
        finally:
            torch.use_deterministic_algorithms(before[0], warn_only=before[1])

    def run(
        self,
        function: Callable[..., Any],
        counterpart: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """Run a kernel in both forms; return the result of that for the GPU."""
        name = f"{function.__module__.removeprefix('outgrow.ops.')}.{function.__name__}"
        copied_args, copied_kwargs = copy_to_cpu((args, kwargs))
        result = counterpart(*args, **kwargs)
        expected = function(*copied_args, **copied_kwargs)
        self.num_calls[name] += 1
        written = iterate_tensors((args, kwargs, result))
        right = iterate_tensors((copied_args, copied_kwargs, expected))
        for mine, other in zip(written, right, strict=True):
            difference = describe_difference(mine, other)
            if difference:
                self.differences.setdefault(name, difference)
        return result


def copy_to_cpu(value: Any, copies: dict[object, Tensor] | None = None) -> Any:
    """Return arguments with copies of all tensors, in memory.

    Args:
        value: The arguments.
        copies: Copies that were made before; a kernel that works in place gets one copy for both of its arguments.
    """
    copies = {} if copies is None else copies
    if isinstance(value, Tensor):
        place = value.data_ptr(), value.shape, value.stride()
        if place not in copies:
            copies[place] = value.detach().to("cpu", copy=True)
        return copies[place]
    if isinstance(value, dict):
        return {name: copy_to_cpu(each, copies) for name, each in value.items()}
    if isinstance(value, tuple):
        parts = [copy_to_cpu(each, copies) for each in value]
        # Named tuples hold arguments that belong together.
        return tuple(parts) if type(value) is tuple else type(value)(*parts)
    return value


def describe_difference(mine: Tensor, expected: Tensor) -> str:
    """Return in what an array differs from what the CPU has written; empty if in nothing but rounding."""
    given = mine.detach().cpu()
    if given.shape != expected.shape or given.dtype != expected.dtype:
        return f"{given.dtype} {[*given.shape]} instead of {expected.dtype} {[*expected.shape]}"
    if not expected.numel():
        return ""
    if not expected.is_floating_point():
        wrong = int((given != expected).sum())
        return f"{wrong:,} of {expected.numel():,} integers differ" if wrong else ""
    limit = TOLERANCE[expected.dtype] * max(1.0, expected.nan_to_num(0, 0, 0).abs().max().item())
    wrong = int((~torch.isclose(given, expected, rtol=0, atol=limit, equal_nan=True)).sum())
    if not wrong:
        return ""
    largest = (given.double() - expected.double()).abs().nan_to_num(torch.inf).max().item()
    return f"{wrong:,} of {expected.numel():,} numbers differ by more than {limit:.1e}, by up to {largest:.1e}"
