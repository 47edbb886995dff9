"""Bytes of what is sent to other workers: pickled objects, and rows.

A tensor is packed as its own elements, without the rest of its storage: equal objects have equal bytes in
every process, and a view does not include its base tensor.
"""

from __future__ import annotations

import io
import pickle
from typing import Any

import torch
from torch import Tensor


def serialize(value: object) -> bytes:
    """Pickle an object; CPU tensors are packed without the rest of their storage."""
    whole = io.BytesIO()
    _TensorPickler(whole).dump(value)
    return whole.getvalue()


def to_byte_tensor(value: object) -> Tensor:
    """Return ``[n]`` uint8: the pickled object."""
    return torch.frombuffer(bytearray(serialize(value)), dtype=torch.uint8)


def split_bytes(rows: Tensor, sizes: tuple[int, ...]) -> list[Tensor]:
    """View each worker's rows as bytes, so that the backend need not support their dtype."""
    row_bytes = rows[:1].nbytes
    flat = rows.view(-1).view(torch.uint8) if rows.numel() else rows.new_empty(0, dtype=torch.uint8)
    return list(torch.split(flat, [size * row_bytes for size in sizes]))


def deserialize(data: Any) -> Any:
    """Unpickle an object from a worker of the same run; trusted, as by torch's own object collectives."""
    return pickle.loads(data)


class _TensorPickler(pickle.Pickler):
    def reducer_override(self, value: Any) -> Any:
        if type(value) is not Tensor or value.device.type != "cpu" or value.layout is not torch.strided:
            return NotImplemented
        # A column of a matrix has a stride, which `reshape` keeps.
        flat = value.detach().reshape(-1).contiguous()
        # An empty tensor may have strides that `view` with another dtype refuses.
        numbers = flat.view(torch.uint8).numpy().tobytes() if len(flat) else b""
        return _rebuild_tensor, (numbers, value.dtype, tuple(value.shape), value.requires_grad)


def _rebuild_tensor(numbers: bytes, dtype: torch.dtype, shape: tuple[int, ...], requires_grad: bool) -> Tensor:
    # `torch.frombuffer` refuses an empty buffer.
    if not numbers:
        return torch.empty(shape, dtype=dtype, requires_grad=requires_grad)
    return torch.frombuffer(bytearray(numbers), dtype=dtype).view(shape).requires_grad_(requires_grad)
