"""Messages and files between a run and its workers arrive whole and once."""

from __future__ import annotations

import io
import pickle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from outgrow.core.errors import InputError
from outgrow.runtime.distributed.job_files import (
    JobFiles,
    JobSpec,
    MessageReader,
    append_message,
    describe_exception,
    read_last_lines,
    serialize_by_value,
)


@pytest.mark.parametrize("name", ["classes", "ops", "backends"])
def test_a_function_with_an_attribute_named_as_a_part_of_torch(name: str) -> None:
    """A lambda is pickled by value, as a function of a script. It takes the part along, a module of its own class."""
    function = eval(f"lambda given: torch.zeros(given.{name})", {"torch": torch})
    back = pickle.loads(serialize_by_value(function))
    assert len(back(SimpleNamespace(**{name: 3}))) == 3


def test_messages_come_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "told"
    listener = MessageReader(path)
    assert list(listener.read_messages()) == []
    append_message(path, serialize_by_value("a"))
    append_message(path, serialize_by_value({"b": 1}))
    assert list(listener.read_messages()) == ["a", {"b": 1}]
    append_message(path, serialize_by_value(None))
    assert list(listener.read_messages()) == [None]
    assert list(listener.read_messages()) == []


def test_half_a_message_is_waited_for(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "told"
    append_message(whole, serialize_by_value("first"))
    append_message(whole, serialize_by_value("second"))
    data = whole.read_bytes()
    listener, heard = MessageReader(path), []
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        heard += [(end, message) for message in listener.read_messages()]
    assert [message for _, message in heard] == ["first", "second"]
    assert heard[1][0] == len(data)


def test_the_job_comes_back(tmp_path: Path) -> None:
    job = JobSpec(workers=3, attempt=1, parent=77)
    JobFiles(tmp_path).write_job_spec(job)
    assert JobFiles(tmp_path).read_job_spec() == job


def test_stopping(tmp_path: Path) -> None:
    scratch = JobFiles(tmp_path)
    assert not scratch.is_stop_requested()
    scratch.request_stop()
    scratch.request_stop()
    assert scratch.is_stop_requested()


def test_files_are_renamed_into_place(tmp_path: Path) -> None:
    scratch = JobFiles(tmp_path)
    scratch.write_atomically(scratch.result_path(12), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["result-12"]


def test_a_record_takes_the_room_that_was_set_aside(tmp_path: Path) -> None:
    scratch = JobFiles(tmp_path)
    scratch.reserve_failure_record(1)
    [reserve] = tmp_path.iterdir()
    blocks, file = reserve.stat().st_blocks, reserve.stat().st_ino
    scratch.write_failure_record(1, b"how it failed")
    assert [path.name for path in tmp_path.iterdir()] == ["record-1"]
    assert scratch.failure_path(1).read_bytes() == b"how it failed"
    assert scratch.failure_path(1).stat().st_ino == file
    assert blocks * 512 >= 1 << 16
    scratch.write_failure_record(2, b"another")  # nothing was set aside
    assert scratch.failure_path(2).read_bytes() == b"another"


def test_temporary_files_that_cannot_be_written(tmp_path: Path) -> None:
    scratch = JobFiles(tmp_path / "gone")
    for write in (
        lambda: scratch.write_atomically(scratch.result_path(0), b"x"),
        lambda: append_message(scratch.messages_path(0), b"x"),
    ):
        with pytest.raises(InputError, match="cannot write the temporary file") as caught:
            write()
        assert "TMPDIR" in caught.value.repair


def test_a_long_message_on_a_disk_that_takes_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:3])

    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: Slow(path, "a"))
    append_message(tmp_path / "told", serialize_by_value("first"))
    monkeypatch.undo()
    assert list(MessageReader(tmp_path / "told").read_messages()) == ["first"]


def test_an_exception_in_one_line() -> None:
    assert describe_exception(ValueError("first\nsecond")) == "ValueError: first"
    assert describe_exception(KeyError("x")) == "KeyError: 'x'"


def test_the_end_of_a_long_output(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff" + b"".join(b"line %d\n" % i for i in range(10_000)))
    assert read_last_lines(path, 2) == "line 9998\nline 9999"
    path.write_bytes(b"")
    assert read_last_lines(path) == ""
