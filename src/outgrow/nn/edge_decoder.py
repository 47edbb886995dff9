"""Decoders of edges: numbers for each edge, from the rows of its ends and from its features.

An edge runs from a head to a tail. Letters: ``F`` columns of a node, ``P`` edges, ``R`` relations, ``I`` features of an
edge, ``H`` hidden units, ``C`` outputs.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import require_counts
from outgrow.nn.decoder import parameter_rows
from outgrow.nn.projection import Projection


class EdgeDecoder(nn.Module, ABC):
    """Predicts targets of edges: logits of classes, or numbers. A decoder of one's own defines `score`.

    Outputs are differentiable in rows and parameters, and of the type of the rows, float32 or float64. Those of an edge
    depend on nothing of other edges, and no random numbers are drawn.

    Attributes:
        num_relations: ``R``; 0 if relations make no difference.
        edge_dim: ``I``, all features of an edge but the target; 0 if they make no difference.
    """

    num_relations: int = 0
    edge_dim: int = 0

    @abstractmethod
    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor, edge_features_PI: Tensor | None) -> Tensor:
        """Return ``[P, C]``: the outputs of each edge.

        Args:
            heads_PF: ``[P, F]`` rows of heads.
            relations_P: ``[P]`` int64, below ``R``; to be ignored by decoders without relations.
            tails_PF: ``[P, F]`` rows of tails.
            edge_features_PI: ``[P, I]``, codes of categories as one-hot vectors; None if ``edge_dim`` is 0.
        """

    def accepts_width(self, columns: int) -> bool:
        """Whether nodes may have this number of columns; any, unless a decoder says otherwise."""
        return True


@check_arguments()
class EdgeMLP(EdgeDecoder):
    """``relu([head, tail, features] W + r + b) V + c``: a layer over both ends, relation and features. Final.

    A vector ``r`` of ``H`` numbers for each relation is what a vector beside those of the ends, times its part of the
    weights, comes to.

    Args:
        columns: ``F``.
        outputs: ``C``: classes, or 1 for a regression.
        num_relations: ``R``; 0 if relations make no difference.
        edge_dim: ``I``; 0 if features make no difference.
        hidden: ``H``; None for ``F``.

    Raises:
        InputError: No columns, no outputs, no hidden units, or fewer relations or features than none.
    """

    def __init__(
        self, columns: int, outputs: int, num_relations: int = 0, edge_dim: int = 0, *, hidden: int | None = None
    ) -> None:
        super().__init__()
        width = columns if hidden is None else hidden
        require_counts(columns=columns, outputs=outputs, hidden=width)
        require_counts(0, num_relations=num_relations, edge_dim=edge_dim)
        self.num_relations = num_relations
        self.edge_dim = edge_dim
        self.head = Projection(columns, width, bias=True)
        self.tail = Projection(columns, width)
        self.edge = Projection(edge_dim, width) if edge_dim else None
        self.relation = nn.Parameter(torch.empty(num_relations, width)) if num_relations else None
        self.out = Projection(width, outputs, bias=True)
        if self.relation is not None:
            nn.init.normal_(self.relation)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the weights."""
        return columns == self.head.weight.shape[0]

    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor, edge_features_PI: Tensor | None) -> Tensor:
        """Return ``[P, C]``; see `EdgeDecoder.score`."""
        hidden_PH = self.head(heads_PF) + self.tail(tails_PF)
        if self.relation is not None:
            hidden_PH = hidden_PH + parameter_rows(self.relation, relations_P, hidden_PH)
        if self.edge is not None:
            assert edge_features_PI is not None
            hidden_PH = hidden_PH + self.edge(edge_features_PI)
        out: Tensor = self.out(torch.relu(hidden_PH))
        return out
