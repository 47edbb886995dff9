"""Checkpoints: what is needed to go on as if nothing had happened. They hold nothing of a strategy."""

from __future__ import annotations

import contextlib
import io
import os
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from outgrow.core.errors import InputError

_KEEP = 2
_PARTS = {"model", "optimizer", "progress"}


@dataclass(kw_only=True)
class Progress:
    """How far training has come. Epochs count from 1; lists hold one entry per finished epoch.

    Attributes:
        loss: Training loss.
        val_score: Validation score; None for an epoch that was not evaluated.
        epoch_seconds: Wall time of the training part of the epoch.
        best_epoch: Epoch of the best validation score; 0 before the first.
        best_score: That score.
        best_loss: Validation loss then; breaks ties.
        best_model: State of the model then.
        step: Finished steps of the epoch under way; 0 between epochs.
        loss_so_far: Sum of the losses of its seeds.
        seeds_so_far: Number of these seeds.
        seconds_so_far: Wall time of these steps.
        course: What the steps of the epoch under way are made of.
    """

    loss: list[float]
    val_score: list[float | None]
    epoch_seconds: list[float]
    best_epoch: int = 0
    best_score: float = float("-inf")
    best_loss: float = float("inf")
    best_model: dict[str, torch.Tensor] | None = None
    step: int = 0
    loss_so_far: float = 0.0
    seeds_so_far: int = 0
    seconds_so_far: float = 0.0
    course: str = ""

    @property
    def epoch(self) -> int:
        """Finished epochs."""
        return len(self.loss)

    def stepped(self, loss: float, num_seeds: int) -> None:
        """A step of the epoch under way has ended, with this mean loss of its seeds."""
        self.step += 1
        self.loss_so_far += loss * num_seeds
        self.seeds_so_far += num_seeds

    def end_epoch(self) -> None:
        """All of its steps have ended."""
        self.loss.append(self.loss_so_far / self.seeds_so_far)
        self.epoch_seconds.append(self.seconds_so_far)
        self.step, self.loss_so_far, self.seeds_so_far, self.seconds_so_far = 0, 0.0, 0, 0.0

    @staticmethod
    def start() -> Progress:
        """Nothing yet."""
        return Progress(loss=[], val_score=[], epoch_seconds=[])


def save(folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: Progress) -> Path:
    """Write a checkpoint; the file appears whole or not at all. Older ones but the last are removed.

    Returns:
        The file, ``folder/epoch-<number>.pt``, or ``folder/epoch-<number>-step-<number>.pt`` within the next epoch.

    Raises:
        InputError: It cannot be written; those written before are still there.
    """
    within = f"-step-{progress.step:08d}" if progress.step else ""
    path = folder / f"epoch-{progress.epoch:08d}{within}.pt"
    partial = path.with_suffix(".partial")
    state = {name: getattr(progress, name) for name in (field.name for field in fields(progress))}
    whole = io.BytesIO()  # torch's own writing to a full disk raises an error that does not say so
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": state}, whole)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with partial.open("wb") as file:
            file.write(whole.getbuffer())
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise InputError(
            f"cannot write the checkpoint {path}",
            needed="a folder with enough free space",
            got=str(error),
            repair="free some space, or give another --out, and start again with --resume",
        ) from error
    torn = folder.glob("epoch-*.partial")  # whoever wrote them was killed
    for old in (*torn, *_by_age(folder)[:-_KEEP]):
        old.unlink(missing_ok=True)
    return path


def load(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code in it.

    Raises:
        InputError: It cannot be read.
    """
    try:
        saved: Any = torch.load(path, weights_only=True, map_location="cpu")
    except Exception as error:
        got = str(error) if isinstance(error, OSError) else f"{path.stat().st_size:,} bytes of something else"
        raise _unreadable(path, got) from error
    if not isinstance(saved, dict) or not saved.keys() >= _PARTS:
        raise _unreadable(path, "a file of something else")
    return dict(saved)


def restore(saved: dict[str, Any], path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> Progress:
    """Put a checkpoint into a model and an optimizer.

    Args:
        saved: What `load` read.
        path: Where, for errors.
        model: The model.
        optimizer: Its optimizer.

    Raises:
        InputError: It is of another model, or of another version.
    """
    fill(model, saved["model"], path)
    try:
        optimizer.load_state_dict(saved["optimizer"])
        return Progress(**saved["progress"])
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable(path, f"other parts than this version writes: {error}") from error


def fill(model: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Put saved parameters into a model.

    Raises:
        InputError: They are those of another model.
    """
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise InputError(
            f"the checkpoint {path} is of another model",
            needed="the model and the graph that it was saved from",
            got=" ".join(str(error).split())[:300],
            repair="use the model, its options and the graph that the run was started with",
        ) from error


def newest(folder: Path) -> Path | None:
    """The last checkpoint in a folder; None if there is none."""
    found = _by_age(folder) if folder.is_dir() else []
    return found[-1] if found else None


def _by_age(folder: Path) -> list[Path]:
    """The checkpoints in a folder; those between epochs come before those within the next."""
    return sorted(folder.glob("epoch-*.pt"), key=lambda path: path.stem.split("-"))


def _unreadable(path: Path, got: str) -> InputError:
    return InputError(
        f"cannot read the checkpoint {path}",
        needed="a checkpoint written by outgrow",
        got=got,
        repair="remove this file; the one before it is used then",
    )
