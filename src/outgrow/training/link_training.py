"""Options of training that describe how links are trained on, and what is made of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.core.validation import out_of_range_error, validate_choice
from outgrow.engine.link_options import (
    ALL,
    NEGATIVE_SAMPLING,
    REGULARIZERS,
    UNIFORM,
    LinkOptions,
    LinkSteps,
    Regularizer,
)
from outgrow.nn.link_losses import (
    AllAnswers,
    BinaryCrossEntropy,
    LinkLoss,
    MarginRanking,
    SelfAdversarial,
    SoftmaxCrossEntropy,
)

BCE, SOFTMAX, SELF_ADVERSARIAL, MARGIN, K_VS_ALL = "bce", "softmax", "self-adversarial", "margin", "k-vs-all"
LINK_TRAINING_OPTIONS = (
    "link_steps",
    "hide",
    "link_loss",
    "margin",
    "adversarial_temperature",
    "negatives",
    "negative_sampling",
    "filter_negatives",
    "regularizer",
    "regularizer_weight",
    "exclude",
)
"""Options of training by which links are trained on."""
TARGET, NONE = "target", "none"
EXCLUDED = (TARGET, NONE)
"""What layers do not see of the links of a batch."""
GIVEN_OR_ALL = "given"
RANKING_CANDIDATES = (GIVEN_OR_ALL, ALL)
"""What links are ranked among."""
REGULARIZER_WEIGHT = 0.01
"""Factor of a penalty where none is given."""


def _drop_missing(**options: float | None) -> dict[str, float]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


LINK_LOSSES: dict[str, Callable[[Any], LinkLoss | AllAnswers]] = {
    BCE: lambda config: BinaryCrossEntropy(),
    SOFTMAX: lambda config: SoftmaxCrossEntropy(),
    SELF_ADVERSARIAL: lambda config: SelfAdversarial(
        **_drop_missing(margin=config.margin, temperature=config.adversarial_temperature)
    ),
    MARGIN: lambda config: MarginRanking(**_drop_missing(margin=config.margin)),
    K_VS_ALL: lambda config: AllAnswers(label_smoothing=config.label_smoothing),
}
"""Losses by name, from a `TrainConfig`."""


def validate_link_training(config: Any) -> None:
    """Check the options of links in a `TrainConfig`, one by one and together.

    Raises:
        InputError: A name or a range is wrong, or an option would be ignored.
    """
    validate_choice("link_loss", config.link_loss, dict.fromkeys(LINK_LOSSES))
    validate_choice("negative_sampling", config.negative_sampling, NEGATIVE_SAMPLING)
    _validate_candidates(config.ranking_candidates)
    if config.exclude is not None:
        validate_choice("exclude", config.exclude, dict.fromkeys(EXCLUDED))
    if config.regularizer is not None:
        validate_choice("regularizer", config.regularizer, REGULARIZERS)
    for name in ("margin", "adversarial_temperature", "regularizer_weight"):
        value = getattr(config, name)
        if value is not None and not 0 <= value < float("inf"):
            raise out_of_range_error(name, "zero or a positive number", value)
    _require("margin", config.margin, config.link_loss in (SELF_ADVERSARIAL, MARGIN), f"{SELF_ADVERSARIAL} or {MARGIN}")
    temperature = config.adversarial_temperature
    _require("adversarial_temperature", temperature, config.link_loss == SELF_ADVERSARIAL, SELF_ADVERSARIAL)
    if config.regularizer_weight is not None and config.regularizer is None:
        raise InputError(
            "regularizer_weight is given without a regularizer",
            needed=f"regularizer {' or '.join(REGULARIZERS)}",
            got=f"regularizer_weight {config.regularizer_weight}",
            repair="give regularizer too, or leave regularizer_weight out",
        )
    if not config.filter_negatives and (config.link_loss != SOFTMAX or config.negative_sampling == UNIFORM):
        raise InputError(
            "known answers are negatives of a softmax over candidates alone",
            needed=f"link_loss {SOFTMAX} with a negative_sampling other than {UNIFORM}",
            got=f"link_loss {config.link_loss}, negative_sampling {config.negative_sampling}, filter_negatives false",
            repair="leave filter_negatives out, or give these",
        )
    draws_none = config.link_loss == K_VS_ALL or config.negative_sampling == ALL
    asked = config.link_loss == K_VS_ALL and config.negative_sampling != UNIFORM
    if draws_none and (asked or config.negatives != 1):
        by = f"link_loss {K_VS_ALL}" if config.link_loss == K_VS_ALL else f"negative_sampling {ALL}"
        raise InputError(
            f"with {by} all nodes are scored, and no negatives are drawn",
            needed="no negatives and, for this loss, no negative_sampling",
            got=f"negatives {config.negatives}, negative_sampling {config.negative_sampling}",
            repair="leave them out, or choose another loss or sampling",
        )


def _validate_candidates(value: str | int) -> None:
    if isinstance(value, str):
        validate_choice("ranking_candidates", value, dict.fromkeys(RANKING_CANDIDATES))
    elif value < 1:
        raise out_of_range_error("ranking_candidates", "given, all, or a positive number of nodes to draw", value)


def count_drawn_candidates(config: Any) -> int | None:
    """Return how many candidates are drawn for each query of a link that is ranked; None for given ones or all."""
    return config.ranking_candidates if isinstance(config.ranking_candidates, int) else None


def find_link_training(config: Any) -> list[str]:
    """Return the options of a `TrainConfig` about how links are trained on that are not at their defaults."""
    default = {each.name: each.default for each in fields(config)}
    # Numbers of negatives have always been taken without links, as records of runs of nodes hold them.
    names = (name for name in LINK_TRAINING_OPTIONS if name != "negatives")
    return [name for name in names if getattr(config, name) != default[name]]


def _require(name: str, value: float | None, fits: bool, losses: str) -> None:
    if value is not None and not fits:
        raise InputError(
            f"option {name} belongs to another loss",
            needed=f"{name} with link_loss {losses}",
            got=f"{name} {value} with another one",
            repair=f"leave {name} out, or give link_loss",
        )


def make_link_options(
    config: Any, ends: Tensor, relations: Tensor | None, *, ranks_self: bool, in_batches: bool = False
) -> LinkOptions:
    """Return how a `TrainConfig` says that links are trained on.

    Args:
        config: The options.
        ends: ``[T + 1]`` int64: the first node of each type, and the number of nodes.
        relations: ``[n]`` int64, the relations whose links are predicted; None for all.
        ranks_self: Whether the node that is asked about is ranked.
        in_batches: Whether the strategy trains in mini-batches.
    """
    weight = REGULARIZER_WEIGHT if config.regularizer_weight is None else config.regularizer_weight
    return LinkOptions(
        ends=ends,
        negatives=config.negatives,
        relations=relations,
        steps=LinkSteps(num_steps=config.link_steps, hide=config.hide),
        loss=LINK_LOSSES[config.link_loss](config),
        sampling=config.negative_sampling,
        filters_negatives=config.filter_negatives,
        ranks_self=ranks_self,
        excludes_targets=in_batches and config.exclude != NONE,
        regularizer=None if config.regularizer is None else Regularizer(name=config.regularizer, weight=weight),
    )
