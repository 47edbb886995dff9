"""Checkpoints appear whole or not at all, run no code, and refuse other models."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from outgrow.core import files
from outgrow.core.errors import InputError
from outgrow.training import checkpoint
from outgrow.training.checkpoint import TrainingProgress

STATE = tuple[nn.Module, torch.optim.Optimizer, TrainingProgress]


def trained(epochs: int, width: int = 3) -> STATE:
    """A model after some steps, whose optimizer has a state."""
    torch.manual_seed(0)
    model = nn.Linear(width, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    progress = TrainingProgress.at_start()
    for epoch in range(epochs):
        torch.autograd.backward(model(torch.ones(1, width)).square().sum())
        optimizer.step()
        progress.loss.append(1 / (epoch + 1))
        progress.val_score.append(None if epoch % 2 else 0.5)
        progress.epoch_seconds.append(0.1)
    progress.best_epoch, progress.best_score, progress.best_loss = 1, 0.5, 2.0
    progress.best_model = {name: 7 * value.clone() for name, value in model.state_dict().items()}
    return model, optimizer, progress


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer, progress = trained(3)
    path = checkpoint.save_checkpoint(tmp_path / "new" / "folder", model, optimizer, progress)
    other, fresh, _ = trained(0)
    again = checkpoint.restore_checkpoint(checkpoint.load_checkpoint(path), path, other, fresh)
    assert (again.loss, again.val_score, again.epoch_seconds) == (progress.loss, [0.5, None, 0.5], [0.1] * 3)
    assert (again.best_epoch, again.best_score, again.best_loss, again.finished_epochs) == (1, 0.5, 2.0, 3)
    assert again.best_model is not None
    assert progress.best_model is not None
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
        assert torch.equal(again.best_model[name], progress.best_model[name])
    ours, theirs = fresh.state_dict()["state"], optimizer.state_dict()["state"]
    assert all(torch.equal(ours[i][key], theirs[i][key]) for i in theirs for key in theirs[i])


def test_a_checkpoint_from_before_the_first_evaluation(tmp_path: Path) -> None:
    model, optimizer, _ = trained(1)
    path = checkpoint.save_checkpoint(
        tmp_path, model, optimizer, TrainingProgress(loss=[1.0], val_score=[None], epoch_seconds=[0.1])
    )
    again = checkpoint.restore_checkpoint(checkpoint.load_checkpoint(path), path, model, optimizer)
    assert again.best_model is None
    assert again.best_score == float("-inf")


def test_the_last_two_are_kept(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    for epochs in (1, 2, 9, 10, 11):
        checkpoint.save_checkpoint(tmp_path, *trained(epochs))
    assert names(tmp_path) == ["epoch-00000010.pt", "epoch-00000011.pt", "notes.txt"]
    assert checkpoint.latest_checkpoint(tmp_path) == tmp_path / "epoch-00000011.pt"


def test_the_newest_is_on_the_disk_before_others_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(files, "fsync_path", lambda path: seen.append((path, names(tmp_path))))
    for epochs in (1, 2, 3):
        checkpoint.save_checkpoint(tmp_path, *trained(epochs))
    assert seen[-1] == (tmp_path, ["epoch-00000001.pt", "epoch-00000002.pt", "epoch-00000003.pt"])
    assert names(tmp_path) == ["epoch-00000002.pt", "epoch-00000003.pt"]


def test_no_checkpoint_yet(tmp_path: Path) -> None:
    assert checkpoint.latest_checkpoint(tmp_path) is None
    assert checkpoint.latest_checkpoint(tmp_path / "missing") is None


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_failing_disk_leaves_the_earlier_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    checkpoint.save_checkpoint(tmp_path, *trained(1))
    before = (tmp_path / "epoch-00000001.pt").read_bytes()

    def fail(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(InputError) as caught:
        checkpoint.save_checkpoint(tmp_path, *trained(2))
    assert "No space left" in caught.value.got
    assert names(tmp_path) == ["epoch-00000001.pt"]
    assert (tmp_path / "epoch-00000001.pt").read_bytes() == before


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on the size of files")
def test_a_disk_that_is_full_in_the_middle_of_a_file(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
import torch
from outgrow.core.errors import InputError
from outgrow.training import checkpoint
from outgrow.training.checkpoint import TrainingProgress
model = torch.nn.Linear(300, 300)
progress = TrainingProgress(loss=[1.0], val_score=[None], epoch_seconds=[0.1])
for limit in (100, 1000, 100_000, 300_000):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        checkpoint.save_checkpoint(Path(sys.argv[1]), model, torch.optim.Adam(model.parameters()), progress)
    except InputError as error:
        print(limit, error.got)
"""
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["100", "1000", "100000", "300000"]
    assert names(tmp_path) == []


