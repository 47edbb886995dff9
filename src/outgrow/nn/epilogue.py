"""`Epilogue`: what follows a convolution, or the map of an encoder. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.errors import InputError
from outgrow.core.validation import validate_probability
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue
from outgrow.ops.sparse import PartialRows


@check_arguments()
@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """Operations after a convolution, in this order: norm, activation, residual, dropout.

    Attributes:
        norm: Whether to apply layer norm to each row (norms that mix rows would break exactness).
        activation: Element-wise function; None for none.
        residual: Whether to add the layer's input, which must be as wide as the output.
        dropout: Probability of zeroing an element of the output, in [0, 1).
    """

    norm: bool = False
    activation: Callable[[Tensor], Tensor] | None = None
    residual: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        validate_probability("dropout", self.dropout)


def make_norm(epilogue: Epilogue, in_features: int, out_features: int) -> nn.LayerNorm | None:
    """Create the norm of an epilogue, if it has one.

    Raises:
        InputError: A residual between widths that differ.
    """
    if epilogue.residual and in_features != out_features:
        raise InputError(
            "a residual needs equal widths",
            needed="as many columns in as out",
            got=f"in {in_features}, out {out_features}",
            repair="leave the residual out of this layer",
        )
    return nn.LayerNorm(out_features) if epilogue.norm else None


def activation_module(epilogue: Epilogue) -> nn.Module | None:
    """Return the activation of an epilogue if it is a module, whose parameters must belong to that of the layer."""
    return epilogue.activation if isinstance(epilogue.activation, nn.Module) else None


def apply_epilogue(
    then: Epilogue,
    norm: nn.LayerNorm | None,
    x_VD: Tensor | PartialRows,
    y_VO: Tensor,
    bias_O: Tensor | None,
    nodes_V: Tensor,
    key: int | None,
) -> Tensor:
    """Return ``[V, O]``: the result ``y``, computed from the input ``x``, after bias and epilogue.

    Args:
        then: The epilogue.
        norm: Its norm, if it has one.
        x_VD: Input of the layer, added if there is a residual.
        y_VO: Result of the convolution.
        bias_O: Bias to add; None for none.
        nodes_V: ``[V]`` int64, global ids of the rows.
        key: Key of the dropout; None for no dropout.
    """
    residual = x_VD if then.residual else None
    # A layer with a residual does not accept sparse input, so sparse rows cannot reach this.
    assert residual is None or isinstance(residual, Tensor)
    return epilogue(
        y_VO,
        bias_F=bias_O,
        norm=None if norm is None else LayerNormSpec(norm.weight, norm.bias, norm.eps),
        activation=then.activation,
        residual_NF=residual,
        # Drawn by global id, so a node has the same mask on any worker and in any chunk.
        drop=None if key is None else DropoutSpec(nodes_V, key, then.dropout),
    )
