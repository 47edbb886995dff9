"""Half-precision rows in compiled kernels: stored in 16 bits, computed in float32.

NumPy knows no bfloat16 and Numba no float16 on a CPU, so kernels get the bits: as uint16 those of a bfloat16, as int16
those of a float16. `as_float` widens them; other types it leaves as they are.
"""

from __future__ import annotations

from typing import Any

import torch
from llvmlite import ir
from numba import types
from torch import Tensor

from outgrow.ops.backend import intrinsic

_BITS = {torch.bfloat16: torch.uint16, torch.float16: torch.int16}


def is_half(dtype: torch.dtype) -> bool:
    """Whether values of this type are stored in 16 bits."""
    return dtype in _BITS


def computed(dtype: torch.dtype) -> torch.dtype:
    """The type in which values of a type are computed: float32 for half precision, else the type itself."""
    return torch.float32 if is_half(dtype) else dtype


def bits_of(x: Tensor) -> Tensor:
    """The same memory as kernels take it: 16-bit integers for half precision, else the tensor itself."""
    return x.view(_BITS[x.dtype]) if is_half(x.dtype) else x


@intrinsic
def as_float(context: Any, value: Any) -> Any:
    """The float32 that 16 bits stand for; other values unchanged. For kernels."""
    if value not in (types.int16, types.uint16):
        return value(value), lambda context, builder, signature, given: given[0]

    def widen_float16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.fpext(builder.bitcast(given[0], ir.HalfType()), ir.FloatType())

    def widen_bfloat16(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        word = ir.IntType(32)
        return builder.bitcast(builder.shl(builder.zext(given[0], word), ir.Constant(word, 16)), ir.FloatType())

    return types.float32(value), widen_float16 if value == types.int16 else widen_bfloat16
