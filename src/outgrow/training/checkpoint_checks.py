"""Checks of untrusted checkpoints: a checksum detects corruption, but does not say who wrote the file."""

from __future__ import annotations

import io
import pickletools
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.core.errors import InputError
from outgrow.training.monitor import MAX, MODES

_DEEPEST, _LONGEST, _BEYOND = 100, 200, 1 << 63
# Options of an optimizer are smaller. Times 1e16, the largest 1 / (1 - beta), this is still finite in
# float32.
_LARGEST = 1e12
# Those that torch does not know yet too, so that nothing gets past this check once it does.
_PUTS, _GETS = ("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE"), ("GET", "BINGET", "LONG_BINGET")
_OF_TORCH = frozenset(kind for kind in torch.optim.Optimizer.__subclasses__() if kind.__module__.startswith("torch."))
_OF_ADAM = frozenset({"step", "exp_avg", "exp_avg_sq"})
_NUMBERS_OF_STATES = frozenset({"eta", "mu", "mu_product"})
_FACTORS = frozenset({"row_var", "col_var"})
_NUMBERS = ("best_epoch", "step", "seeds_so_far")
_REALS = ("best_score", "best_loss", "loss_so_far", "seconds_so_far")
_LISTS = ("loss", "val_score", "epoch_seconds")


def load_untrusted(content: bytes) -> dict[str, Any]:
    """Read the content of a checkpoint without running any code in it.

    Raises:
        Exception: Of nearly any type: the file is corrupt or not a checkpoint.
    """
    reader = torch._C.PyTorchFileReader(io.BytesIO(content))
    # Before `torch.load`: a hostile pickle could already crash the interpreter there.
    _check_pickle(reader.get_record("data.pkl"))
    saved: Any = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
    if not isinstance(saved, dict):
        raise TypeError("no dictionary")
    _check_tensors(saved["model"])
    _check_progress(saved["progress"])
    return saved


