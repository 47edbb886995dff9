"""Checkpoints, from which training resumes bit-exactly. They are independent of the strategy.

A checkpoint is a `torch.save` file, which is a zip archive; the SHA-256 of all that precedes the archive's
comment is that comment.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from outgrow.core.errors import InputError
from outgrow.core.files import atomic_write, os_errors_as_input_errors
from outgrow.core.validation import to_python_number
from outgrow.graph.sampling.edge_sampler import NEIGHBOR
from outgrow.training.checkpoint_checks import check_optimizer_state, load_untrusted
from outgrow.training.embedding_files import remove_embeddings
from outgrow.training.optimizers import load_optimizer_state
from outgrow.training.training_progress import TrainingProgress as TrainingProgress

if TYPE_CHECKING:
    from outgrow.engine.problem import Problem
    from outgrow.training.optimization import Optimization

# The newest file may be torn by a failing disk: the one before it is the fallback.
_KEEP = 2
_NAME = re.compile(r"epoch-\d{8}(-step-\d{8})?\.pt")
_COMMENT = 2 * hashlib.sha256().digest_size


def save_checkpoint(
    folder: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: TrainingProgress,
    loop: Mapping[str, Any] | None = None,
    *,
    embeddings: Mapping[str, Any] | None = None,
    strategy_state: Mapping[str, object] | None = None,
) -> Path:
    """Write a checkpoint atomically; remove all others but the one before it.

    Args:
        folder: Folder of the checkpoints.
        model: The model.
        optimizer: Its optimizer.
        progress: Progress of training.
        loop: State of all else that decides the next steps: see `Optimization.loop_state`.
        embeddings: What `write_vectors` returned, which has written the vectors of nodes; None for a model without.
        strategy_state: What the strategy's next steps depend on beside these: see `Problem`; None for nothing.

    Returns:
        The file: ``folder/epoch-<number>.pt``, or ``folder/epoch-<number>-step-<number>.pt`` within the next
        epoch.

    Raises:
        InputError: The file cannot be written; earlier checkpoints are still there.
    """
    path = folder / f"{checkpoint_name(progress)}.pt"
    # In memory first: when torch itself writes to a full disk, its error does not say so.
    archive = io.BytesIO()
    parts = collect_state(model, optimizer, progress, loop)
    if embeddings is not None:
        parts["embeddings"] = dict(embeddings)
    if strategy_state:
        parts["strategy_state"] = dict(strategy_state)
    torch.save(parts, archive)
    with os_errors_as_input_errors(
        f"cannot write the checkpoint {path}",
        needed="a folder with enough free space",
        repair="free some space, and go on with --resume",
    ):
        folder.mkdir(parents=True, exist_ok=True)
        # Durable, its name included, before older checkpoints are removed.
        with atomic_write(path, temporary=f"{path.stem}.partial") as temporary:
            temporary.write_bytes(with_checksum(archive.getbuffer()))
    # Their writers were killed: only one process writes to a run's folder.
    unfinished = folder.glob("epoch-*.partial")
    found = _sorted_checkpoints(folder)
    # Later files were corrupt or abandoned: training reached this point from an earlier checkpoint.
    last = found.index(path) + 1
    for other in (*unfinished, *found[: max(0, last - _KEEP)], *found[last:]):
        other.unlink(missing_ok=True)
        remove_embeddings(other)
    return path


def collect_state(
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    progress: TrainingProgress,
    loop: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return what a checkpoint holds, but vectors of nodes: see `save_checkpoint`, and `restore_checkpoint`."""
    state = {name: getattr(progress, name) for name in (field.name for field in fields(progress))}
    optimizer_state = optimizer.state_dict()
    optimizer_state["param_groups"] = _to_python_numbers(optimizer_state["param_groups"])
    parts = {"model": model.state_dict(), "optimizer": optimizer_state, "progress": state}
    return parts if loop is None else {**parts, "loop": _to_python_numbers(dict(loop))}


def checkpoint_name(progress: TrainingProgress) -> str:
    """Return the name of the file of a checkpoint, without its suffix."""
    step_suffix = f"-step-{progress.step:08d}" if progress.step else ""
    return f"epoch-{progress.finished_epochs:08d}{step_suffix}"


def _to_python_numbers(value: Any) -> Any:
    """Return a state without numbers of NumPy, such as a schedule of the user may compute: they are not read again."""
    if type(value) in (list, tuple):
        return type(value)(map(_to_python_numbers, value))
    if type(value) is dict:
        return {name: _to_python_numbers(each) for name, each in value.items()}
    return to_python_number(value)


def with_checksum(archive: bytes | memoryview) -> bytearray:
    """Append to a zip archive without a comment its SHA-256, as its comment, so that it remains valid."""
    content = bytearray(archive)
    # A zip archive ends with the length of its comment, in two bytes, and the comment.
    content[-2:] = _COMMENT.to_bytes(2, "little")
    content += hashlib.sha256(content).hexdigest().encode()
    return content


def _has_valid_checksum(content: bytes) -> bool:
    return hashlib.sha256(memoryview(content)[:-_COMMENT]).hexdigest().encode() == content[-_COMMENT:]


