"""Decoders: how likely a link is, from what a model makes of its ends.

Both take the ends alike, so a link and its reverse have one score.
Letters: ``F`` columns of a node, ``R`` relations, ``N`` rows, ``P`` pairs of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from outgrow.core.deprecation import renamed_members
from outgrow.ops.link_scores import NodePairs, pair_scores


@renamed_members(scale="column_scale", takes="accepts_width", queries="link_queries")
class Decoder(nn.Module, ABC):
    """Scores links: ``sum over f of x_head[f] * scale[relation, f] * x_tail[f]``.

    Attributes:
        num_relations: ``R``; 0 for links without relations.
    """

    num_relations: int = 0

    @abstractmethod
    def column_scale(self, like: Tensor) -> Tensor:
        """``[max(R, 1), F]``, of the type and width of the rows ``like [N, F]``."""

    @abstractmethod
    def accepts_width(self, columns: int) -> bool:
        """Whether nodes may have so many columns."""

    def forward(self, x_NF: Tensor, pairs: NodePairs) -> Tensor:
        """``[P]`` scores, in the order of the pairs; differentiable in ``x``."""
        return pair_scores(x_NF, pairs if self.num_relations else pairs.with_relation_zero, self.column_scale(x_NF))

    def link_queries(self, x_NF: Tensor, relation_N: Tensor) -> Tensor:
        """``[N, F]``: what multiplied with the row of another node gives the score of the link to it."""
        scale_RF = self.column_scale(x_NF).to(x_NF.device)  # rows may be in memory, and the parameters on a device
        return x_NF * scale_RF[relation_N if self.num_relations else torch.zeros_like(relation_N)]


class Dot(Decoder):
    """The dot product of both ends, divided by ``sqrt(F)``; relations make no difference. Final.

    So divided scores of fresh models are about as large whatever the width; no rank depends on it.
    """

    def column_scale(self, like: Tensor) -> Tensor:
        """See `Decoder.column_scale`: the same for all columns."""
        return like.new_full((1, like.shape[1]), like.shape[1] ** -0.5)

    def accepts_width(self, columns: int) -> bool:
        """Any."""
        return True


class DistMult(Decoder):
    """A trained scale of each column for each relation, near that of `Dot` at first. Yang et al., ICLR 2015. Final.

    Args:
        columns: ``F``.
        num_relations: ``R``, at least 1.

    Raises:
        ValueError: No relations.
    """

    def __init__(self, columns: int, num_relations: int) -> None:
        super().__init__()
        if min(columns, num_relations) < 1:
            raise ValueError(f"DistMult needs columns and relations, got {columns} and {num_relations}")
        self.num_relations = num_relations
        self.relation = nn.Parameter(torch.empty(num_relations, columns))
        nn.init.normal_(self.relation, columns**-0.5, 0.1 * columns**-0.5)

    def column_scale(self, like: Tensor) -> Tensor:
        """See `Decoder.column_scale`."""
        return self.relation

    def accepts_width(self, columns: int) -> bool:
        """The width that it was made for."""
        return columns == self.relation.shape[1]
