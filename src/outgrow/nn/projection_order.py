"""The order of a projection and a weighted sum, which commute: functions of the convolutions that have both.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import TypeVar

from torch import Tensor

from outgrow.nn.layer import Conv, Features, NodeMessages

AnyConv = TypeVar("AnyConv", bound=Conv)


def should_project_first(in_features: int, out_features: int, asked: bool | None) -> bool:
    """Whether to project first: as asked, or if that makes source rows narrower."""
    # On a tie, aggregating first wins: its sources are the input, which need not be computed or stored.
    return out_features < in_features if asked is None else asked


def as_one_channel(x_VF: Features) -> NodeMessages:
    """Return rows as one channel without scores."""
    assert isinstance(x_VF, Tensor)
    return NodeMessages(x_VF[:, None], None)


def reorder_projection(conv: AnyConv, *, project_first: bool) -> AnyConv:
    """Return a convolution, with the same parameters, in the order that projects before the sum, or after it.

    In the first order it accepts sparse rows, and its source is the product; in the other one its source is its input.
    """
    if conv.accepts_sparse == project_first:
        return conv
    # A shallow copy shares the parameters; only the flag and the widths are its own.
    reordered = copy.copy(conv)
    width = conv.spec.out_features if project_first else conv.spec.in_features
    reordered.accepts_sparse = project_first
    reordered.spec = replace(conv.spec, source=(1, width), aggregate=(1, width), source_is_input=not project_first)
    return reordered
