"""Checkpoints, valid and not."""

from __future__ import annotations

import io
import struct
import tempfile
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

import torch
from archives import PACKING, changed_zip, members, zipped
from cases import ACCEPTED, REFUSED, Case, Kind
from mutations import changed
from pickles import changed_pickle
from pickles import hostile as hostile_pickles

from outgrow.nn import GCN
from outgrow.training.checkpoint import TrainingProgress, save_checkpoint, with_checksum

NAME = "epoch-00000002.pt"
SUM_BYTES = 64
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "adam": lambda parameters: torch.optim.Adam(parameters, lr=0.01),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.01, momentum=0.9),
}


def seal(data: bytes) -> bytes:
    """A changed checkpoint with a checksum that is right, so that what lies behind is reached."""
    return bytes(with_checksum(data))


def unseal(data: bytes) -> bytes:
    """The archive alone."""
    return data[: -SUM_BYTES - 2] + b"\0\0"


def fresh(optimizer: str) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer that all checkpoints here are of."""
    torch.manual_seed(0)
    model = GCN(3, 4, 2)
    return model, OPTIMIZERS[optimizer](model.parameters())


def stepped(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """One step along a gradient of ones."""
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def seeds() -> list[Case]:
    """Checkpoints of both optimizers, between epochs and within one, with and without a best model."""
    return list(_seeds())


@cache
def _seeds() -> tuple[Case, ...]:
    made = []
    for optimizer in OPTIMIZERS:
        model, steps = fresh(optimizer)
        done = TrainingProgress(loss=[2.0, 1.0], val_score=[0.5, None], epoch_seconds=[0.1, 0.2])
        made.append(_case(f"{optimizer}, not begun", optimizer, model, steps, TrainingProgress.at_start()))
        stepped(model, steps)
        made.append(_case(f"{optimizer}, between epochs", optimizer, model, steps, done))
        best = replace(done, best_epoch=1, best_score=0.5, best_loss=2.0, best_model=model.state_dict())
        within = replace(best, step=3, loss_so_far=4.5, seeds_so_far=3, seconds_so_far=0.1, course="abc")
        made.append(_case(f"{optimizer}, within an epoch", optimizer, model, steps, within))
    return tuple(made)


def _case(note: str, optimizer: str, model: Any, steps: Any, progress: TrainingProgress) -> Case:
    with tempfile.TemporaryDirectory() as folder:
        data = save_checkpoint(Path(folder), model, steps, progress).read_bytes()
    return _of(data, note, optimizer, ACCEPTED)


def _of(data: bytes, note: str, optimizer: str = "adam", expected: str | None = None) -> Case:
    return Case(main=NAME, files={NAME: data}, options={"optimizer": optimizer}, expected=expected, note=note)


def _saved(value: Any, **how: Any) -> bytes:
    whole = io.BytesIO()
    torch.save(value, whole, **how)
    return whole.getvalue()


def hostile() -> list[Case]:
    """Checkpoints that somebody has thought of."""
    valid = seeds()[1]
    parts = members(unseal(valid.files[NAME]))
    (code,) = (name for name in parts if name.endswith("data.pkl"))
    pickles = {f"pickle: {note}": zipped({**parts, code: data}) for note, data in hostile_pickles().items()}
    pickles |= {f"bare pickle: {note}": data for note, data in hostile_pickles().items()}
    made = [_of(seal(data), note, expected=REFUSED) for note, data in pickles.items()]
    storage = next(name for name in parts if "/data/" in name)
    zips = {
        "no pickle": {name: data for name, data in parts.items() if name != code},
        "no storage": {name: data for name, data in parts.items() if name != storage},
        "a storage of nothing": {**parts, storage: b""},
        "a storage of 64 MB": {**parts, storage: b"\0" * 64_000_000},
        "TorchScript": {**parts, "archive/constants.pkl": b"\x80\x02)."},
        "other bytes first": {**parts, code.replace("data.pkl", "byteorder"): b"big"},
        "names with dots": {f"../{name}": data for name, data in parts.items()},
    }
    made += [_of(seal(zipped(files)), note) for note, files in zips.items()]
    packed = seal(zipped({**parts, storage: b"\0" * 100_000_000}, PACKING[1]))
    made.append(replace(_of(packed, "100 MB of zeros"), unpacked=200_000_000))
    made += [_of(seal(zipped(parts, packing)), "packed otherwise") for packing in PACKING[1:]]
    made += [_of(seal(_saved(value)), note) for note, value in _values().items()]
    made.append(_of(seal(_saved(_state(), _use_new_zipfile_serialization=False)), "the old form"))
    old = b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03."
    made.append(_of(seal(old + b"\x80\x02}." + hostile_pickles()["eval"]), "the old form, eval"))
    made.append(
        _of(seal(old + b"\x80\x02}.\x80\x02}.\x80\x02](X\x01\0\0\0ae." + struct.pack("<q", 2**60)), "2^60 numbers")
    )
    return [*made, replace(made[0], files={}, pipes=(NAME,), note="a named pipe")]


def _state() -> dict[str, Any]:
    model, steps = fresh("adam")
    stepped(model, steps)
    return {"model": model.state_dict(), "optimizer": steps.state_dict(), "progress": vars(TrainingProgress.at_start())}


_ODD: tuple[Any, ...] = (None, 5, [], "abc", {}, {1: 2}, {"a": None})


def _values() -> dict[str, Any]:
    """Values that torch reads, and that are no checkpoint."""
    good = _state()
    name, first = next(iter(good["model"].items()))
    odd: dict[str, Any] = {"a list": [], "a tensor": first, "nothing": {}, "other keys": dict.fromkeys("abc", 1)}
    for part in good:
        odd |= {
            f"{part} is {value!r}": {**good, part: value} for value in (None, 5, [], "abc", {}, {1: 2}, {"a": None})
        }
    tensors = {
        "sparse": torch.eye(4).to_sparse(),
        "meta": torch.empty(first.shape, device="meta"),
        "of another type": first.to(torch.complex64),
        "10^12 numbers of one": torch.zeros(1).expand(10**6, 10**6),
        "no numbers": torch.empty(0),
        "integers": torch.zeros(first.shape, dtype=torch.int8),
    }
    odd |= {f"a parameter: {note}": {**good, "model": {**good["model"], name: t}} for note, t in tensors.items()}
    odd |= {f"a state: {note}": _with_state(good, t) for note, t in tensors.items()}
    for key in good["progress"]:
        for value in ("abc", None, [None], -5, 10**30, {"a": 1}, float("nan")):
            odd[f"progress: {key} is {value!r}"] = {**good, "progress": {**good["progress"], key: value}}
    return odd


def _with_state(good: dict[str, Any], value: Any) -> dict[str, Any]:
    steps = good["optimizer"]
    return {**good, "optimizer": {**steps, "state": {**steps["state"], 0: {**steps["state"][0], "exp_avg": value}}}}


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Opcodes of the pickle, members of the archive, bytes of the whole."""
    data = case.files.get(NAME, b"")
    if not 0 < len(data) < 1 << 16 or not data.startswith(b"PK"):
        case = draw.choice(others)
        data = case.files[NAME]
    way = draw.random()
    if way < 0.05:
        return case.with_file(NAME, changed(draw, data, [data]), "bytes, not sealed")
    data = unseal(data)
    if way < 0.25:
        return case.with_file(NAME, seal(changed_zip(draw, data, [data])), "bytes")
    parts = members(data)
    code = next((name for name in parts if name.endswith("data.pkl")), None)
    if way < 0.75 and code is not None:
        parts[code] = changed_pickle(draw, parts[code], [parts[code], *hostile_pickles().values()])
    else:
        name = draw.choice(list(parts))
        parts[name] = changed(draw, parts[name], [*parts.values()])
    return case.with_file(NAME, seal(zipped(parts, draw.choice(PACKING[:1] * 5 + PACKING[1:2]))), "members")


KIND = Kind(seeds, hostile, mutated)
