"""A folder of temporary files is removed by whoever outlives the process that made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outgrow.runtime.storage.tempdir_reaper import remove_folder, temporary_directory

HOLD = """
import os, signal, sys, time
from pathlib import Path
from outgrow.runtime.storage.tempdir_reaper import temporary_directory

with temporary_directory("kept-", Path(sys.argv[1])) as folder:
    (folder / "deep").mkdir()
    (folder / "deep" / "rows").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    time.sleep(1000)
"""


def gone(folder: Path) -> bool:
    """Whether it is, or will be in some seconds."""
    deadline = time.monotonic() + 20
    while folder.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    return not folder.exists()


def test_it_is_removed_in_the_end(tmp_path: Path) -> None:
    with temporary_directory("kept-", tmp_path) as folder:
        (folder / "rows").write_bytes(b"x")
        assert folder.parent == tmp_path.resolve()
    assert not list(tmp_path.iterdir())


def test_it_is_removed_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(ArithmeticError), temporary_directory("kept-", tmp_path):
        raise ArithmeticError
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_is_removed_when_its_process_is_killed(tmp_path: Path, number: signal.Signals) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        assert process.stdout is not None
        folder = Path(process.stdout.readline().strip())
        assert (folder / "deep" / "rows").exists()
        os.killpg(process.pid, number)  # all of the session: the keeper is in one of its own
        process.wait()
    assert gone(folder)


def test_without_a_keeper_it_is_removed_in_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "none"))
    with temporary_directory("kept-", tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_what_does_not_go_at_once_is_tried_again(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    remove_folder(tmp_path / "kept")
    remove_folder(tmp_path / "kept")
    assert not list(tmp_path.iterdir())


def test_it_is_removed_if_a_signal_comes_while_the_helper_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*given: object, **options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(subprocess, "Popen", interrupt)
    with pytest.raises(KeyboardInterrupt), temporary_directory("outgrow-", tmp_path):
        pass
    assert not list(tmp_path.iterdir())


def test_it_is_removed_if_a_signal_comes_as_soon_as_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = Path.mkdir

    def make_and_interrupt(folder: Path, **options: int) -> None:
        make(folder, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "mkdir", make_and_interrupt)
    with pytest.raises(KeyboardInterrupt), temporary_directory("outgrow-", tmp_path):
        pass
    assert not list(tmp_path.iterdir())
