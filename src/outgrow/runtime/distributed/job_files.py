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
class Job:
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
class Record:
    """How a worker failed.

    Attributes:
        line: Type and message of the exception.
        report: Its traceback.
        lost_peer: Whether it could not reach another worker: then the other one is to blame.
        seconds: When, on the clock of the host.
        error: The exception, if it is one of ours: it tells the user what to do.
    """

    line: str
    report: str
    lost_peer: bool
    seconds: float
    error: OutgrowError | None


@dataclass(frozen=True)
class Scratch:
    """The files of one attempt. Those that a worker hands over are renamed into place, so that they are whole."""

    folder: Path

    @property
    def shared(self) -> Path:
        """The folder of the run, which outlives its attempts."""
        return self.folder.parent

    @property
    def task(self) -> Path:
        """What all workers do."""
        return self.folder / "task"

    @property
    def meeting(self) -> Path:
        """The file by which workers find each other."""
        return self.folder / "meeting"

    def write_job(self, job: Job) -> None:
        """Say what is to be done."""
        (self.folder / "job").write_text(json.dumps(asdict(job)), "utf-8")

    def job(self) -> Job:
        """What is to be done."""
        return Job(**json.loads((self.folder / "job").read_text("utf-8")))

    def ask_to_stop(self) -> None:
        """Leave a note that workers should stop."""
        (self.folder / "stop").touch()

    def stop_asked(self) -> bool:
        """Whether `ask_to_stop` was called."""
        return (self.folder / "stop").exists()

    def beat(self, rank: int) -> Path:
        """The file that a worker touches while it lives."""
        return self.folder / f"beat-{rank}"

    def result(self, rank: int) -> Path:
        """What a worker gives back."""
        return self.folder / f"result-{rank}"

    def record(self, rank: int) -> Path:
        """How a worker failed."""
        return self.folder / f"record-{rank}"

    def reserve(self, rank: int) -> None:
        """Set room aside for `write_record`: a disk that is full is what it may have to tell of."""
        with telling(self.folder):
            self._reserve(rank).write_bytes(bytes(_RECORD_BYTES))

    def write_record(self, rank: int, record: bytes) -> None:
        """Write how a worker failed, in the room that was set aside."""
        reserve = self._reserve(rank)
        with reserve.open("r+b" if reserve.exists() else "wb") as file:
            file.write(record)
            file.truncate()
        reserve.rename(self.record(rank))

    def _reserve(self, rank: int) -> Path:
        return self.folder / f"reserve-{rank}"

    def told(self, rank: int) -> Path:
        """What a worker has told so far."""
        return self.folder / f"told-{rank}"

    def write(self, path: Path, data: bytes) -> None:
        """Write a file that is whole as soon as it is there.

        Raises:
            InputError: It cannot be written.
        """
        # Not `atomic_write`: it would flush to the disk what is of no use once the machine has stopped.
        unfinished = path.with_suffix(".part")
        with telling(path):
            unfinished.write_bytes(data)
            unfinished.rename(path)


def packed(value: object) -> bytes:
    """An object for another process, with the classes and functions that it would not find there."""
    return bytes(cloudpickle.dumps(value))


def tell(path: Path, message: bytes) -> None:
    """Add a message to a file.

    Raises:
        InputError: It cannot be written.
    """
    with telling(path), path.open("ab", buffering=0) as file:
        data = memoryview(len(message).to_bytes(8, "little") + message)
        while data:
            data = data[file.write(data) :]


def telling(path: Path) -> AbstractContextManager[None]:
    """Say what the user can do where temporary files cannot be written.

    Raises:
        InputError: The disk is full, or ``path`` cannot be written.
    """
    return os_errors_as_input_errors(
        f"cannot write the temporary file {path}",
        needed="a folder of temporary files on a disk with free space",
        repair="free some space, or name a folder on another disk by TMPDIR; --resume goes on from a checkpoint",
    )


class Listener:
    """Reads what `tell` adds to a file, each message once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def messages(self) -> Iterator[Any]:
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


def describe(error: BaseException) -> str:
    """Type and message of an exception in one line."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


def last_lines(path: Path, count: int = 20) -> str:
    """The end of what a worker wrote."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8192))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-count:])
