"""Optimizers, schedules, clipping, accumulation and averages are those of a plain loop of torch, to the last bit."""

from __future__ import annotations

import functools
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from outgrow.core.errors import InputError
from outgrow.training.config import TrainConfig
from outgrow.training.optimization import Optimization
from outgrow.training.optimizers import OPTIMIZERS

EPOCHS, SIZES = 5, (4, 4, 3)
"""Epochs, and the seeds of the batches of each."""
STEPPING = [name for name in OPTIMIZERS if name != "muon"]  # which takes matrices only


def plain_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()


def batches() -> list[torch.Tensor]:
    draw = torch.Generator().manual_seed(1)
    return [torch.randn(size, 3, generator=draw, dtype=torch.float64) for size in SIZES]


def train(model: nn.Module, optimization: Optimization, epochs: int = EPOCHS, first: int = 0) -> list[float]:
    """Rates before each epoch."""
    rates = []
    for epoch in range(first, epochs):
        rates.append(optimization.lr)
        for rows in batches():
            torch.autograd.backward(model(rows).square().mean())
            optimization.step_batch(len(rows))
        optimization.flush()
        optimization.end_epoch(1.0 / (epoch + 1))
    return rates


def of(model: nn.Module, **options: Any) -> Optimization:
    config = TrainConfig(epochs=EPOCHS).with_options(**options)
    return Optimization.from_config(config, model, len(SIZES))


def plain_loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    schedule: lr_scheduler.LRScheduler | None,
    *,
    per_step: bool = False,
    clip: float | None = None,
    accumulate: int = 1,
    ema: float | None = None,
) -> nn.Module:
    """The loop as people write it, with the sum of the losses of seeds that is divided where several batches add up."""
    averaged = None if ema is None else AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(ema))
    for _ in range(EPOCHS):
        rows = batches()
        for at in range(0, len(rows), accumulate):
            part = rows[at : at + accumulate]
            for each in part:
                loss = model(each).square().mean()
                torch.autograd.backward(loss if accumulate == 1 else loss * len(each))
            if accumulate > 1:
                for parameter in model.parameters():
                    assert parameter.grad is not None
                    parameter.grad /= sum(map(len, part))
            if clip is not None:
                nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
            if averaged is not None:
                averaged.update_parameters(model)
            if schedule is not None and per_step:
                schedule.step()
        if schedule is not None and not per_step:
            schedule.step()
    return model if averaged is None else averaged.module


def assert_equal(one: nn.Module, other: nn.Module, *, close: bool = False) -> None:
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-13, atol=1e-15) if close else torch.equal(a, b)


FUSED = {name: {"fused": True} for name in ("adam", "adamw")}  # as ours are, unless told otherwise


@pytest.mark.parametrize("name", STEPPING)
def test_each_optimizer_by_name(name: str) -> None:
    ours, theirs = plain_model(), plain_model()
    train(ours, of(ours, optimizer=name, lr=0.05))
    given = ({} if name == "rprop" else {"weight_decay": 0.0}) | FUSED.get(name, {})
    plain_loop(theirs, OPTIMIZERS[name](theirs.parameters(), lr=0.05, **given), None)  # type: ignore[call-arg]
    assert_equal(ours, theirs)


SCHEDULES: dict[str, tuple[dict[str, Any], Callable[[torch.optim.Optimizer], lr_scheduler.LRScheduler]]] = {
    "cosine": ({}, lambda o: lr_scheduler.CosineAnnealingLR(o, EPOCHS)),
    "step": ({"step_size": 2, "gamma": 0.5}, lambda o: lr_scheduler.StepLR(o, 2, 0.5)),
    "multistep": ({"milestones": [1, 3]}, lambda o: lr_scheduler.MultiStepLR(o, [1, 3])),
    "exponential": ({"gamma": 0.9}, lambda o: lr_scheduler.ExponentialLR(o, 0.9)),
    "linear": ({}, lambda o: lr_scheduler.LinearLR(o, 1.0, 0.0, EPOCHS)),
    "polynomial": ({"power": 2.0}, lambda o: lr_scheduler.PolynomialLR(o, EPOCHS, 2.0)),
    "onecycle": ({}, lambda o: lr_scheduler.OneCycleLR(o, 0.1, EPOCHS)),
    "cyclic": (
        {"base_lr": 0.01, "max_lr": 0.1, "step_size_up": 2},
        lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    ),
    "cosine-restarts": ({"T_0": 2}, lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2)),
    "constant": ({}, lambda o: lr_scheduler.ConstantLR(o, 1.0, 0)),
}