def test_a_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match="cannot write the checkpoint"):
        checkpoint.save_checkpoint(tmp_path / "file", *trained(1))


class Evil:
    """Writes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.mark.parametrize("with_torch", [True, False])
def test_no_code_in_a_checkpoint_is_run(tmp_path: Path, with_torch: bool) -> None:
    path, mark = tmp_path / "epoch-00000001.pt", tmp_path / "ran"
    content = {"model": Evil(mark), "optimizer": {}, "progress": {}}
    if with_torch:
        torch.save(content, path)
    else:
        path.write_bytes(pickle.dumps(content))
    whole = path.read_bytes()
    path.write_bytes(checkpoint.with_checksum(whole))
    with pytest.raises(InputError, match="cannot read the checkpoint") as caught:
        checkpoint.load_checkpoint(path)
    assert "checksum" not in caught.value.got
    assert not mark.exists()
    path.write_bytes(whole)
    torch.load(path, weights_only=False) if with_torch else pickle.loads(path.read_bytes())
    assert mark.exists()


@pytest.mark.parametrize("damage", ["truncated", "flipped", "empty", "missing", "other", "unsealed"])
def test_a_damaged_checkpoint(tmp_path: Path, damage: str) -> None:
    path = checkpoint.save_checkpoint(tmp_path, *trained(1))
    whole = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "other":
        torch.save({"weights": torch.ones(3)}, path)
        path.write_bytes(checkpoint.with_checksum(path.read_bytes()))
    elif damage == "unsealed":
        torch.save(checkpoint.load_checkpoint(path), path)
    elif damage == "flipped":
        middle = len(whole) // 2
        path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    else:
        path.write_bytes(whole[: len(whole) // 2] if damage == "truncated" else b"")
    model, optimizer, _ = trained(0)
    with pytest.raises(InputError) as caught:
        checkpoint.restore_checkpoint(checkpoint.load_checkpoint(path), path, model, optimizer)
    assert str(path) in caught.value.what
    assert "another checkpoint" in caught.value.repair


def test_a_checkpoint_of_another_model(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, *trained(1))
    model, optimizer, _ = trained(0, width=5)
    with pytest.raises(InputError, match="is of another model") as caught:
        checkpoint.restore_checkpoint(checkpoint.load_checkpoint(path), path, model, optimizer)
    assert "size mismatch" in caught.value.got


def test_checkpoints_within_an_epoch_are_newer_than_those_before_it(tmp_path: Path) -> None:
    model, optimizer, progress = trained(3)
    for step in (0, 2, 10):
        progress.step = step
        checkpoint.save_checkpoint(tmp_path, model, optimizer, progress)
        newest = checkpoint.latest_checkpoint(tmp_path)
        assert newest is not None
        assert newest.name == f"epoch-00000003{f'-step-{step:08d}' if step else ''}.pt"
    assert names(tmp_path) == ["epoch-00000003-step-00000002.pt", "epoch-00000003-step-00000010.pt"]
    progress.loss.append(0.1)
    progress.step = 0
    checkpoint.save_checkpoint(tmp_path, model, optimizer, progress)
    assert names(tmp_path) == ["epoch-00000003-step-00000010.pt", "epoch-00000004.pt"]
    assert checkpoint.latest_checkpoint(tmp_path) == tmp_path / "epoch-00000004.pt"


def test_a_torn_checkpoint_is_passed_over(tmp_path: Path) -> None:
    first, last = checkpoint.save_checkpoint(tmp_path, *trained(1)), checkpoint.save_checkpoint(tmp_path, *trained(4))
    whole, torn = last.read_bytes(), list[Path]()
    for end in (0, 10, len(whole) // 2, len(whole) - 1):
        last.write_bytes(whole[:end])
        torn.clear()
        assert checkpoint.latest_checkpoint(tmp_path, torn.append) == first
        assert torn == [last]
    checkpoint.save_checkpoint(tmp_path, *trained(2))
    assert names(tmp_path) == ["epoch-00000001.pt", "epoch-00000002.pt"]
    last.write_bytes(whole)
    assert checkpoint.latest_checkpoint(tmp_path, torn.append) == last


def test_a_checkpoint_is_a_zip_archive_that_torch_reads(tmp_path: Path) -> None:
    path = checkpoint.save_checkpoint(tmp_path, *trained(1))
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert len(archive.comment) == 64
    saved = torch.load(path, weights_only=True)
    assert saved.keys() == {"model", "optimizer", "progress"}