def check_optimizer_state(saved: object, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimizer state that does not match the parameters; torch does not check shapes.

    Raises:
        TypeError: The state does not match the optimizer.
    """
    if not isinstance(saved, dict) or not isinstance(saved.get("state"), dict):
        raise TypeError("no state of an optimizer")
    shapes = [parameter.shape for group in optimizer.param_groups for parameter in group["params"]]
    # What an optimizer of the user keeps is not known here.
    of_torch = type(optimizer) in _OF_TORCH or type(optimizer).__base__ in _OF_TORCH
    for index, state in saved["state"].items():
        if type(index) is not int or not 0 <= index < len(shapes) or not isinstance(state, dict):
            raise TypeError("a state of no parameter")
        if isinstance(optimizer, (torch.optim.Adam, torch.optim.AdamW)) and not state.keys() >= _OF_ADAM:
            raise TypeError(f"no {' and '.join(sorted(_OF_ADAM - state.keys()))} of parameter {index}")
        if not of_torch:
            check_plain(state)
            continue
        for name, value in state.items():
            if not _is_count(value) if name == "step" else not _is_state_by_name(name, value, shapes[index]):
                raise TypeError(f"{str(name)[:40]} of parameter {index} does not fit it")
    fresh = optimizer.state_dict()["param_groups"]
    groups = saved.get("param_groups")
    if not isinstance(groups, list) or len(groups) != len(fresh):
        raise TypeError("other groups of parameters")
    for group, own in zip(groups, fresh, strict=True):
        alike = isinstance(group, dict) and all(_is_same_kind(name, group[name], value) for name, value in own.items())
        if not alike or group["params"] != own["params"]:
            raise TypeError("another group of parameters")


def _is_count(value: object) -> bool:
    """Whether a value is a valid step count; bias correction raises the betas to its power."""
    # Beyond 2**53 a float cannot count in steps of 1.
    if isinstance(value, Tensor):
        return _is_plain(value) and value.is_floating_point() and value.shape == () and 0 <= float(value) < 2**53
    return isinstance(value, (int, float)) and 0 <= value < 2**53


def _is_state(value: object, shape: torch.Size) -> bool:
    return value is None or (
        isinstance(value, Tensor) and _is_plain(value) and value.is_floating_point() and value.shape == shape
    )


def _is_state_by_name(name: str, value: object, shape: torch.Size) -> bool:
    """Whether a value is a state of any optimizer of torch: as large as its parameter, a number, or a factor of it."""
    if isinstance(value, Tensor) and name in _NUMBERS_OF_STATES:
        return _is_plain(value) and value.is_floating_point() and value.dim() == 0
    if isinstance(value, Tensor) and name in _FACTORS:
        alike = value.dim() == len(shape) and all(map(_is_factor, value.shape, shape))
        return _is_plain(value) and value.is_floating_point() and alike
    return _is_state(value, shape)


def _is_factor(size: int, full: int) -> bool:
    return size in (1, full)


def check_loop_state(given: object, schedule: Mapping[str, Any] | None) -> None:
    """Refuse a state of the loop of other parts, or of another schedule than the one with this state.

    Raises:
        TypeError: It is another one.
    """
    if not isinstance(given, Mapping) or not isinstance(given["signature"], str):
        raise TypeError("no state of the loop")
    if not all(type(given[name]) is int and 0 <= given[name] < 2**63 for name in ("num_batches", "num_seeds")):
        raise TypeError("a count of batches that is none")
    asked = given["asked"]
    if not isinstance(asked, list) or not all(
        isinstance(pair, list) and len(pair) == 2 and _is_within(pair[0], 0, _LARGEST) for pair in asked
    ):
        raise TypeError("no learning rates")
    if not _is_alike(given["schedule"], None if schedule is None else dict(schedule)):
        raise TypeError("the state of another schedule")


def check_tensors_fit(given: object, parameters: Mapping[str, Tensor]) -> None:
    """Refuse what are no tensors by the names of parameters, or of other shapes.

    Raises:
        TypeError: They are not.
    """
    _check_tensors(given)
    assert isinstance(given, Mapping)
    if not all(name in parameters and value.shape == parameters[name].shape for name, value in given.items()):
        raise TypeError("tensors of other parameters")


def check_plain(given: object) -> None:
    """Refuse a state that holds more than numbers, strings, tensors, and lists and dictionaries of these.

    Raises:
        TypeError: It does.
    """
    if isinstance(given, Mapping):
        for key, value in given.items():
            if not isinstance(key, str | int | float):
                raise TypeError(f"a key of class {type(key).__name__}")
            check_plain(value)
    elif isinstance(given, Sequence) and not isinstance(given, str | bytes):
        for each in given:
            check_plain(each)
    elif not isinstance(given, str | int | float | Tensor | type(None)):
        raise TypeError(f"an object of class {type(given).__name__}")


def _is_alike(value: object, own: object) -> bool:
    """Whether a state has the structure of another one; numbers may differ, and be None before they are known."""
    if isinstance(own, Mapping):
        if not isinstance(value, Mapping):
            return False
        # The milestones of a schedule are keys that count.
        if not all(isinstance(key, str) for key in own):
            return value == own
        return value.keys() == own.keys() and all(_is_alike(value[key], own[key]) for key in own)
    if isinstance(own, list | tuple):
        return isinstance(value, list | tuple) and len(value) == len(own) and all(map(_is_alike, value, own))
    if own is None or (isinstance(own, int | float) and not isinstance(own, bool)):
        return value is None or (isinstance(value, int | float) and not isinstance(value, bool))
    return type(value) is type(own)


def _is_same_kind(name: str, value: object, own: object) -> bool:
    """Whether an option has the type of a fresh optimizer's, and a value that float32 can hold."""
    if isinstance(own, tuple) and name != "betas":
        return isinstance(value, tuple) and _is_alike(value, own)
    # The betas: Adam divides by 1 - beta, so they must be below 1.
    if isinstance(own, tuple):
        return isinstance(value, tuple) and len(value) == len(own) and all(_is_within(each, 0, 1) for each in value)
    # A number of NumPy, as a schedule of the user may give, is saved as one of Python.
    is_number = isinstance(own, int | float) and not isinstance(own, bool)
    return _is_within(value, -_LARGEST, _LARGEST) if is_number else type(value) is type(own)


def _is_within(value: object, least: float, most: float) -> bool:
    """Whether a value is a number from ``least`` to below ``most``."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and least <= value < most


def _is_plain(value: Tensor) -> bool:
    """Whether a tensor is dense, in any order of its dimensions, without overlaps and within its storage."""
    if value.layout != torch.strided or value.device.type != "cpu":
        return False
    # By ascending stride, each dimension must step over all that the former ones span: else elements overlap,
    # and a tiny file could claim a huge tensor (stride 0).
    span = 1
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True)):
        if size > 1 and stride < span:
            return False
        span = max(span, stride * size)
    return value.numel() * value.element_size() <= value.untyped_storage().nbytes()


def _check_tensors(given: object) -> None:
    known = isinstance(given, Mapping) and all(
        isinstance(name, str) and isinstance(value, Tensor) and _is_plain(value) for name, value in given.items()
    )
    if not known:
        raise TypeError("parameters that are no tensors by name")


def _check_progress(given: object) -> None:
    """Refuse progress with fields of a wrong type, or lists of different lengths."""
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
    # Absent in older checkpoints.
    if type(given.get("exact", True)) is not bool:
        raise TypeError("neither true nor false")
    if not isinstance(given.get("monitor", ""), str) or given.get("monitor_mode", MAX) not in MODES:
        raise TypeError("a metric that is none")
    data = given.get("data", {})
    if not isinstance(data, dict) or not all(isinstance(text, str) for pair in data.items() for text in pair):
        raise TypeError("a fingerprint that is none")


def _is_real(value: object) -> bool:
    return type(value) is float or (type(value) is int and abs(value) < 2**63)


def _check_pickle(code: bytes) -> None:
    """Refuse pickles that would crash or stall the reader of torch, without building any object.

    Deeply nested tuples overflow the C stack when Python hashes them. Long class names make torch search its
    own error message in quadratic time. A pickle is a program for a stack machine: it is run here on tuple
    depths alone, in linear time. A limit on the number of tuples would refuse large models.
    """
    # Depth of the tuple at each stack position above the last mark; below each mark, as torch keeps it.
    stack: list[int] = []
    below: list[list[int]] = []
    memory: dict[int, int] = {}
    for instruction, given, _ in pickletools.genops(code):
        name, needs = instruction.name, instruction.stack_before
        if isinstance(given, int) and not -_BEYOND <= given < _BEYOND:
            # Large integers can be chosen to have one hash, which makes a dictionary of them quadratic.
            raise ValueError("a number of more than 64 bits")
        if name == "GLOBAL" and len(str(given)) > _LONGEST:
            raise ValueError(f"a name of {len(str(given))} letters")
        if name == "MARK":
            below.append(stack)
            stack = []
        elif name in _PUTS:
            memory[len(memory) if given is None else int(given)] = stack[-1]
        else:
            consumed: list[int] = []
            # An opcode consumes a fixed number of entries; before them, some take all down to the last mark.
            if pickletools.markobject in needs:
                consumed, stack = stack, below.pop()
                needs = needs[: needs.index(pickletools.markobject)]
            consumed += [stack.pop() for _ in needs]
            depth = memory[int(given or 0)] if name in _GETS else 1 + max(consumed, default=0) if "TUPLE" in name else 0
            if depth > _DEEPEST:
                raise ValueError(f"tuples within tuples, {_DEEPEST} deep")
            stack += [depth] * len(instruction.stack_after)


def require_plain(what: str, state: Mapping[str, Any]) -> None:
    """Check that checkpoints can hold a state, which is read without running any code in it.

    Raises:
        InputError: They cannot.
    """
    try:
        check_plain(state)
    except TypeError as error:
        raise InputError(
            f"the {what} has a state that checkpoints cannot hold",
            needed="numbers, strings, tensors, and lists and dictionaries of these in its state_dict()",
            got=str(error),
            repair=f"use a {what} of torch, or one with a plain state",
        ) from error