def load_checkpoint(path: Path) -> dict[str, Any]:
    """Read a checkpoint without running any code in it.

    Raises:
        InputError: The file cannot be read, or is corrupt.
    """
    content = _read_content(path)
    if not _has_valid_checksum(content):
        raise _unreadable_error(
            path, f"{len(content):,} bytes that are not what was written: their checksum is another"
        )
    try:
        return load_untrusted(content)
    except Exception as error:  # a file that anyone may have written makes torch raise nearly anything
        why = f"{type(error).__name__}: {str(error)[:100]}"
        raise _unreadable_error(path, f"{len(content):,} bytes of something else ({why})") from error


def restore_checkpoint(
    saved: dict[str, Any],
    path: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    optimization: Optimization | None = None,
) -> TrainingProgress:
    """Load a checkpoint into a model and its optimizer; return the progress.

    Args:
        saved: Content from `load_checkpoint`.
        path: Path of the checkpoint, for errors.
        model: Model to load into.
        optimizer: Optimizer of the model.
        optimization: What else is restored; None for the optimizer alone.

    Raises:
        InputError: The checkpoint belongs to another model, optimizer, schedule or version.
    """
    if optimization is not None and isinstance(saved.get("loop"), dict):
        # First: the state of another optimizer would be refused for what it lacks.
        optimization.validate_signature(saved["loop"])
    load_parameters(model, saved["model"], path)
    try:
        check_optimizer_state(saved["optimizer"], optimizer)
        load_optimizer_state(optimizer, saved["optimizer"])
        if optimization is not None:
            optimization.load_loop_state(saved.get("loop"))
        return TrainingProgress(**saved["progress"])
    except (ValueError, TypeError, KeyError) as error:
        raise _unreadable_error(path, f"other parts than this version writes: {error}") from error


def read_strategy_state(saved: Mapping[str, Any], path: Path) -> dict[str, object]:
    """Return what strategies have saved: see `Problem`.

    Raises:
        InputError: It is something else.
    """
    state = saved.get("strategy_state", {})
    if not isinstance(state, dict) or not all(isinstance(name, str) for name in state):
        raise _unreadable_error(path, f"a state of strategies of class {type(state).__name__}")
    return state


def describe_steps(problem: Problem) -> str:
    """Return all that decides which batches an epoch has: a mid-epoch checkpoint fits only the same ones."""
    batches = problem.batches
    sampling = f"fanout {batches.describe()}, weighted {batches.weighted}"
    # Not for the default: checkpoints of earlier versions do not name it.
    sampling += "" if batches.sampler == NEIGHBOR else f", sampler {batches.sampler}"
    sampling += f", temporal {batches.temporal_strategy}" if batches.is_temporal else ""
    return (
        f"batch_size {batches.size}, {sampling}, seed {problem.seed}, {problem.num_train} to train on"
        f"{problem.describe_link_steps()}"
    )


def validate_step_signature(progress: TrainingProgress, path: Path, step_signature: str, epochs: int) -> None:
    """Check that the unfinished epoch of a checkpoint, if any, can be finished.

    Args:
        progress: Progress in the checkpoint.
        path: Path of the checkpoint, for errors.
        step_signature: Options that decide the batches of an epoch.
        epochs: Number of epochs to train.

    Raises:
        InputError: The batches would differ, or there are too few epochs.
    """
    if progress.step and (progress.course != step_signature or progress.finished_epochs >= epochs):
        raise InputError(
            f"the checkpoint {path} is a mid-epoch checkpoint and does not match these options",
            needed=f"{progress.course}, more than {progress.finished_epochs} epochs",
            got=f"{step_signature}, {epochs} epochs",
            repair="go on as the run was started; what to train on may change between epochs only",
        )


def final_parameters(saved: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    """Return the parameters that a run ends with: of its best epoch or, without scores, the latest or averaged ones."""
    best: dict[str, torch.Tensor] | None = saved["progress"]["best_model"]
    averages: Mapping[str, torch.Tensor] = (saved.get("loop") or {}).get("averages") or {}
    return best or {**saved["model"], **averages}


def load_parameters(model: torch.nn.Module, state: dict[str, torch.Tensor], path: Path) -> None:
    """Load saved parameters into a model.

    Raises:
        InputError: The parameters belong to another model.
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
    """Return the latest intact checkpoint in a folder; None if there is none.

    Args:
        folder: Folder of the checkpoints.
        on_corrupt: Called with each later checkpoint that is corrupt.

    Raises:
        InputError: A file cannot be read, though it may be intact.
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
    """Return the checkpoints in a folder, in the order of training."""
    found = (path for path in folder.glob("epoch-*.pt") if _NAME.fullmatch(path.name) and path.is_file())
    # Split into parts, the name without a step is a prefix and so sorts before those with one.
    return sorted(found, key=lambda path: path.stem.split("-"))


def _unreadable_error(path: Path, got: str) -> InputError:
    return InputError(
        f"cannot read the checkpoint {path}",
        needed="a checkpoint written by outgrow",
        got=got,
        repair="go on from another checkpoint of this run, or start a new run",
    )
