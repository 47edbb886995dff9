"""What a model makes of the features of each node alone, before any layer sees neighbours.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from outgrow.core.deprecation import renamed_members, renamed_options
from outgrow.nn.layer import Epilogue, Features, Projection, apply_epilogue, make_norm, require_counts
from outgrow.ops.rng import fold_in


@renamed_members(takes_sparse="accepts_sparse", takes_half="accepts_half", held="activation_width")
class Encoder(nn.Module, ABC):
    """A network on rows of nodes: no row depends on another. It draws random numbers from the key that it is given.

    Attributes:
        in_features: ``D``.
        out_features: ``O``.
        accepts_sparse: Whether the input may be `SparseRows`.
        accepts_half: Whether a constant input may be in half precision.
        activation_width: Numbers that a row takes while it is encoded and its gradient is computed.
    """

    in_features: int
    out_features: int
    accepts_sparse: bool = True
    accepts_half: bool = True
    activation_width: int

    @abstractmethod
    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """``[V, O]``.

        Args:
            x_VD: Features, or what another encoder made of them.
            nodes_V: ``[V]`` int64, global ids of the rows.
            key: Key of the draws in this step; None draws nothing.
        """


@renamed_options(finish="epilogue")
class LinearEncoder(Encoder):
    """``x W + b`` and what follows it, as after a convolution. Final.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        epilogue: What follows; nothing by default.
    """

    def __init__(self, in_features: int, out_features: int, epilogue: Epilogue | None = None) -> None:
        super().__init__()
        self.in_features, self.out_features, self.epilogue = in_features, out_features, epilogue or Epilogue()
        self.project = Projection(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.norm = make_norm(self.epilogue, in_features, out_features)
        self.accepts_sparse = self.accepts_half = not self.epilogue.residual
        self.activation_width = 4 * out_features

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """See `Encoder.forward`."""
        return apply_epilogue(self.epilogue, self.norm, x_VD, self.project(x_VD), self.bias, nodes_V, key)


class AttentionScores(Encoder):
    """``x`` and, beside it, ``x A``: scores of each node as a source and as a destination, for attention. Final.

    Args:
        in_features: ``D``.
        heads: ``K``.

    Raises:
        ValueError: ``heads`` is less than 1.
    """

    accepts_sparse = accepts_half = False

    def __init__(self, in_features: int, heads: int) -> None:
        super().__init__()
        require_counts(heads=heads)
        self.in_features, self.out_features = in_features, in_features + 2 * heads
        self.score = Projection(in_features, 2 * heads)
        self.activation_width = 3 * self.out_features

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """``[V, D + 2 K]``."""
        assert isinstance(x_VD, Tensor)
        return torch.cat([x_VD, self.score(x_VD)], 1)


class SequentialEncoder(Encoder):
    """One after the other; each draws by a key of its own. Final.

    Args:
        encoders: At least one.

    Raises:
        ValueError: None are given, or one does not take what the one before gives.
    """

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        if not encoders:
            raise ValueError("a chain needs at least 1 encoder, got 0")
        for before, after in pairwise(encoders):
            if before.out_features != after.in_features:
                raise ValueError(f"an encoder gives {before.out_features} columns, the next takes {after.in_features}")
        self.encoders = nn.ModuleList(encoders)
        first = encoders[0]
        self.in_features, self.out_features = first.in_features, encoders[-1].out_features
        self.accepts_sparse, self.accepts_half = first.accepts_sparse, first.accepts_half
        self.activation_width = sum(each.activation_width for each in encoders)

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """See `Encoder.forward`."""
        x = x_VD
        for index, encoder in enumerate(self.encoders):
            x = encoder(x, nodes_V, None if key is None else fold_in(key, index))
        assert isinstance(x, Tensor)
        return x
