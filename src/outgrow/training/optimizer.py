"""Torch's optimizers, without the compiler that their methods load.

Torch keeps its compiler away from the methods of optimizers, and loads it to do so: `torch._dynamo` is imported when
the first of them is called. That is a second or more at the start of every run, and nothing here is ever compiled. The
classes below are torch's, with the methods themselves in place of their wrappers. Were torch to wrap them in another
way, the wrappers would stay: the numbers are the same, and only the second is lost.
"""

from __future__ import annotations

import inspect
from typing import TypeVar

import torch

Kind = TypeVar("Kind", bound=torch.optim.Optimizer)

_WRAPPED = ("add_param_group", "load_state_dict", "state_dict", "step", "zero_grad")


def _unwrapped(kind: type[Kind]) -> type[Kind]:
    """Call the methods of an optimizer directly. Of what their wrappers do, `torch.no_grad` is all that is needed."""
    for name in _WRAPPED:
        setattr(kind, name, inspect.unwrap(getattr(kind, name)))
    setattr(kind, "step", torch.no_grad()(kind.step))  # noqa: B010 - mypy refuses the assignment to a method
    return kind


@_unwrapped
class Adam(torch.optim.Adam):
    """`torch.optim.Adam`: the same numbers to the last bit, and the same state. Steps cannot be differentiated."""


@_unwrapped
class AdamW(torch.optim.AdamW):
    """`torch.optim.AdamW`: the same numbers to the last bit, and the same state. Steps cannot be differentiated."""
