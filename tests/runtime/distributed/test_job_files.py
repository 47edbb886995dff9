"""Messages and files between a run and its workers arrive whole and once."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

from outgrow.core.errors import InputError
from outgrow.runtime.distributed.job_files import Job, Listener, Scratch, describe, last_lines, packed, tell


def test_messages_come_once_and_in_order(tmp_path: Path) -> None:
    path = tmp_path / "told"
    listener = Listener(path)
    assert list(listener.messages()) == []
    tell(path, packed("a"))
    tell(path, packed({"b": 1}))
    assert list(listener.messages()) == ["a", {"b": 1}]
    tell(path, packed(None))
    assert list(listener.messages()) == [None]
    assert list(listener.messages()) == []


def test_half_a_message_is_waited_for(tmp_path: Path) -> None:
    whole, path = tmp_path / "whole", tmp_path / "told"
    tell(whole, packed("first"))
    tell(whole, packed("second"))
    data = whole.read_bytes()
    listener, heard = Listener(path), []
    for end in range(len(data) + 1):
        path.write_bytes(data[:end])
        heard += [(end, message) for message in listener.messages()]
    assert [message for _, message in heard] == ["first", "second"]
    assert heard[1][0] == len(data)


def test_the_job_comes_back(tmp_path: Path) -> None:
    job = Job(workers=3, attempt=1, parent=77)
    Scratch(tmp_path).write_job(job)
    assert Scratch(tmp_path).job() == job


def test_stopping(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    assert not scratch.stop_asked()
    scratch.ask_to_stop()
    scratch.ask_to_stop()
    assert scratch.stop_asked()


def test_files_are_renamed_into_place(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.write(scratch.result(12), b"x")
    assert [path.name for path in tmp_path.iterdir()] == ["result-12"]


def test_a_record_takes_the_room_that_was_set_aside(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    scratch.reserve(1)
    [reserve] = tmp_path.iterdir()
    blocks, file = reserve.stat().st_blocks, reserve.stat().st_ino
    scratch.write_record(1, b"how it failed")
    assert [path.name for path in tmp_path.iterdir()] == ["record-1"]
    assert scratch.record(1).read_bytes() == b"how it failed"
    assert scratch.record(1).stat().st_ino == file
    assert blocks * 512 >= 1 << 16
    scratch.write_record(2, b"another")  # nothing was set aside
    assert scratch.record(2).read_bytes() == b"another"


def test_temporary_files_that_cannot_be_written(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path / "gone")
    for write in (lambda: scratch.write(scratch.result(0), b"x"), lambda: tell(scratch.told(0), b"x")):
        with pytest.raises(InputError, match="cannot write the temporary file") as caught:
            write()
        assert "TMPDIR" in caught.value.repair


def test_a_long_message_on_a_disk_that_takes_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(io.FileIO):
        def write(self, data: Any) -> int:
            return super().write(memoryview(data)[:3])

    monkeypatch.setattr(Path, "open", lambda path, mode, buffering: Slow(path, "a"))
    tell(tmp_path / "told", packed("first"))
    monkeypatch.undo()
    assert list(Listener(tmp_path / "told").messages()) == ["first"]


def test_an_exception_in_one_line() -> None:
    assert describe(ValueError("first\nsecond")) == "ValueError: first"
    assert describe(KeyError("x")) == "KeyError: 'x'"


def test_the_end_of_a_long_output(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"\xff" + b"".join(b"line %d\n" % i for i in range(10_000)))
    assert last_lines(path, 2) == "line 9998\nline 9999"
    path.write_bytes(b"")
    assert last_lines(path) == ""
