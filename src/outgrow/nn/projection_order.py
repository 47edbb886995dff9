"""The order of a projection and a weighted sum, which commute: what convolutions that have both share.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import replace

from torch import Tensor

from outgrow.nn.layer import Conv, Features, NodeMessages
from outgrow.nn.projection import Projection
from outgrow.nn.source_products import SourceProductConv, project_rows_without_values


def should_project_first(in_features: int, out_features: int, asked: bool | None) -> bool:
    """Whether to project first: as asked, or if that makes source rows narrower."""
    # On a tie, aggregating first wins: its sources are the input, which need not be computed or stored.
    return out_features < in_features if asked is None else asked


def as_one_channel(x_VF: Features) -> NodeMessages:
    """Return rows as one channel without scores."""
    assert isinstance(x_VF, Tensor)
    return NodeMessages(x_VF[:, None], None)


class ReorderableConv(SourceProductConv, ABC):
    """Convolution whose first projection and sum commute: it accepts sparse rows in the order that projects first."""

    @property
    @abstractmethod
    def neighbour_projection(self) -> Projection:
        """The projection that commutes with the sum."""

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, O]`` projected rows, or ``[V, 1, D]`` the input."""
        return as_one_channel(self.neighbour_projection(x_VD) if self.accepts_sparse else x_VD)

    def source_without_values(self, x_VD: Features) -> NodeMessages:
        """See `SourceProductConv.source_without_values`; values of the input are there."""
        if not self.accepts_sparse:
            return as_one_channel(x_VD)
        return as_one_channel(project_rows_without_values(x_VD, self.neighbour_projection.weight))

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
