"""The bits of half precision, widened in kernels to what torch makes of them."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from outgrow.ops.kernels import numerics
from outgrow.ops.kernels.numerics import as_float, is_half, kernel_view


def widen_each(values: NDArray[Any], out: NDArray[Any]) -> None:
    for i in range(len(values)):
        out[i] = as_float(values[i])


widen = numba.njit(widen_each)  # not kept on disk: what is kept does not notice changes of the functions that it calls


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("has_instruction", [True, False])
def test_every_pattern_of_bits(half: torch.dtype, has_instruction: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not has_instruction:
        monkeypatch.setattr(numerics, "_converts_float16", lambda context: False)
    widen = numba.njit(widen_each)
    stored = torch.from_numpy(np.arange(1 << 16, dtype=np.uint16).view(np.int16)).view(half)
    found, expected = torch.empty(1 << 16), stored.float()
    widen(kernel_view(stored).numpy(), found.numpy())
    numbers = ~expected.isnan()
    assert torch.equal(found.isnan(), ~numbers)
    assert torch.equal(found[numbers].view(torch.int32), expected[numbers].view(torch.int32))  # the sign of 0 included


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int32, torch.int64])
def test_other_types_are_left_as_they_are(dtype: torch.dtype) -> None:
    given = torch.tensor([-3, 0, 7, 2**30], dtype=dtype)
    out = torch.empty_like(given)
    widen(given.numpy(), out.numpy())
    assert torch.equal(out, given)
    assert kernel_view(given) is given
    assert not is_half(dtype)


@pytest.mark.parametrize(("half", "bits"), [(torch.bfloat16, torch.uint16), (torch.float16, torch.int16)])
def test_bits_are_the_same_memory(half: torch.dtype, bits: torch.dtype) -> None:
    x = torch.ones(4, 6, dtype=half)[:, 1:3]
    assert is_half(half)
    assert kernel_view(x).dtype == bits
    assert kernel_view(x).shape == x.shape
    assert kernel_view(x).data_ptr() == x.data_ptr()