OF_LENGTH = ("cosine", "linear", "polynomial", "onecycle")
"""Their length is that of training, in steps too: see the next test."""


@pytest.mark.parametrize(
    ("name", "per"),
    [*((name, "epoch") for name in SCHEDULES), *((name, "step") for name in SCHEDULES if name not in OF_LENGTH)],
)
def test_each_schedule_by_name(name: str, per: str) -> None:
    options, make = SCHEDULES[name]
    ours, theirs = plain_model(), plain_model()
    train(ours, of(ours, optimizer="sgd", momentum=0.9, lr=0.1, schedule=name, schedule_per=per, **options))
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1, momentum=0.9)
    plain_loop(theirs, optimizer, make(optimizer), per_step=per == "step")
    assert_equal(ours, theirs)


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_all_of_it_at_once(optimizer: str, accumulate: int) -> None:
    ours, theirs = plain_model(), plain_model()
    steps = EPOCHS * -(-len(SIZES) // accumulate)
    options = {"momentum": 0.9} if optimizer == "sgd" else FUSED["adam"]
    optimization = of(
        ours, optimizer=optimizer, lr=0.1, schedule="cosine", schedule_per="step", clip_grad_norm=0.1,
        accumulate=accumulate, ema=0.9, **options,
    )  # fmt: skip
    train(ours, optimization)
    made = OPTIMIZERS[optimizer](theirs.parameters(), lr=0.1, **options)  # type: ignore[call-arg]
    averaged = plain_loop(
        theirs,
        made,
        lr_scheduler.CosineAnnealingLR(made, steps),
        per_step=True,
        clip=0.1,
        accumulate=accumulate,
        ema=0.9,
    )
    assert_equal(ours, theirs, close=accumulate > 1)
    with optimization.averaged_weights():
        assert_equal(ours, averaged, close=accumulate > 1)
    assert_equal(ours, theirs, close=accumulate > 1)


@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=6), accumulate=st.integers(1, 6))
@settings(max_examples=25, deadline=None)
def test_any_batches_are_as_one(sizes: list[int], accumulate: int) -> None:
    accumulate = min(accumulate, len(sizes))
    rows = torch.randn(sum(sizes), 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    parts = torch.split(rows, sizes)
    ours, theirs = plain_model(), plain_model()
    config = TrainConfig().with_options(optimizer="sgd", lr=0.1, accumulate=accumulate, clip_grad_norm=0.3)
    optimization = Optimization.from_config(config, ours, len(sizes))
    stepped = []
    for part in parts:
        torch.autograd.backward(ours(part).square().mean())
        stepped.append(optimization.step_batch(len(part)))
    assert stepped == [(at + 1) % accumulate == 0 for at in range(len(sizes))]
    assert optimization.flush() is (len(sizes) % accumulate > 0)
    plain = of(theirs, optimizer="sgd", lr=0.1, clip_grad_norm=0.3)
    for at in range(0, len(sizes), accumulate):
        whole = torch.cat(parts[at : at + accumulate])
        torch.autograd.backward(theirs(whole).square().mean())
        plain.step_batch(len(whole))
    assert_equal(ours, theirs, close=True)


def test_a_warm_up() -> None:
    model = plain_model()
    rates = train(model, of(model, lr=0.3, schedule="constant", warmup=2))
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.3, 0.3])
    model = plain_model()
    rates = train(model, of(model, lr=0.3, schedule="cosine", warmup=2))
    assert rates == pytest.approx([0.1, 0.2, 0.3, 0.225, 0.075])


