"""Checkpoints with a right checksum that hold what no run has written; what fuzzing (tests/fuzz) has found."""

import io
import os
import zipfile

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.training import checkpoint
from outgrow.training.checkpoint import (
    TrainingProgress,
    load_checkpoint,
    restore_checkpoint,
    save_checkpoint,
    with_checksum,
)


def fresh():
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    return model, torch.optim.Adam(model.parameters())


@pytest.fixture
def path(tmp_path):
    model, optimizer = fresh()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    return save_checkpoint(
        tmp_path, model, optimizer, TrainingProgress(loss=[1.0], val_score=[None], epoch_seconds=[0.1])
    )


def rewrite(path, edit):
    saved = load_checkpoint(path)
    edit(saved)
    whole = io.BytesIO()
    torch.save(saved, whole)
    path.write_bytes(with_checksum(whole.getvalue()))


def refused(path):
    with pytest.raises(InputError, match="checkpoint"):
        restore_checkpoint(load_checkpoint(path), path, *fresh())


def test_a_checkpoint_comes_back(path):
    rewrite(path, lambda saved: None)
    assert restore_checkpoint(load_checkpoint(path), path, *fresh()).loss == [1.0]


def test_parameters_in_another_order_in_memory_come_back(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Linear(3, 2)
    model.weight = torch.nn.Parameter(torch.randn(3, 2).T)
    assert not model.weight.is_contiguous()
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    path = save_checkpoint(
        tmp_path, model, optimizer, TrainingProgress(loss=[1.0], val_score=[None], epoch_seconds=[0.1])
    )
    other, its_optimizer = fresh()
    restore_checkpoint(load_checkpoint(path), path, other, its_optimizer)
    assert torch.equal(other.weight, model.weight)


@pytest.mark.parametrize("value", [None, 5, [], "abc", {1: 2}, {"weight": None}])
@pytest.mark.parametrize("part", ["model", "optimizer", "progress"])
def test_parts_of_another_kind(path, part, value):
    rewrite(path, lambda saved: saved.update({part: value}))
    refused(path)


@pytest.mark.parametrize("value", ["abc", None, [None], {"a": 1}, 10**30, -5])
@pytest.mark.parametrize(
    "name",
    [
        "loss",
        "val_score",
        "epoch_seconds",
        "step",
        "loss_so_far",
        "best_epoch",
        "course",
        "exact",
        "monitor",
        "monitor_mode",
    ],
)
def test_progress_of_another_kind(path, name, value):
    if value == (
        [None] if name == "val_score" else {"course": "abc", "monitor": "abc", "loss_so_far": -5}.get(name, ...)
    ):
        pytest.skip("that is of the right kind")
    rewrite(path, lambda saved: saved["progress"].update({name: value}))
    refused(path)


@pytest.mark.parametrize(
    "value",
    [
        torch.eye(2, 3).to_sparse(),
        torch.empty(2, 3, device="meta"),
        torch.zeros(1).expand(2, 3),
        torch.zeros(9).as_strided((2, 3), (1, 1)),
        torch.zeros(9).as_strided((2, 3), (0, 1)),
        torch.empty(0),
        torch.zeros(2, 3, dtype=torch.int64),
        "abc",
    ],
)
def test_states_that_do_not_fit_their_parameter(path, value):
    rewrite(path, lambda saved: saved["optimizer"]["state"][0].update(exp_avg=value))
    refused(path)


@pytest.mark.parametrize("value", [-7.0, float("nan"), float("inf"), [1.0]])
def test_steps_that_are_no_number(path, value):
    rewrite(path, lambda saved: saved["optimizer"]["state"][1].update(step=torch.tensor(value)))
    refused(path)


def test_a_state_of_other_names(path):
    rewrite(path, lambda saved: saved["optimizer"]["state"][1].pop("exp_avg_sq"))
    refused(path)


@pytest.mark.parametrize(
    "options",
    [{"lr": 1e300}, {"eps": float("nan")}, {"betas": (0.9, 1.0)}, {"betas": (1e200, 0.9)}, {"weight_decay": True}],
)
def test_options_that_no_step_can_be_taken_with(path, options):
    rewrite(path, lambda saved: saved["optimizer"]["param_groups"][0].update(options))
    refused(path)


def test_states_in_another_order(path):
    rewrite(path, lambda saved: saved["optimizer"]["param_groups"][0]["params"].reverse())
    refused(path)


KEYS_OF_ONE_HASH = b"".join(b"\x8a\x0a" + (k * (2**61 - 1)).to_bytes(10, "little") + b"N" for k in range(40_000))


@pytest.mark.parametrize(
    "code",
    [
        b"\x80\x02})" + b"\x85" * 200_000 + b"Ns.",  # keys of deep tuples, which end the process
        b"\x80\x02ccollections\n" + b"9" * 1_000_000 + b"\n.",  # a name that takes torch an hour to tell of
        b"\x80\x02}(" + KEYS_OF_ONE_HASH + b"u.",  # which take a time that grows with their square
        b"\x80\x02})" + b"N\x86" * 200_000 + b"Ns.",  # the same, each below something else
        b"\x80\x02])q\x00a" + b"(Nh\x00tq\x00a" * 200_000 + b"}h\x00Ns.",  # the same, each from memory
        b"\x80\x02" + b"N" * 200_000 + b"(t" * 200_000 + b".",  # marks above much, which were looked for from below
    ],
)
def test_hostile_pickles(path, code):
    whole = io.BytesIO()
    with zipfile.ZipFile(path) as old, zipfile.ZipFile(whole, "w") as new:
        for name in old.namelist():
            new.writestr(name, code if name.endswith("data.pkl") else old.read(name))
    path.write_bytes(with_checksum(whole.getvalue()))
    refused(path)


def test_a_pipe_is_no_checkpoint(path):
    path.unlink()
    os.mkfifo(path)
    refused(path)
    assert checkpoint.latest_checkpoint(path.parent) is None
