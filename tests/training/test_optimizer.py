"""The optimizers are torch's: the same numbers, fused or not, the same state, in either direction."""

from __future__ import annotations

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from outgrow.training import config

KINDS = {"adam": (config.Adam, torch.optim.Adam), "adamw": (config.AdamW, torch.optim.AdamW)}
SHAPES = ((3, 4), (5,), (), (2, 0))


def parameters(dtype: torch.dtype) -> list[Tensor]:
    """Parameters of several shapes, the same ones each time."""
    draw = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=draw, dtype=dtype).requires_grad_() for shape in SHAPES]


def advance(kind: torch.optim.Optimizer, seed: int, steps: int) -> None:
    """Take steps along random gradients; in each, some parameters have none."""
    draw = torch.Generator().manual_seed(seed)
    for _ in range(steps):
        for parameter in kind.param_groups[0]["params"]:
            if torch.rand((), generator=draw) < 0.8:
                parameter.grad = torch.randn(parameter.shape, generator=draw, dtype=parameter.dtype)
        kind.step()
        kind.zero_grad(set_to_none=True)
        assert all(parameter.grad is None for parameter in kind.param_groups[0]["params"])


def assert_same(ours: torch.optim.Optimizer, theirs: torch.optim.Optimizer) -> None:
    """The same parameters and the same state, to the last bit."""
    assert ours.param_groups[0]["fused"] is theirs.param_groups[0]["fused"]
    for mine, other in zip(ours.param_groups[0]["params"], theirs.param_groups[0]["params"], strict=True):
        assert torch.equal(mine, other)
    mine, other = ours.state_dict(), theirs.state_dict()
    assert mine["param_groups"] == other["param_groups"]
    assert mine["state"].keys() == other["state"].keys()
    for i, state in other["state"].items():
        assert mine["state"][i].keys() == state.keys()
        assert all(torch.equal(mine["state"][i][name], value) for name, value in state.items())


@pytest.mark.parametrize("name", KINDS)
@given(
    seed=st.integers(0, 1000),
    steps=st.integers(0, 5),
    weight_decay=st.sampled_from([0.0, 0.1]),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    how=st.sampled_from([{}, {"fused": False}, {"foreach": True}]),
)
@settings(max_examples=20, deadline=None)
def test_numbers_and_state_are_those_of_torch(
    name: str, seed: int, steps: int, weight_decay: float, dtype: torch.dtype, how: dict[str, bool]
) -> None:
    own, torchs = KINDS[name]
    ours = own(parameters(dtype), lr=0.1, weight_decay=weight_decay, **how)
    theirs = torchs(parameters(dtype), lr=0.1, weight_decay=weight_decay, **(how or {"fused": True}))
    for kind in (ours, theirs):
        advance(kind, seed, steps)
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("forwards", [True, False])
def test_a_state_goes_on_in_the_other(name: str, forwards: bool) -> None:
    kinds = KINDS[name] if forwards else KINDS[name][::-1]
    first = kinds[0](parameters(torch.float32), lr=0.1)
    advance(first, 1, 3)
    second = kinds[1]([p.detach().clone().requires_grad_() for p in first.param_groups[0]["params"]], lr=0.3)
    second.load_state_dict(copy.deepcopy(first.state_dict()))
    for kind in (first, second):
        advance(kind, 2, 3)
    assert_same(first, second)


@pytest.mark.parametrize("name", KINDS)
def test_a_fused_step_is_one_of_the_loop_whatever_the_order_of_the_gradient(name: str) -> None:
    own, torchs = KINDS[name]
    grad = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64).t()
    found = []
    for kind in (own, torchs):
        parameter = torch.arange(12.0, dtype=torch.float64).reshape(3, 4).requires_grad_()
        optimizer = kind([parameter], lr=0.1)
        for _ in range(3):
            parameter.grad = grad
            optimizer.step()
        found.append(parameter.detach())
    torch.testing.assert_close(found[0], found[1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", KINDS)
def test_what_torch_offers_around_a_step_works(name: str) -> None:
    KINDS[name][1](parameters(torch.float32))  # torch adds its hooks to a class when the first is made
    ours = KINDS[name][0](parameters(torch.float32), lr=1.0)
    calls: list[str] = []
    ours.register_step_pre_hook(lambda *_: calls.append("before"))
    ours.register_step_post_hook(lambda *_: calls.append("after"))
    schedule = torch.optim.lr_scheduler.StepLR(ours, step_size=1, gamma=0.5)
    advance(ours, 0, 2)
    schedule.step()
    assert calls == ["before", "after"] * 2
    assert ours.param_groups[0]["lr"] == 0.5


def test_a_step_leaves_the_recording_of_gradients_on() -> None:
    advance(config.Adam(parameters(torch.float32)), 0, 1)
    assert torch.is_grad_enabled()
