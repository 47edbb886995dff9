"""Options by name, as a user gives them: which are of the model, which of the loop, which of the strategy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields

from outgrow.app.models import model_options
from outgrow.app.recipes import Recipe
from outgrow.core.nearest import pick
from outgrow.training.config import TrainConfig

_TRAINING = tuple(field.name for field in fields(TrainConfig))


def config_of(recipe: Recipe, options: Mapping[str, object]) -> TrainConfig:
    """Options of the loop that are given; the others as the recipe has them.

    Raises:
        InputError: A value cannot be used.
    """
    given = {**recipe.train, **options}
    return TrainConfig().with_options(**{name: value for name, value in given.items() if name in _TRAINING})


def sorted_options(
    model: str, options: Mapping[str, object], ways: Iterable[str] = ()
) -> tuple[dict[str, object], dict[str, object]]:
    """The options of the model, and those of the strategy that takes ``ways``; those of the loop are left out.

    Raises:
        InputError: There is no such option.
    """
    homes: tuple[dict[str, object], ...] = {}, {}, {}
    known = {**dict.fromkeys(ways, 1), **dict.fromkeys(_TRAINING, 2), **dict.fromkeys(model_options(model), 0)}
    for name, value in options.items():
        homes[pick("option", name, known)][name] = value
    return homes[0], homes[1]
