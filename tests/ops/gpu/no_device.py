"""A device that is not there: what would run on it can be tested for staying on it.

Tensors on the device ``meta`` have no memory, so a step that only a CPU can do fails, as does one that mixes devices.
Twins are replaced by what checks their arguments; no device and no Triton are needed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from unittest.mock import patch

import torch
from torch import Tensor

import outgrow.ops

OPS = Path(outgrow.ops.__path__[0])
TWINS = {path.stem for path in (OPS / "gpu").glob("[a-z]*.py")} - {"launch", "edge_chunks"}
MODULES = {path.stem: path for path in OPS.rglob("*.py") if path.parent.name != "gpu" and path.stem in TWINS}


def real(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def whole(*shape: int, dtype: torch.dtype = torch.int64) -> Tensor:
    return real(*shape, dtype=dtype)


@contextmanager
def twins_that_check() -> Iterator[list[str]]:
    """The names of the twins that were called, in order; each must get tensors of the device alone."""
    names: list[str] = []
    modules = {"outgrow.ops.gpu": ModuleType("outgrow.ops.gpu")}
    for name in TWINS:
        folders = MODULES[name].relative_to(OPS).parent.parts
        functions = vars(importlib.import_module(".".join(("outgrow.ops", *folders, name))))
        twins = {key: _twin(key, names) for key, value in functions.items() if callable(value)}
        modules[f"outgrow.ops.gpu.{name}"] = SimpleNamespace(**twins)  # type: ignore[assignment]
    before = {name: sys.modules.pop(name, None) for name in modules}
    sys.modules.update(modules)
    with patch("outgrow.ops.backend._on_gpu", lambda value: isinstance(value, Tensor) and value.is_meta):
        try:
            yield names
        finally:
            for name, module in before.items():
                del sys.modules[name]
                sys.modules.update({} if module is None else {name: module})


def _twin(name: str, names: list[str]) -> Callable[..., object]:
    def check(*given: object, **how: bool) -> object:
        names.append(name)
        read_in_place = 1 if name == "gather_rows" else 0  # from pinned memory
        tensors = [each for each in given[read_in_place:] if isinstance(each, Tensor)]
        assert all(each.is_meta for each in tensors), name
        if name == "transpose_csc":
            _, indices, num_src, _ = given
            return whole(num_src + 1), torch.empty_like(indices), torch.empty_like(indices)
        if name == "replace_self_loops":
            return given
        if name == "sort_by_pair":
            # As many pairs as its counts tell here, where numbers of the device read as ones: all edges are of one.
            *_, relation, num_relations = given
            assert isinstance(relation, Tensor)
            return whole(num_relations), whole(1), whole(2), torch.empty_like(relation, dtype=torch.int64)  # type: ignore[arg-type]
        assert tensors[-1].is_contiguous(), f"{name} writes to strides {tensors[-1].stride()}"
        return None

    return check
