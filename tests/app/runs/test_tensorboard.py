"""What becomes of curves on a disk that is full: TensorBoard writes them in a thread of its own."""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

import pytest
from tensorboard.compat.tensorflow_stub.io.gfile import LocalFileSystem

from outgrow.app.loggers.tensorboard import TensorBoard
from outgrow.core.errors import InputError
from outgrow.training.callbacks import EpochReport, StartReport

REPORT = EpochReport(epoch=1, loss=2.0, val_score=None, seconds=0.5, edges_per_second=10.0, best_epoch=0)
START = StartReport(epoch=0, epochs=3, steps_per_epoch=1, strategy="full", workers=1)
THREAD_DIES = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


@pytest.fixture(autouse=True)
def threads_end_here() -> Iterator[None]:
    """The thread of a board dies within its own test, not while the next one runs."""
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


def fill(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on the disk is full."""

    def write(*given: object) -> NoReturn:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(LocalFileSystem, "append", write)
    monkeypatch.setattr(LocalFileSystem, "write", write)


def test_what_is_left_is_written_at_the_end(tmp_path: Path) -> None:
    with TensorBoard(tmp_path) as board:
        board.on_start(START)
        board.on_epoch(REPORT)
        [file] = tmp_path.iterdir()
        before = file.stat().st_size
    assert file.stat().st_size >= before > 0


@THREAD_DIES
def test_a_full_disk_is_told_when_a_board_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fill(monkeypatch)
    with pytest.raises(InputError, match="cannot write") as told:
        TensorBoard(tmp_path).on_start(START)
    assert "No space left on device" in told.value.got


@THREAD_DIES
def test_a_full_disk_is_told_by_the_last_epoch_or_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use() -> None:
        with TensorBoard(tmp_path) as board:
            board.on_start(START)
            fill(monkeypatch)
            for _ in range(20):
                board.on_epoch(REPORT)

    with pytest.raises(InputError, match="cannot write") as told:
        use()
    assert "No space left on device" in told.value.got


@THREAD_DIES
def test_an_error_that_is_under_way_is_not_hidden(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def use() -> None:
        with TensorBoard(tmp_path) as board:
            board.on_start(START)
            board.on_epoch(REPORT)
            fill(monkeypatch)
            board._epochs.add_scalar("more", 1.0, 2)  # type: ignore[union-attr]
            raise ValueError("first")

    with pytest.raises(ValueError, match="first"):
        use()