def test_plateau_reads_the_score() -> None:
    model = plain_model()
    options = {"factor": 0.5, "schedule_options": {"patience": 0}}
    # The scores fall from epoch to epoch.
    assert train(model, of(model, lr=0.4, schedule="plateau", **options)) == [0.4, 0.4, 0.2, 0.1, 0.05]
    rates = train(plain_model(), of(model, lr=0.4, schedule="plateau", warmup=1, **options))
    assert rates == [0.2, 0.4, 0.4, 0.2, 0.1]
    config = TrainConfig(epochs=EPOCHS).with_options(lr=0.4, schedule="plateau", **options)
    down = Optimization.from_config(config, model, 3, larger_is_better=False)
    assert train(model, down) == [0.4] * 5
    waits = of(model, lr=0.4, schedule="plateau", **options)
    for _ in range(4):
        waits.end_epoch(None)
    assert waits.lr == 0.4


FORMS: dict[str, Mapping[str, Any]] = {
    "a class": {"optimizer": torch.optim.SGD, "momentum": 0.9, "lr": 0.1},
    "a partial": {"optimizer": functools.partial(torch.optim.SGD, momentum=0.9), "lr": 0.1},
    "a partial with its rate": {"optimizer": functools.partial(torch.optim.SGD, momentum=0.9, lr=0.1)},
    "a function": {"optimizer": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9)},
    "letters": {"optimizer": "SGD", "momentum": 0.9, "lr": 0.1},
}


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_an_optimizer(form: str) -> None:
    ours, theirs = plain_model(), plain_model()
    schedule = functools.partial(lr_scheduler.StepLR, step_size=2)
    train(ours, of(ours, **FORMS[form], schedule=schedule))
    train(theirs, of(theirs, optimizer="sgd", momentum=0.9, lr=0.1, schedule="step", step_size=2))
    assert_equal(ours, theirs)


def test_forms_of_a_schedule() -> None:
    forms: list[Any] = [lambda o: lr_scheduler.LinearLR(o, 1 / 3), lr_scheduler.LinearLR]
    models = [plain_model() for _ in forms]
    for model, form in zip(models, forms, strict=True):
        train(model, of(model, optimizer="sgd", lr=0.1, schedule=form))
    assert_equal(*models)
    assert TrainConfig(schedule=lr_scheduler.CosineAnnealingLR) == TrainConfig(schedule="cosine")


