"""The border to Triton: what compiles kernels and what launches them.

Kernels name constants in capitals. ``SHAPE`` holds the widths that a kernel is compiled for, ``TILE`` its blocks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import torch
import triton

P = ParamSpec("P")
R = TypeVar("R")

_VARIABLE = ("num_cuts", "num_rows", "num_edges", "num_relations", "rows_of_part", "key", "threshold")
"""Arguments whose values must not become constants of a compiled kernel."""

_WRITTEN = ("out", "scratch", "winner", "d_weight", "d_bias", "d_score", "d_dst")
"""Arguments that kernels write: a copy of them would be lost."""

MOST_EDGES = 32
"""Edges that a tile has at most: most rows have few, and the rest of the tile does nothing."""


class Kernel(Protocol):
    """A compiled function that is launched once for each program of a grid."""

    arg_names: list[str]

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., object]:
        """The function that launches it on a grid."""


def kernel(function: Callable[..., None]) -> Kernel:
    """Compile a function that one program of a grid runs."""
    return cast(Kernel, triton.jit(function, do_not_specialize=_VARIABLE))


def inlined(function: Callable[P, R]) -> Callable[P, R]:
    """Compile a function that kernels call."""
    return cast(Callable[P, R], triton.jit(function))


def launch(function: Kernel, grid: tuple[int, ...], *given: Any, num_warps: int = 4, **constants: object) -> None:
    """Run a kernel on a grid; not at all if the grid is empty. Multiplications and additions may be contracted.

    Kernels take contiguous tensors: those that are laid out otherwise are copied.
    """
    if 0 in grid:
        return
    operands = map(_packed, function.arg_names, given)
    function[grid](*operands, **constants, num_warps=num_warps, enable_fp_fusion=True)


def _packed(name: str, value: Any) -> Any:
    """An argument as kernels take it; one that is written cannot be copied."""
    if not isinstance(value, torch.Tensor) or value.is_contiguous():
        return value
    assert name not in _WRITTEN, f"{name} is written, so it must be contiguous"
    return value.contiguous()


def blocks(count: int, size: int) -> int:
    """Blocks of ``size`` that hold ``count``."""
    return -(-count // size)


def power_of_two(count: int) -> int:
    """The smallest power of two that is at least ``count`` and 1."""
    return 1 << max(0, count - 1).bit_length()


def tile(columns: int, most: int = 256, elements: int = 1024) -> tuple[int, int]:
    """Edges and columns of the tile that a program works on at a time; both are powers of two."""
    width = power_of_two(min(columns, most))
    return max(1, min(MOST_EDGES, elements // width)), width


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of a type are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32
