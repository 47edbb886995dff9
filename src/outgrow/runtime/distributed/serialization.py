"""Objects as bytes, for other workers.

Of a tensor these are its own numbers and nothing of the memory that they lie in, so that the same object has the same
bytes in every process, and a view does not bring along what it is a view of.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


def serialize(value: object) -> bytes:
    """An object as bytes; tensors on the CPU are packed without the rest of their memory."""
    whole = io.BytesIO()
    _TensorPickler(whole).dump(value)
    return whole.getvalue()


def deserialize(data: Any) -> Any:
    """The object; from another worker of the same run, which is trusted as torch's own collectives trust it."""
    return pickle.loads(data)


class _TensorPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        flat = value.detach().reshape(-1)
        numbers = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""  # an empty one may have any strides
        return _rebuild_tensor, (numbers, value.dtype, tuple(value.shape), value.requires_grad)


def _rebuild_tensor(numbers: bytes, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    if not numbers:  # of no bytes torch makes no tensor
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    return torch.frombuffer(bytearray(numbers), dtype=dtype).view(shape).requires_grad_(requires_grad)