def test_groups_of_parameters() -> None:
    model = plain_model()
    groups = {"0.*": {"lr": 0.2}, re.compile(r"2\.bi.s"): {"weight_decay": 0.5}}
    made = of(model, optimizer="sgd", lr=0.1, param_groups=groups).optimizer
    facts = [(group["lr"], group["weight_decay"], len(group["params"])) for group in made.param_groups]
    assert facts == [(0.1, 0.0, 1), (0.2, 0.0, 2), (0.1, 0.5, 1)]
    config = TrainConfig(param_groups=groups)
    assert list(config.param_groups) == ["0.*", r"regex:2\.bi.s"]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "an option that it lacks": ({"optimizer": "sgd", "momentom": 0.9}, "momentom"),
    "an option of another": ({"momentum": 0.9}, "momentum"),
    "no optimizer": ({"optimizer": 5}, "optimizer is not understood"),
    "another class": ({"optimizer": nn.Linear}, "optimizer is not understood"),
    "a made one": ({"optimizer": torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)}, "exists already"),
    "options beside a function": ({"optimizer": lambda params: None, "lr": 0.5}, "decides its options itself"),
    "a function of nothing": ({"optimizer": lambda params: None}, "makes no optimizer"),
    "of other parameters": ({"optimizer": lambda params: torch.optim.SGD(plain_model().parameters(), lr=1.0)}, "other"),
    "LBFGS": ({"optimizer": torch.optim.LBFGS}, "makes no optimizer"),
    "a bad value": ({"optimizer": "sgd", "momentum": -1.0}, "cannot be made"),
    "no weight decay": ({"optimizer": "rprop", "weight_decay": 0.1}, "no option weight_decay"),
    "twice": ({"optimizer": functools.partial(torch.optim.SGD, lr=0.1), "lr": 0.2}, "given twice"),
    "a pattern of nothing": ({"param_groups": {"layers.9.*": {"lr": 0.1}}}, "matches no parameter"),
    "two patterns": ({"param_groups": {"0.*": {}, "*.bias": {}}}, "two patterns"),
    "no expression": ({"param_groups": {"regex:(": {}}}, "no regular expression"),
    "an option of a group": ({"param_groups": {"0.*": {"momentum": 0.1}}}, "momentum"),
    "a rate of a group": ({"param_groups": {"0.*": {"lr": -1}}}, "lr of group"),
    "no schedule": ({"schedule": "cosin"}, "cosin"),
    "options without schedule": ({"warmup": 3}, "no schedule"),
    "steps without schedule": ({"schedule_per": "step"}, "no schedule"),
    "options of a schedule": ({"schedule": "step", "step_siz": 3}, "step_siz"),
    "a missing option": ({"schedule": "step"}, "cannot be made"),
    "plateau without a score": ({"schedule": "plateau", "eval": "none"}, "plateau reads"),
    "plateau by steps": ({"schedule": "plateau", "schedule_per": "step"}, "plateau reads"),
    "two warm-ups": ({"schedule": "onecycle", "warmup": 2}, "warm-up of its own"),
    "a long warm-up": ({"schedule": "cosine", "warmup": EPOCHS}, "longer than the training"),
    "another's schedule": (
        {"schedule": lambda o: lr_scheduler.StepLR(torch.optim.SGD(plain_model().parameters(), lr=1.0), 2)}, "other"),
    "clip": ({"clip_grad_norm": 0.0}, "clip_grad_norm"),
    "clip at no number": ({"clip_grad_norm": float("nan")}, "clip_grad_norm"),
    "accumulate": ({"accumulate": 0}, "accumulate"),
    "accumulate more than there is": ({"accumulate": 4}, "more batches"),
    "ema": ({"ema": 1.0}, "ema"),
    "no ema": ({"ema": 0.0}, "ema"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    options, message = REFUSED[name]
    with pytest.raises(InputError) as caught:
        of(plain_model(), **options)
    assert message in str(caught.value)


def test_a_state_goes_on() -> None:
    options: dict[str, Any] = {
        "optimizer": "sgd", "momentum": 0.9, "lr": 0.1, "schedule": "cosine", "schedule_per": "step", "warmup": 2,
        "clip_grad_norm": 0.2, "accumulate": 2, "ema": 0.8, "param_groups": {"0.*": {"lr": 0.2}},
    }  # fmt: skip
    straight = plain_model()
    whole = of(straight, **options)
    train(straight, whole)
    model = plain_model()
    first = of(model, **options)
    train(model, first, epochs=2)
    # In the middle of a step.
    torch.autograd.backward(model(batches()[0]).square().mean())
    first.step_batch(SIZES[0])
    state, other = first.state_dict(), plain_model()
    other.load_state_dict(model.state_dict())
    second = of(other, **options)
    with warnings.catch_warnings(action="error"):
        second.load_state_dict(state)
        for rows in batches()[1:]:
            torch.autograd.backward(other(rows).square().mean())
            second.step_batch(len(rows))
        second.flush()
        second.end_epoch(1.0)
        train(other, second, first=3)
    assert_equal(straight, other)
    assert all(torch.equal(whole.averages[name], value) for name, value in second.averages.items())


def test_batches_of_an_epoch_that_begins_again_are_forgotten() -> None:
    ours, theirs = plain_model(), plain_model()
    begun = of(ours, optimizer="sgd", lr=0.1, accumulate=2)
    torch.autograd.backward(ours(batches()[0]).square().mean())
    begun.step_batch(SIZES[0])
    begun.discard_batches()
    train(ours, begun)
    train(theirs, of(theirs, optimizer="sgd", lr=0.1, accumulate=2))
    assert_equal(ours, theirs)


def test_a_lower_rate_changes_a_schedule_in_proportion() -> None:
    model = plain_model()
    first = of(model, optimizer="sgd", lr=0.4, schedule="cosine", warmup=1)
    train(model, first, epochs=2)
    second = of(model, optimizer="sgd", lr=0.2, schedule="cosine", warmup=1)
    second.load_state_dict(first.state_dict())
    assert second.lr == pytest.approx(first.lr / 2)
    rates = [train(model, each, first=2) for each in (first, second)]
    assert rates[1] == pytest.approx([rate / 2 for rate in rates[0]])
