"""Layers with their widths rounded up, for a library whose kernels are made for multiples of a width.

What is added to a parameter starts at zero. The features that it multiplies are zero, or what it computes is cut off:
it has no gradient and stays zero, and the losses are those of the layers as they were.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from rivals.layers import Kind
from torch import Tensor, nn
from torch.nn.functional import pad


def count_missing(width: int, unit: int) -> int:
    """Columns from a width to the next multiple of ``unit``."""
    return -width % unit


def pad_kind(kind: Kind, unit: int) -> Kind:
    """The layer with input and output width rounded up; named are the parts of parameters that it would have else."""

    def make(given: int, wanted: int, heads: int) -> nn.Module:
        layer: Any = kind.make(given + count_missing(given, unit), wanted + count_missing(wanted, unit), heads)
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.zero_()
        unpadded = kind.named(kind.make(given, wanted, heads))
        layer.unpadded_shapes = {name: value.shape for name, value in unpadded.items()}
        layer.unpadded_width = wanted
        found: nn.Module = layer
        return found

    def named(layer: Any) -> dict[str, Tensor]:
        shapes = layer.unpadded_shapes
        return {name: value[tuple(map(slice, shapes[name]))] for name, value in kind.named(layer).items()}

    return Kind(make=make, named=named, activation=kind.activation)


def call_padded(layer: Any, x: Tensor, unit: int, call: Callable[[Tensor], Tensor]) -> Tensor:
    """Output of a layer of `pad_kind`, cut to its width before padding.

    Args:
        layer: The layer.
        x: ``[V, D]``, padded if it is not yet.
        unit: Of which widths are multiples.
        call: Output of the layer for a padded input.
    """
    missing = count_missing(x.shape[1], unit)
    return call(pad(x, (0, missing)) if missing else x)[:, : layer.unpadded_width]
