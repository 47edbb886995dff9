"""Stacks of equal layers: options that turn a convolution into a model."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack, get_type_hints

import torch
from torch import Tensor

from outgrow.core.arguments import bind_arguments, check_arguments
from outgrow.core.errors import InputError
from outgrow.core.synonyms import accept_synonyms, rename_keys
from outgrow.core.validation import out_of_range_error, require_counts, validate_probability
from outgrow.nn.encoder import Encoder, LinearEncoder
from outgrow.nn.epilogue import Epilogue
from outgrow.nn.layer import Conv, Layer
from outgrow.nn.model import Model

ModelFunction = TypeVar("ModelFunction", bound=Callable[..., Model])

_MOST_LAYERS = 10_000
_SYNONYMS = {"num_layers": "layers"}


class LayerPosition(NamedTuple):
    """Position of a convolution in a stack."""

    is_first: bool
    is_last: bool


@accept_synonyms(**_SYNONYMS)
@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Stack:
    """Options of a stack of convolutions.

    Attributes:
        layers: Number of layers, at least 1. The constructor also takes it as ``num_layers``.
        dropout: Probability of zeroing an element of a hidden output, in [0, 1).
        input_dropout: The same for the input features.
        norm: Whether to apply layer norm after each hidden convolution.
        residual: Whether to add a hidden layer's input to its output if the widths are equal.
        activation: Element-wise function after each hidden convolution; None for none.
    """

    layers: int = 2
    dropout: float = 0.5
    input_dropout: float = 0.0
    norm: bool = False
    residual: bool = False
    activation: Callable[[Tensor], Tensor] | None = torch.relu

    def __post_init__(self) -> None:
        if not 1 <= self.layers <= _MOST_LAYERS:
            raise out_of_range_error("layers", f"from 1 to {_MOST_LAYERS:,}", self.layers)
        validate_probability("dropout", self.dropout)
        validate_probability("input_dropout", self.input_dropout)

    def build(self, widths: tuple[int, int, int], conv: Callable[[int, int, LayerPosition], Conv]) -> Model:
        """Build a model of widths ``(in, hidden, out)``; ``conv(in, out, position)`` makes convolutions."""
        built = []
        for index, (width_in, width_out, finish) in enumerate(self._layer_sizes(widths)):
            place = LayerPosition(is_first=index == 0, is_last=index == self.layers - 1)
            built.append(Layer(conv(width_in, width_out, place), finish))
        return Model(built, input_dropout=self.input_dropout)

    def build_mlp(self, widths: tuple[int, int, int]) -> list[Encoder]:
        """Build the same stack without neighbours: an MLP of widths ``(in, hidden, out)``."""
        return [LinearEncoder(*sizes) for sizes in self._layer_sizes(widths)]

    def _layer_sizes(self, widths: tuple[int, int, int]) -> list[tuple[int, int, Epilogue | None]]:
        """Return the input width, output width and epilogue of each layer."""
        in_features, hidden, out_features = widths
        if in_features == 0:
            raise InputError(
                "a model has no features to read",
                needed="at least 1 column of features",
                got="in_features 0: the graph has none",
                repair="give the graph features, such as numbers of neighbours or positions",
            )
        require_counts(in_features=in_features, hidden=hidden, out_features=out_features)
        sizes = [in_features] + [hidden] * (self.layers - 1) + [out_features]
        # The last layer gives logits: no norm, activation or dropout may change them.
        *inner, (last_in, last_out) = pairwise(sizes)
        return [*((a, b, self._make_epilogue(a == b)) for a, b in inner), (last_in, last_out, None)]

    def _make_epilogue(self, same_width: bool) -> Epilogue:
        # Without a projection of its own, a residual can only join equal widths.
        residual = self.residual and same_width
        return Epilogue(norm=self.norm, activation=self.activation, residual=residual, dropout=self.dropout)


class StackOptions(TypedDict, total=False):
    """The fields of `Stack` as keywords of a function that makes a model. ``num_layers`` is a synonym of ``layers``."""

    layers: int
    num_layers: int
    dropout: float
    input_dropout: float
    norm: bool
    residual: bool
    activation: Callable[[Tensor], Tensor] | None


def accept_stack_options(**defaults: Unpack[StackOptions]) -> Callable[[ModelFunction], ModelFunction]:
    """Decorator of a function with ``**stack: Unpack[StackOptions]``: `help` shows each of them with its default.

    Args:
        **defaults: Those that are not the defaults of `Stack`.
    """

    def decorate(function: ModelFunction) -> ModelFunction:
        @functools.wraps(function)
        def call(*args: Any, **options: Any) -> Model:
            given = rename_keys(function.__name__, options, _SYNONYMS)
            bind_arguments(f"og.nn.{function.__name__}", shown, hints, args, given)
            model = function(*args, **{**defaults, **given})
            # By it a run can name the model, and another process make it again.
            made = shown.bind(*args, **given)
            made.apply_defaults()
            model.constructor = function.__name__, dict(made.arguments)
            return model

        # Once, and not while a file is read: annotations are evaluated as code.
        hints = {**get_type_hints(Stack), **get_type_hints(function)}
        signature = inspect.signature(function)
        *named, _ = signature.parameters.values()
        fields = [
            each.replace(default=defaults.get(name, each.default))
            for name, each in inspect.signature(Stack).parameters.items()
        ]
        shown = signature.replace(parameters=[*named, *fields])
        decorated: Any = call
        decorated.__signature__ = shown
        return decorated  # type: ignore[no-any-return]

    return decorate


def make_stack(options: StackOptions) -> Stack:
    """A stack of the options that a function with `accept_stack_options` was called with."""
    return Stack(**options)  # type: ignore[misc]


def choose_heads(
    make_conv: Callable[..., Conv], heads: int, out_heads: int
) -> Callable[[int, int, LayerPosition], Conv]:
    """Return what makes the convolutions of a stack with attention: heads are concatenated, those of the last averaged.

    Args:
        make_conv: Called with the widths in and out, the number of heads, and ``average``.
        heads: Heads of hidden layers.
        out_heads: Heads of the last layer.
    """

    def make_at(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        chosen = out_heads if position.is_last else heads
        return make_conv(width_in, width_out, chosen, average=position.is_last)

    return make_at
