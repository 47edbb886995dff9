"""How kernels run on a GPU: as they are, or compared with those of the CPU (`gpu_comparison.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

GpuRunner = Callable[[Callable[..., Any], Callable[..., Any], tuple[Any, ...], dict[str, Any]], Any]
"""Runs a kernel on a GPU: gets its form for the CPU, that for a GPU, and the arguments."""


def _run_counterpart(_: Any, counterpart: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return counterpart(*args, **kwargs)


_runner: GpuRunner = _run_counterpart


def run(
    function: Callable[..., Any], counterpart: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    """Run a kernel on a GPU: see `GpuRunner`."""
    return _runner(function, counterpart, args, kwargs)


@contextmanager
def run_gpu_kernels_by(runner: GpuRunner) -> Iterator[None]:
    """Let ``runner`` run the kernels of a GPU within the context."""
    global _runner
    before, _runner = _runner, runner
    try:
        yield
    finally:
        _runner = before
