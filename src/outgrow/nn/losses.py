"""Losses of rows: one number for each row, which depends on the logits and the target of that row alone.

Letters: ``N`` labelled nodes, ``C`` classes, ``K`` targets of a regression.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional

from outgrow.core.errors import InputError
from outgrow.core.validation import describe_value, validate_choice

RowLoss = Callable[[Tensor, Tensor], Tensor]
"""A function of logits ``[n, C]`` and targets ``[n, ...]`` that returns ``[n]``."""
BALANCED = "balanced"
_ENTRY_LOSSES: dict[str, Callable[..., Tensor]] = {
    "mse": functional.mse_loss,
    "mae": functional.l1_loss,
    "huber": functional.huber_loss,
}
ENTRY_LOSSES = tuple(_ENTRY_LOSSES)
"""Names of the losses of a regression."""
_COLUMNS = 64


def sum_rows(losses_N: Tensor, weights_N: Tensor | None = None) -> Tensor:
    """Return the sum of losses, each times its weight; the same bits on any number of threads."""
    weighted = losses_N if weights_N is None else losses_N * weights_N.to(losses_N)
    # Column by column: a sum of all at once depends on the number of threads.
    padded = functional.pad(weighted, (0, -len(weighted) % _COLUMNS))
    return padded.view(-1, _COLUMNS).sum(0).sum()


def call_row_loss(loss: RowLoss, logits_NC: Tensor, targets_N: Tensor) -> Tensor:
    """Return what a loss of the user's gives; one that is a module is moved to the device of the logits."""
    if isinstance(loss, nn.Module):
        loss.to(logits_NC.device)
    return loss(logits_NC, targets_N)


def multi_label_losses(logits_NC: Tensor, labels_NC: Tensor, pos_weight: tuple[float, ...] | None) -> Tensor:
    """Return ``[N, C]`` binary cross-entropies of zeros and ones; those of ones times the weight of their class."""
    weight = None if pos_weight is None else logits_NC.new_tensor(pos_weight)
    return functional.binary_cross_entropy_with_logits(
        logits_NC, labels_NC.to(logits_NC.dtype), reduction="none", pos_weight=weight
    )


def regression_losses(kind: str, out_NK: Tensor, targets_NK: Tensor) -> Tensor:
    """Return ``[N]``: the sum over the known targets of a node, over ``K``; NaN is unknown."""
    known = ~targets_NK.isnan()
    # Zero in both places, so that neither the value nor the gradient of an unknown target is NaN.
    zero = out_NK.new_zeros(())
    each = _ENTRY_LOSSES[kind](torch.where(known, out_NK, zero), torch.where(known, targets_NK, zero), reduction="none")
    return each.mean(1)


def validate_weights(option: str, given: object) -> tuple[float, ...] | str | None:
    """Return weights of classes as numbers, or ``"balanced"``, or None.

    Raises:
        InputError: Another text, or numbers that are negative, not finite or all zero.
    """
    if given is None or isinstance(given, str):
        if given is None or "," not in given:
            return given if given is None else validate_choice(option, given, {BALANCED: BALANCED})
        given = given.split(",")  # as on the command line
    # The keys of a mapping would be taken for weights.
    if isinstance(given, Mapping):
        raise _weights_error(option, describe_value(given))
    try:
        rows = given.tolist() if isinstance(given, Tensor) else list(given)  # type: ignore[call-overload]
        weights = tuple(float(each) for each in rows)
    except (TypeError, ValueError) as error:
        raise _weights_error(option, describe_value(given)) from error
    if not weights or any(not math.isfinite(each) or each < 0 for each in weights) or not any(weights):
        raise _weights_error(option, describe_value(list(weights)))
    return weights


def require_weight_count(option: str, weights: tuple[float, ...] | str | None, num_classes: int) -> None:
    """Check that there is one weight for each class.

    Raises:
        InputError: There are more or fewer.
    """
    if isinstance(weights, tuple) and len(weights) != num_classes:
        raise InputError(
            f"option {option} does not fit the classes",
            needed=f"{num_classes} numbers, one for each class",
            got=f"{len(weights)} numbers",
            repair=f'give one weight for each class, or "{BALANCED}"',
        )


def balanced_class_weight(labels_N: Tensor, num_classes: int) -> tuple[float, ...]:
    """Return ``N / (P * count[c])``, of which the mean over the labels is 1.

    ``P`` is the number of classes that occur; a class that does not has weight 1. This is
    ``sklearn.utils.class_weight.compute_class_weight("balanced")``, after King and Zeng (2001).
    """
    counts = torch.bincount(labels_N.long(), minlength=num_classes).double()
    present = counts > 0
    weight = len(labels_N) / (present.sum() * counts)
    return tuple(torch.where(present, weight, 1.0).tolist())


def balanced_pos_weight(labels_NC: Tensor) -> tuple[float, ...]:
    """Return the number of zeros over the number of ones of each class; 1 if either is missing."""
    ones = labels_NC.double().sum(0)
    zeros = len(labels_NC) - ones
    return tuple(torch.where((ones > 0) & (zeros > 0), zeros / ones, 1.0).tolist())


def _weights_error(option: str, got: str) -> InputError:
    return InputError(
        f"option {option} cannot be used",
        needed=f'a finite number of at least 0 for each class, at least one above 0; or "{BALANCED}"',
        got=got,
        repair=f"correct {option}, or leave it out",
    )
