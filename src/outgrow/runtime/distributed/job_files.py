"""Files through which a launcher and its workers on this host communicate. Does not import torch."""

from __future__ import annotations

import importlib
import io
import json
import os
import pickle
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle  # type: ignore[import-untyped]

from outgrow.core.errors import OutgrowError
from outgrow.core.files import os_errors_as_input_errors

# Enough for a long traceback.
_RECORD_BYTES = 1 << 16


@dataclass(frozen=True, kw_only=True)
class JobSpec:
    """Settings that a worker reads before it imports anything large.

    Attributes:
        workers: Number of workers.
        attempt: Number of restarts so far.
        parent: Process id of the launcher.
    """

    workers: int
    attempt: int
    parent: int


@dataclass(frozen=True, kw_only=True)
class FailureRecord:
    """Failure of a worker.

    Attributes:
        message: Type and message of the exception.
        report: Its traceback.
        is_peer_failure: Whether the cause is that another worker could not be reached.
        seconds: Time of the failure, on the host's clock, in seconds since the epoch.
        error: The exception itself if it is an `OutgrowError`, which says what to do; else None.
    """

    message: str
    report: str
    is_peer_failure: bool
    seconds: float
    error: OutgrowError | None


@dataclass(frozen=True)
class JobFiles:
    """Files of one attempt. Results and records are renamed into place, so readers see only complete ones."""

    folder: Path

    @property
    def run_folder(self) -> Path:
        """Folder of the run, which outlives its attempts."""
        return self.folder.parent

    @property
    def task_path(self) -> Path:
        """Pickled task of all workers."""
        return self.folder / "task"

    @property
    def store_path(self) -> Path:
        """File of the rendezvous store."""
        return self.folder / "meeting"

    def write_job_spec(self, spec: JobSpec) -> None:
        """Write the settings of the attempt."""
        (self.folder / "job").write_text(json.dumps(asdict(spec)), "utf-8")

    def read_job_spec(self) -> JobSpec:
        """Read the settings of the attempt."""
        return JobSpec(**json.loads((self.folder / "job").read_text("utf-8")))

    def request_stop(self) -> None:
        """Ask the workers to stop."""
        (self.folder / "stop").touch()

    def is_stop_requested(self) -> bool:
        """Whether `request_stop` was called."""
        return (self.folder / "stop").exists()

    def heartbeat_path(self, rank: int) -> Path:
        """File that a worker touches while it is alive."""
        return self.folder / f"beat-{rank}"

    def result_path(self, rank: int) -> Path:
        """Pickled result of a worker."""
        return self.folder / f"result-{rank}"

    def failure_path(self, rank: int) -> Path:
        """Failure record of a worker."""
        return self.folder / f"record-{rank}"

    def reserve_failure_record(self, rank: int) -> None:
        """Reserve disk space for `write_failure_record`: the failure may be a full disk."""
        with explain_write_error(self.folder):
            # Real zeros, not a truncate: blocks of a sparse file are allocated on the first write only.
            self._reserved_path(rank).write_bytes(bytes(_RECORD_BYTES))

    def write_failure_record(self, rank: int, record: bytes) -> None:
        """Write the failure record of a worker into the reserved space."""
        reserve = self._reserved_path(rank)
        # "r+b" overwrites in place; "wb" would release the reserved blocks first.
        with reserve.open("r+b" if reserve.exists() else "wb") as file:
            file.write(record)
            file.truncate()
        reserve.rename(self.failure_path(rank))

    def _reserved_path(self, rank: int) -> Path:
        return self.folder / f"reserve-{rank}"

    def output_path(self, rank: int) -> Path:
        """What a worker has printed."""
        return self.folder / f"output-{rank}"

    def messages_path(self, rank: int) -> Path:
        """File of the messages that a worker has sent so far."""
        return self.folder / f"told-{rank}"

    def write_atomically(self, path: Path, data: bytes) -> None:
        """Write a file that is complete as soon as it exists.

        Raises:
            InputError: The file cannot be written.
        """
        # Not `atomic_write`, which flushes to the disk: this file is useless after a crash of the machine.
        unfinished = path.with_suffix(".part")
        with explain_write_error(path):
            unfinished.write_bytes(data)
            unfinished.rename(path)


def serialize_by_value(value: object) -> bytes:
    """Pickle an object with the classes and functions that the other process cannot import."""
    # PyG generates a module for each layer, here for those of a script, whose own name is `__main__`.
    generated = [module for name, module in sys.modules.items() if name.startswith("__main___")]
    for module in generated:
        cloudpickle.register_pickle_by_value(module)
    try:
        buffer = io.BytesIO()
        _Pickler(buffer).dump(value)
        return buffer.getvalue()
    finally:
        for module in generated:
            cloudpickle.unregister_pickle_by_value(module)


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def reducer_override(self, value: Any) -> Any:
        # With a function that names torch and an attribute `classes`, cloudpickle takes the module torch.classes along.
        # It pickles modules of a class of their own as if they were any objects, which these do not allow.
        if isinstance(value, ModuleType) and type(value) is not ModuleType:
            for name, module in [*sys.modules.items()]:
                if module is value:
                    return importlib.import_module, (name,)
        return super().reducer_override(value)


def append_message(path: Path, message: bytes) -> None:
    """Append a message to a file, after its length.

    Raises:
        InputError: The file cannot be written.
    """
    # Unbuffered: the message is visible to the launcher even if this process is killed right afterwards.
    with explain_write_error(path), path.open("ab", buffering=0) as file:
        data = memoryview(len(message).to_bytes(8, "little") + message)
        # A raw write may be partial.
        while data:
            data = data[file.write(data) :]


def explain_write_error(path: Path) -> AbstractContextManager[None]:
    """Turn errors while writing temporary files into an error that says what to do.

    Raises:
        InputError: The disk is full, or ``path`` cannot be written.
    """
    return os_errors_as_input_errors(
        f"cannot write the temporary file {path}",
        needed="a folder of temporary files on a disk with free space",
        repair="free some space, or name a folder on another disk by TMPDIR; --resume goes on from a checkpoint",
    )


class MessageReader:
    """Reads the messages that `append_message` writes to a file, each once."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._read_bytes = 0

    def read_messages(self) -> Iterator[Any]:
        """Yield the new messages that are complete."""
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._read_bytes)
            data = memoryview(file.read())
        # The writer may be in the middle of a message: the rest is read next time.
        while len(data) >= 8 and len(data) >= 8 + (length := int.from_bytes(data[:8], "little")):
            message, data = data[8 : 8 + length], data[8 + length :]
            self._read_bytes += 8 + length
            yield pickle.loads(message)


def describe_exception(error: BaseException) -> str:
    """Return the type and message of an exception in one line."""
    return "".join(traceback.format_exception_only(error)).strip().splitlines()[0]


def read_last_lines(path: Path, count: int = 20) -> str:
    """Return the last lines of a worker's output."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - 8192))
        return "\n".join(file.read().decode("utf-8", "replace").splitlines()[-count:])
