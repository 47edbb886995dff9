"""The order of a projection and a weighted sum, which commute: what convolutions that have both share.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

import copy
from abc import ABC
from dataclasses import replace

from torch import Tensor

from outgrow.nn.layer import Conv, Features, NodeMessages


def should_project_first(in_features: int, out_features: int, asked: bool | None) -> bool:
    """Whether to project first: as asked, or if that makes source rows narrower."""
    # On a tie, aggregating first wins: its sources are the input, which need not be computed or stored.
    return out_features < in_features if asked is None else asked


def as_one_channel(x_VF: Features) -> NodeMessages:
    """Return rows as one channel without scores."""
    assert isinstance(x_VF, Tensor)
    return NodeMessages(x_VF[:, None], None)


class ReorderableConv(Conv, ABC):
    """Convolution whose first projection and sum commute: it accepts sparse rows in the order that projects first."""

    def aggregate_first(self) -> Conv:
        """Return the form that projects after the sum, whose source is its input."""
        return self._reorder(project_first=False)

    def with_projection_first(self) -> Conv:
        """Return the form that projects before the sum, whose source is the product."""
        return self._reorder(project_first=True)

    def _reorder(self, *, project_first: bool) -> Conv:
        if self.accepts_sparse == project_first:
            return self
        # A shallow copy shares the parameters; only the flag and the widths are its own.
        reordered = copy.copy(self)
        width = self.spec.out_features if project_first else self.spec.in_features
        reordered.accepts_sparse = project_first
        reordered.spec = replace(self.spec, source=(1, width), aggregate=(1, width), source_is_input=not project_first)
        return reordered
