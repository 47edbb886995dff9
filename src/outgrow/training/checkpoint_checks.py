"""What a checkpoint may hold. A checksum tells what is torn, not who wrote it, so nothing that is read is trusted."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

_DEEPEST, _LONGEST, _BEYOND = 100, 200, 1 << 63
_LARGEST = 1e12
"""Options of an optimizer are smaller: one over the smallest part of a beta that is left is 1e16."""
_PUTS, _GETS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
_OF_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
_NUMBERS = ("best_epoch", "step", "seeds_so_far")
_REALS = ("best_score", "best_loss", "loss_so_far", "seconds_so_far")
_LISTS = ("loss", "val_score", "epoch_seconds")


def load_untrusted(content: bytes) -> dict[str, Any]:
    """What a file of `torch.save_checkpoint` holds, without running any code in it.

    Raises:
        Exception: It is broken, or no checkpoint; nearly any exception can come of that.
    """
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    _check_pickle(reader.get_record("data.pkl"))
    saved: Any = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    if not isinstance(saved, dict):
        raise TypeError("no dictionary")
    _check_tensors(saved["model"])
    _check_progress(saved["progress"])
    return saved


def check_optimizer_state(saved: object, optimizer: torch.optim.Optimizer) -> None:
    """Refuse the state of an optimizer whose tensors do not fit the parameters; torch does not look at them.

    Raises:
        TypeError: It is something else.
    """
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        raise TypeError("no state of an optimizer")
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    for at, state in saved["state"].items():
        if type(at) is not int or not 0 <= at < len(shapes) or not isinstance(state, dict):
            raise TypeError("a state of no parameter")
        if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and not state.keys() >= _OF_ADAM:
            raise TypeError(f"no {' and '.join(sorted(_OF_ADAM - state.keys()))} of parameter {at}")
        for name, value in state.items():
            if not _is_count(value) if name == "step" else not _is_state(value, shapes[at]):
                raise TypeError(f"{str(name)[:40]} of parameter {at} does not fit it")
    fresh = optimizer.state_dict()["param_groups"]
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or len(groups) != len(fresh):
        raise TypeError("other groups of parameters")
    for group, own in zip(groups, fresh, strict=True):
        alike = isinstance(group, dict) and all(_is_same_kind(group[name], value) for name, value in own.items())
        if not alike or group["params"] != own["params"]:
            raise TypeError("another group of parameters")


def _is_count(value: object) -> bool:
    """Whether it is a number of steps; bias is corrected by a power of it."""
    if isinstance(value, Tensor):
        return _is_plain(value) and value.is_floating_point() and value.shape == () and 0 <= float(value) < 2**53
    return isinstance(value, (int, float)) and 0 <= value < 2**53


def _is_state(value: object, shape: torch.Size) -> bool:
    return value is None or (
        isinstance(value, Tensor) and _is_plain(value) and value.is_floating_point() and value.shape == shape
    )


def _is_same_kind(value: object, own: object) -> bool:
    """Whether an option is of the kind of that of a new optimizer, and a number that single precision can hold."""
    if isinstance(own, tuple):  # the betas: what is left of them is divided by
        return isinstance(value, tuple) and len(value) == len(own) and all(_is_within(each, 0, 1) for each in value)
    return _is_within(value, -_LARGEST, _LARGEST) if type(own) in (int, float) else type(value) is type(own)


def _is_within(value: object, least: float, most: float) -> bool:
    """Whether it is a number, ``most`` not included."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < most


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor holds as many numbers as its shape says, in whatever order, each in a place of its own."""
    if value.layout != torch.strided or value.device.type != "cpu":
        return False
    taken = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and stride < taken:
            return False
        taken = max(taken, stride * size)
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _check_tensors(given: object) -> None:
    known = isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) and _is_plain(value) for name, value in given.items()
    )
    if not known:
        raise TypeError("parameters that are no tensors by name")


def _check_progress(given: object) -> None:
    """Refuse lists of other lengths than one another, and what is of another type than a checkpoint's."""
    if not isinstance(given, dict):
        raise TypeError("no progress")
    if given["best_model"] is not None:
        _check_tensors(given["best_model"])
    if not all(isinstance(given[name], list) for name in _LISTS) or len({len(given[name]) for name in _LISTS}) > 1:
        raise TypeError("no entry for each epoch")
    if not all(_is_real(value) or (value is None and name == "val_score") for name in _LISTS for value in given[name]):
        raise TypeError("an entry that is no number")
    if not all(type(given[name]) is int and 0 <= given[name] < 2**63 for name in _NUMBERS):
        raise TypeError("a count that is none")
    if not all(_is_real(given[name]) for name in _REALS) or not isinstance(given["course"], str):
        raise TypeError("a number that is none")
    if type(given.get("exact", True)) is not bool:
        raise TypeError("neither true nor false")


def _is_real(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _check_pickle(code: bytes) -> None:
    """Refuse deeply nested tuples: Python's own hash of one goes down to the innermost, and ends the process.

    And long names of classes: torch looks for words in its own message of one in a time that grows with its square.
    A pickle is a program for a stack; it is run here on the depths of tuples alone.
    """
    stack: list[int | None] = []  # None is a mark
    memory: dict[int, int] = {}
    for instruction, given, _ in pickletools.genops(code):
        name, before = instruction.name, instruction.stack_before
        if isinstance(given, int) and not -_BEYOND <= given < _BEYOND:
            raise ValueError("a number of more than 64 bits")  # many could have one hash
        if name == "GLOBAL" and len(str(given)) > _LONGEST:
            raise ValueError(f"a name of {len(str(given))} letters")
        if name in _PUTS:
            memory[len(memory) if given is None else int(given)] = stack[-1] or 0
            continue
        if pickletools.markobject in before or (name == "POP" and stack[-1:] == [None]):
            first = max(at for at, depth in enumerate(stack) if depth is None)
            first -= before.index(pickletools.markobject) if pickletools.markobject in before else 0
        else:
            first = len(stack) - len(before)
        taken = [depth or 0 for depth in stack[max(0, first) :]]
        del stack[max(0, first) :]
        depth = memory[int(given or 0)] if name in _GETS else 1 + max(taken, default=0) if "TUPLE" in name else 0
        if depth > _DEEPEST:
            raise ValueError(f"tuples within tuples, {_DEEPEST} deep")
        stack += [None] if name == "MARK" else [depth] * len(instruction.stack_after)
