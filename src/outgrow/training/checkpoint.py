"""Checkpoints: what is needed to go on as if nothing had happened. They hold nothing of a strategy.

A checkpoint is a file of `torch.save_checkpoint`, which is a zip archive, with the SHA-256 of all before it as its comment.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import torch

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.training.checkpoint_checks import check_optimizer_state, load_untrusted

_KEEP = 2
_NAME = re.compile(r"epoch-\d{8}(-step-\d{8})?\.pt")
_COMMENT = 2 * hashlib.sha256().digest_size


@dataclass(kw_only=True)
class TrainingProgress:
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
        exact: Whether all that was trained so far, by whatever strategies, had the gradient of the reference.
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
    exact: bool = True

    @property
    def finished_epochs(self) -> int:
        """Finished epochs."""
        return len(self.loss)

    def add_step(self, loss: float, num_seeds: int) -> None:
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
    def at_start() -> TrainingProgress:
        """Nothing yet."""
        return TrainingProgress(loss=[], val_score=[], epoch_seconds=[])


def save_checkpoint(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, progress: TrainingProgress
) -> Path:
    """Write a checkpoint; the file appears whole or not at all. Of the others only the last one before it is kept.

    Returns:
        The file, ``folder/epoch-<number>.pt``, or ``folder/epoch-<number>-step-<number>.pt`` within the next epoch.

    Raises:
        InputError: It cannot be written; those written before are still there.
    """
    within = f"-step-{progress.step:08d}" if progress.step else ""
    path = folder / f"epoch-{progress.finished_epochs:08d}{within}.pt"
    state = {name: getattr(progress, name) for name in (field.name for field in fields(progress))}
    whole = io.BytesIO()  # torch's own writing to a full disk raises an error that does not say so
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "progress": state}, whole)
    with os_errors_as_input_errors(
        f"cannot write the checkpoint {path}",
        needed="a folder with enough free space",
        repair="free some space, and go on with --resume",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        # It is on the disk, and its name too, before those that it takes the place of are removed.
        with atomic_write(path, temporary=f"{path.stem}.partial") as temporary:
            temporary.write_bytes(with_checksum(whole.getbuffer()))
    unfinished = folder.glob("epoch-*.partial")  # whoever wrote them was killed
    found = _sorted_checkpoints(folder)
    last = found.index(path) + 1  # what follows was torn, or given up: this one was reached without it
    for other in (*unfinished, *found[: max(0, last - _KEEP)], *found[last:]):
        other.unlink(missing_ok=True)
    return path


def with_checksum(archive: bytes | memoryview) -> bytearray:
    """A zip archive without a comment, with the SHA-256 of what comes before the comment as its comment."""
    content = bytearray(archive)
    content[-2:] = _COMMENT.to_bytes(2, "little")
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def _has_valid_checksum(content: bytes) -> bool:
    return hashlib.sha256(memoryview(content)[:-_COMMENT]).hexdigest().encode() == content[-_COMMENT:]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code in it.

    Raises:
        InputError: It cannot be read, or is not what was written.
    """
    content = _read_content(path)
    if not _has_valid_checksum(content):
        raise _unreadable_error(
            path, f"{len(content):,} bytes that are not what was written: their checksum is another"
        )
    try:
        return load_untrusted(content)
    except Exception as error:  # nearly any: torch reads what anyone may have written
        why = f"{type(error).__name__}: {str(error)[:100]}"
        raise _unreadable_error(path, f"{len(content):,} bytes of something else ({why})") from error


def restore_checkpoint(
    saved: dict[str, Any], path: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer
) -> TrainingProgress:
    """Put a checkpoint into a model and an optimizer.

    Args:
        saved: What `load` read.
        path: Where, for errors.
        model: The model.
        optimizer: Its optimizer.

    Raises:
        InputError: It is of another model, or of another version.
    """
    load_parameters(model, saved["model"], path)
    try:
        check_optimizer_state(saved["optimizer"], optimizer)
        optimizer.load_state_dict(saved["optimizer"])
        return TrainingProgress(**saved["progress"])
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable_error(path, f"other parts than this version writes: {error}") from error


def load_parameters(model: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
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


def latest_checkpoint(folder: Path, on_corrupt: Callable[[Path], object] = lambda path: None) -> Path | None:
    """The last whole checkpoint in a folder; None if there is none.

    Args:
        folder: Where checkpoints are.
        on_corrupt: Told of each later one that is not whole.

    Raises:
        InputError: The disk does not give one; it may be whole.
    """
    for path in reversed(_sorted_checkpoints(folder) if folder.is_dir() else []):
        if _has_valid_checksum(_read_content(path)):
            return path
        on_corrupt(path)
    return None


def _read_content(path: Path) -> bytes:
    try:
        if not path.is_file():
            raise FileNotFoundError("there is no such file")
        return path.read_bytes()
    except OSError as error:
        raise _unreadable_error(path, str(error)) from error


def _sorted_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder; those between epochs come before those within the next."""
    found = (path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name) and path.is_file())
    return sorted(found, key=lambda path: path.stem.split("-"))


def _unreadable_error(path: Path, got: str) -> InputError:
    return InputError(
        f"cannot read the checkpoint {path}",
        needed="a checkpoint written by outgrow",
        got=got,
        repair="go on from another checkpoint of this run, or start a new run",
    )
