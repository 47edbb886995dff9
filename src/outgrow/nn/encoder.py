"""Encoders: networks on the features of each node alone, before any layer that sees neighbours.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members, renamed_options
from outgrow.core.errors import InputError
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import require_counts
from outgrow.nn.epilogue import Epilogue, activation_module, apply_epilogue, make_norm
from outgrow.nn.layer import Features
from outgrow.nn.projection import Projection
from outgrow.ops.rng import fold_in


@renamed_members(takes_sparse="accepts_sparse", takes_half="accepts_half", held="activation_width")
class Encoder(nn.Module, ABC):
    """Network that maps each row by itself. Random numbers are drawn from the given key only.

    Attributes:
        in_features: ``D``.
        out_features: ``O``.
        accepts_sparse: Whether the input may be `PartialRows`.
        accepts_half: Whether constant input may be in half precision.
        activation_width: Numbers stored for a row during the forward and the backward pass.
        reads_types: Whether it has modules per node type, and so needs `bind_types`.
        reads_features: Whether it reads features at all.
    """

    in_features: int
    out_features: int
    accepts_sparse: bool = True
    accepts_half: bool = True
    activation_width: int
    reads_types: bool = False
    reads_features: bool = True

    def bind_types(self, types: GraphTypes) -> None:
        """Take the ids and columns of the types of a graph; an encoder without modules per type needs none.

        Raises:
            InputError: The encoder was made for other types.
        """

    @abstractmethod
    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, O]``: the encoded rows.

        Args:
            x_VD: Features, or the output of another encoder.
            nodes_V: ``[V]`` int64, global ids of the rows.
            key: Key of the draws in this step; None for no dropout.
        """


@renamed_options(finish="epilogue")
@check_arguments()
class LinearEncoder(Encoder):
    """Linear map ``x W + b`` with the epilogue of a convolution. Final.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        epilogue: Operations after the map; none by default.
    """

    def __init__(self, in_features: int, out_features: int, epilogue: Epilogue | None = None) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.epilogue = epilogue or Epilogue()
        self.project = Projection(in_features, out_features)
        self.bias = nn.Parameter(torch.zeros(out_features))
        self.norm = make_norm(self.epilogue, in_features, out_features)
        self.activation = activation_module(self.epilogue)
        # A residual adds the input to the output, which sparse or half-precision rows do not allow.
        self.accepts_sparse = self.accepts_half = not self.epilogue.residual
        self.activation_width = 4 * out_features

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, O]``: projection, bias and epilogue."""
        if self.activation is not None:
            self.activation.train(key is not None)
        # The projection has no bias of its own: the epilogue adds it in the same pass as what follows.
        return apply_epilogue(self.epilogue, self.norm, x_VD, self.project(x_VD), self.bias, nodes_V, key)


@check_arguments()
class AttentionScores(Encoder):
    """Concatenation of ``x`` and ``x A``: attention scores of nodes as sources and as destinations. Final.

    Args:
        in_features: ``D``.
        heads: ``K``.

    Raises:
        InputError: ``heads`` is less than 1.
    """

    accepts_sparse = accepts_half = False

    def __init__(self, in_features: int, heads: int) -> None:
        super().__init__()
        require_counts(heads=heads)
        self.in_features = in_features
        self.out_features = in_features + 2 * heads
        self.score = Projection(in_features, 2 * heads)
        self.activation_width = 3 * self.out_features

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, D + 2 K]``: the input, source scores, destination scores."""
        assert isinstance(x_VD, Tensor)
        return torch.cat([x_VD, self.score(x_VD)], 1)


@check_arguments()
class SequentialEncoder(Encoder):
    """Encoders in sequence, each with its own key for random draws. Final.

    Args:
        encoders: At least one encoder.

    Raises:
        InputError: There is none, or the widths of two neighbours differ.
    """

    def __init__(self, encoders: Sequence[Encoder]) -> None:
        super().__init__()
        if not len(encoders):
            raise InputError("a chain has no encoders", needed="at least 1", got="0", repair="give it encoders")
        for before, after in pairwise(encoders):
            if before.out_features != after.in_features:
                raise InputError(
                    "encoders do not fit one another",
                    needed=f"{after.in_features} columns, which an encoder takes",
                    got=f"{before.out_features} columns from the one before it",
                    repair="make both of the same width",
                )
        self.encoders = nn.ModuleList(encoders)
        # Only the first encoder reads features; the others get dense output in the model's type.
        first = encoders[0]
        self.in_features = first.in_features
        self.out_features = encoders[-1].out_features
        self.accepts_sparse = first.accepts_sparse
        self.accepts_half = first.accepts_half
        self.activation_width = sum(each.activation_width for each in encoders)
        self.reads_types = any(each.reads_types for each in encoders)
        self.reads_features = first.reads_features

    def bind_types(self, types: GraphTypes) -> None:
        """Pass the types on to the encoders."""
        for encoder in self.encoders:
            assert isinstance(encoder, Encoder)
            encoder.bind_types(types)

    def forward(self, x_VD: Features, nodes_V: Tensor, key: int | None) -> Tensor:
        """Return ``[V, O]``: the output of the last encoder."""
        x = x_VD
        for index, encoder in enumerate(self.encoders):
            # A key for each: equal keys would draw equal masks.
            x = encoder(x, nodes_V, None if key is None else fold_in(key, index))
        assert isinstance(x, Tensor)
        return x
