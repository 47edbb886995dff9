"""Decoders: scores of links from the embeddings of their ends.

Both decoders are symmetric: a link and its reverse have the same score.
Letters: ``F`` columns of a node, ``R`` relations, ``N`` rows, ``P`` pairs of rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members
from outgrow.core.validation import require_counts
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
        """Return the scale ``[max(R, 1), F]``, with the type and width of the rows ``like [N, F]``."""

    @abstractmethod
    def accepts_width(self, columns: int) -> bool:
        """Whether nodes may have this number of columns."""

    def forward(self, x_NF: Tensor, pairs: NodePairs) -> Tensor:
        """Return ``[P]`` scores in the order of the pairs; differentiable in ``x``."""
        # A decoder without relations has one row of scales, which links of all relations use.
        return pair_scores(x_NF, pairs if self.num_relations else pairs.with_relation_zero, self.column_scale(x_NF))

    def link_queries(self, x_NF: Tensor, relation_N: Tensor) -> Tensor:
        """Return ``[N, F]``: queries whose dot product with another node's row is the score of that link."""
        # Rows may be in host memory while the parameters are on a device.
        scale_RF = self.column_scale(x_NF).to(x_NF.device)
        return x_NF * scale_RF[relation_N if self.num_relations else torch.zeros_like(relation_N)]


@check_arguments()
class Dot(Decoder):
    """Dot product of both ends, divided by ``sqrt(F)``; relations make no difference. Final.

    The division gives scores of untrained models a similar size for every width; it does not change any rank.
    """

    def __init__(self) -> None:
        super().__init__()

    def column_scale(self, like: Tensor) -> Tensor:
        """Return ``[1, F]``: the same scale for all columns."""
        return like.new_full((1, like.shape[1]), like.shape[1] ** -0.5)

    def accepts_width(self, columns: int) -> bool:
        """Accept any width."""
        return True


@check_arguments()
class DistMult(Decoder):
    """Trained scale of each column and relation, initially near that of `Dot`. Yang et al., ICLR 2015. Final.

    Args:
        columns: ``F``.
        num_relations: ``R``, at least 1.

    Raises:
        InputError: No columns or no relations.
    """

    def __init__(self, columns: int, num_relations: int) -> None:
        super().__init__()
        require_counts(columns=columns, num_relations=num_relations)
        self.num_relations = num_relations
        self.relation = nn.Parameter(torch.empty(num_relations, columns))
        # With some noise, so that relations and columns differ from the start.
        nn.init.normal_(self.relation, columns**-0.5, 0.1 * columns**-0.5)

    def column_scale(self, like: Tensor) -> Tensor:
        """Return the trained scales ``[R, F]``."""
        return self.relation

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the trained scales."""
        return columns == self.relation.shape[1]
