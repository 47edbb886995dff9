"""Ready-made models: a convolution, stacked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from outgrow.nn.attention import GATConv
from outgrow.nn.convolution import GCNConv, SAGEConv, SAGEMaxConv
from outgrow.nn.layer import Conv, Finish, Layer
from outgrow.nn.model import Model


class Place(NamedTuple):
    """Where in a stack a convolution is."""

    first: bool
    last: bool


@dataclass(frozen=True, kw_only=True)
class Stack:
    """How convolutions are stacked to a model.

    Attributes:
        layers: Number of layers, at least 1.
        dropout: Probability of zeroing an element of a hidden output, in [0, 1).
        input_dropout: The same for the input features.
        norm: Layer norm after each hidden convolution.
        residual: Add a hidden layer's input to its output where the widths are the same.
        activation: Element-wise function after each hidden convolution.
    """

    layers: int = 2
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: bool = False
    residual: bool = False
    activation: Callable[[Tensor], Tensor] = torch.relu

    def __post_init__(self) -> None:
        if self.layers < 1:
            raise ValueError(f"a model needs at least 1 layer, got {self.layers}")
        for name, value in (("dropout", self.dropout), ("input_dropout", self.input_dropout)):
            if not 0 <= value < 1:
                raise ValueError(f"{name} must be in [0, 1), got {value}")

    def build(self, widths: tuple[int, int, int], conv: Callable[[int, int, Place], Conv]) -> Model:
        """A model of width ``widths = (in, hidden, out)``; ``conv(in, out, place)`` makes each convolution."""
        in_features, hidden, out_features = widths
        if min(widths) < 1:
            raise ValueError(f"widths must be at least 1: got in {in_features}, hidden {hidden}, out {out_features}")
        sizes = [in_features] + [hidden] * (self.layers - 1) + [out_features]
        built = []
        for index, (width_in, width_out) in enumerate(pairwise(sizes)):
            last = index == self.layers - 1
            finish = None if last else self._finish(width_in == width_out)
            place = Place(first=index == 0, last=last)
            built.append(Layer(conv(width_in, width_out, place), finish))
        return Model(built, input_dropout=self.input_dropout)

    def _finish(self, same_width: bool) -> Finish:
        residual = self.residual and same_width
        return Finish(norm=self.norm, activation=self.activation, residual=residual, dropout=self.dropout)


def GCN(in_features: int, hidden: int, out_features: int, **stack: object) -> Model:
    """A stack of `GCNConv`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        **stack: Fields of `Stack`.
    """
    return _stack(stack).build((in_features, hidden, out_features), lambda i, o, place: GCNConv(i, o))


def SAGE(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    pool: str = "mean",
    sparse_input: bool = False,
    **stack: object,
) -> Model:
    """A stack of `SAGEConv` (``pool="mean"``) or `SAGEMaxConv` (``pool="max"``).

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers.
        out_features: Number of classes.
        pool: How neighbours are combined.
        sparse_input: The features are sparse: the first layer projects before it aggregates.
        **stack: Fields of `Stack`.

    Raises:
        ValueError: Another ``pool``.
    """
    if pool not in ("mean", "max"):
        raise ValueError(f"pool must be 'mean' or 'max', got {pool!r}")

    def conv(width_in: int, width_out: int, place: Place) -> Conv:
        if pool == "max":
            return SAGEMaxConv(width_in, width_out)
        project_first = True if place.first and sparse_input else None
        return SAGEConv(width_in, width_out, project_first=project_first)

    return _stack(stack).build((in_features, hidden, out_features), conv)


def GAT(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    heads: int = 8,
    out_heads: int = 1,
    attention_dropout: float = 0.0,
    **stack: object,
) -> Model:
    """A stack of `GATConv` with ELU; other arguments as in `GCN`.

    Args:
        in_features: Width of the features.
        hidden: Width of hidden layers, all heads together.
        out_features: Number of classes.
        heads: Heads of hidden layers; divides ``hidden``.
        out_heads: Heads of the last layer, averaged.
        attention_dropout: Probability of dropping an edge of a head, in [0, 1).
        **stack: Fields of `Stack`.
    """

    def conv(width_in: int, width_out: int, place: Place) -> Conv:
        count = out_heads if place.last else heads
        return GATConv(width_in, width_out, count, average=place.last, attention_dropout=attention_dropout)

    return _stack({"activation": functional.elu, **stack}).build((in_features, hidden, out_features), conv)


def _stack(options: dict[str, object]) -> Stack:
    return Stack(**options)  # type: ignore[arg-type]
