"""The tensors within values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import is_dataclass
from typing import Any

from torch import Tensor


def iterate_tensors(value: Any) -> Iterator[Tensor]:
    """Yield the tensors of a value: itself, elements of a list, tuple or mapping, or fields, at any depth."""
    if isinstance(value, Tensor):
        yield value
        return
    if isinstance(value, dict):
        parts: Iterable[Any] = value.values()
    elif isinstance(value, list | tuple):
        parts = value
    else:
        parts = vars(value).values() if is_dataclass(value) else ()
    for part in parts:
        yield from iterate_tensors(part)
