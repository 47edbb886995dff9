"""What the border to Triton refuses: results that a kernel cannot write, and a Triton that is missing or too old."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.ops.epilogue import layer_norm_gradients


def test_results_must_be_contiguous(twin: ModuleType) -> None:
    written, read = torch.empty(2, 6)[:, ::2], torch.arange(6).view(2, 3).T
    with pytest.raises(AssertionError, match="out is written"):
        twin._contiguous_argument("out", written)
    assert twin._contiguous_argument("rows", read).is_contiguous()
    assert torch.equal(twin._contiguous_argument("rows", read), read)
    assert twin._contiguous_argument("num_rows", 5) == 5


@pytest.mark.parametrize(
    ("triton", "got"), [(None, "no such package"), (SimpleNamespace(__version__="3.2.0"), "triton 3.2.0")]
)
def test_triton_is_missing_or_too_old(monkeypatch: pytest.MonkeyPatch, triton: object, got: str) -> None:
    monkeypatch.setattr("outgrow.ops.backend._on_gpu", lambda value: True)
    for name in [name for name in sys.modules if name.startswith("outgrow.ops.gpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "triton", triton)
    for _ in range(2):
        with pytest.raises(InputError, match=rf"(?s)need Triton.*got:\s+{got}.*repair: install"):
            layer_norm_gradients(*(torch.ones(1, 1) for _ in range(6)))
