"""Options of the loop are checked when they are given."""

from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.training.config import TrainConfig


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epochs", 0),
        ("eval_every", 0),
        ("checkpoint_every", -1),
        ("patience", 0),
        ("lr", 0.0),
        ("lr", -0.1),
        ("lr", math.nan),
        ("lr", math.inf),
        ("weight_decay", -1e-9),
        ("weight_decay", math.nan),
        ("seed", -1),
        ("seed", 2**63),
    ],
)
def test_values_out_of_range(name: str, value: float) -> None:
    with pytest.raises(InputError) as caught:
        TrainConfig(**{name: value})  # type: ignore[arg-type]
    assert name in caught.value.what
    assert caught.value.got == str(value)


@pytest.mark.parametrize(
    ("name", "value"), [("epochs", 1), ("patience", None), ("weight_decay", 0.0), ("seed", 2**63 - 1), ("lr", 1e-300)]
)
def test_values_at_the_border(name: str, value: float | None) -> None:
    assert getattr(TrainConfig(**{name: value}), name) == value  # type: ignore[arg-type]


def test_an_unknown_optimizer_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        TrainConfig(optimizer="adamv")
    assert "did you mean adam or" in caught.value.repair


def test_an_unknown_option_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as caught:
        TrainConfig().with_options(epoch=5)
    assert "did you mean epochs" in caught.value.repair


def test_other_options() -> None:
    config = TrainConfig(lr=0.5).with_options(epochs=7, patience=3)
    assert (config.lr, config.epochs, config.patience) == (0.5, 7, 3)
    with pytest.raises(InputError):
        config.with_options(epochs=0)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.epochs = 9  # type: ignore[misc]


@pytest.mark.parametrize(("name", "kind"), [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)])
def test_the_optimizer_has_the_options(name: str, kind: type[torch.optim.Optimizer]) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = TrainConfig(optimizer=name, lr=0.3, weight_decay=0.2).make_optimizer(model)
    assert isinstance(optimizer, kind)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["weight_decay"], len(group["params"])) == (0.3, 0.2, 2)
