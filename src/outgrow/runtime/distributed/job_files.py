"""The folder through which a run and its local workers talk. It does not need torch, so workers have it first."""

from __future__ import annotations

import json
import os
import pickle
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from outgrow.core.errors import OutgrowError
from outgrow.core.files import os_errors_as_input_errors

_RECORD_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """What a worker must know before it loads anything.

    Attributes:
        workers: Number of workers.
        attempt: How often the workers were started again.
        parent: Process id of the run.
    """

    workers: int
    attempt: int
    parent: int


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """How a worker failed.

    Attributes:
        message: Type and message of the exception.
        report: Its traceback.
        is_peer_failure: Whether it could not reach another worker: then the other one is to blame.
        seconds: When, on the clock of the host.
        error: The exception, if it is one of ours: it tells the user what to do.
    """

    message: str
    report: str
    is_peer_failure: bool
    seconds: float
    error: OutgrowError | None


@dataclass(frozen=True)
class JobFiles:
    """The files of one attempt. Those that a worker hands over are renamed into place, so that they are whole."""

    folder: Path

    @property
    def run_folder(self) -> Path:
        """The folder of the run, which outlives its attempts."""
        return self.folder.parent

    @property
    def task_path(self) -> Path:
        """What all workers do."""
        return self.folder / "task"

    @property
    def store_path(self) -> Path:
        """The file by which workers find each other."""
        return self.folder / "meeting"

    def write_job_spec(self, spec: JobSpec) -> None:
        """Say what is to be done."""
        (self.folder / "job").write_text(json.dumps(asdict(spec)), "utf-8")

    def read_job_spec(self) -> JobSpec:
        """What is to be done."""
        return JobSpec(**json.loads((self.folder / "job").read_text("utf-8")))

    def request_stop(self) -> None:
        """Leave a note that workers should stop."""
        (self.folder / "stop").touch()

    def is_stop_requested(self) -> bool:
        """Whether `request_stop` was called."""
        return (self.folder / "stop").exists()

    def heartbeat_path(self, rank: int) -> Path:
        """The file that a worker touches while it lives."""
        return self.folder / f"beat-{rank}"

    def result_path(self, rank: int) -> Path:
        """What a worker gives back."""
        return self.folder / f"result-{rank}"

    def failure_path(self, rank: int) -> Path:
        """How a worker failed."""
        return self.folder / f"record-{rank}"

    def reserve_failure_record(self, rank: int) -> None:
        """Set room aside for `write_failure_record`: a disk that is full is what it may have to tell of."""
        with explain_write_error(self.folder):
            self._reserved_path(rank).write_bytes(bytes(_RECORD_BYTES))

    def write_failure_record(self, rank: int, record: bytes) -> None:
        """Write how a worker failed, in the room that was set aside."""
        reserve = self._reserved_path(rank)
        with reserve.open("r+b" if reserve.exists() else "wb") as file:
            file.write(record)
            file.truncate()
        reserve.rename(self.failure_path(rank))

    def _reserved_path(self, rank: int) -> Path:
        return self.folder / f"reserve-{rank}"

    def messages_path(self, rank: int) -> Path:
        """What a worker has told so far."""
        return self.folder / f"told-{rank}"

    def write_atomically(self, path: Path, data: bytes) -> None:
        """Write a file that is whole as soon as it is there.

        Raises:
            InputError: It cannot be written.
        """
        # Not `atomic_write`: it would flush to the disk what is of no use once the machine has stopped.
        unfinished = path.with_suffix(".part")
        with explain_write_error(path):
            unfinished.write_bytes(data)
            unfinished.rename(path)


def serialize_by_value(value: object) -> bytes:
    """An object for another process, with the classes and functions that it would not find there."""
    return bytes(cloudpickle.dumps(value))


def append_message(path: Path, message: bytes) -> None:
    """Add a message to a file.

    Raises:
        InputError: It cannot be written.
    """
    with explain_write_error(path), path.open("ab", buffering=0) as file:
        data = memoryview(len(message).to_bytes(8, "little") + message)
        while data:
            data = data[file.write(data) :]


def explain_write_error(path: Path) -> AbstractContextManager[None]:
    """Say what the user can do where temporary files cannot be written.

    Raises:
        InputError: The disk is full, or ``path`` cannot be written.
    """
    return os_errors_as_input_errors(
        f"cannot write the temporary file {path}",
        needed="a folder of temporary files on a disk with free space",
        repair="free some space, or name a folder on another disk by TMPDIR; --resume goes on from a checkpoint",
    )


class MessageReader:
    """Reads what `tell` adds to a file, each message once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def read_messages(self) -> Iterator[Any]:
        """The messages that are new and whole."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = memoryview(file.read())
        while len(data) >= 8 and len(data) >= 8 + (length := int.from_bytes(data[:8], "little")):
            message, data = data[8 : 8 + length], data[8 + length :]
            self._read_bytes += 8 + length
            yield pickle.loads(message)


def describe_exception(error: BaseException) -> str:
    """Type and message of an exception in one line."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


def read_last_lines(path: Path, count: int = 20) -> str:
    """The end of what a worker wrote."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8192))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-count:])
