"""Workers of torchrun find who is silent, and whether they are out of reach themselves."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from outgrow.runtime.distributed.peer_watchdog import PeerWatchdog


class Notes:
    """A board in this process; it can be cut off, or answer with an error."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self.notes: dict[str, bytes] = {}
        self.open = threading.Event()
        self.open.set()
        self.asked = threading.Event()
        self.broken = False

    def set(self, key: str, value: str) -> None:
        self.notes[key] = value.encode()

    def get(self, key: str) -> bytes:
        return self.notes[key]

    def add(self, key: str, amount: int) -> int:
        self.asked.set()
        self.open.wait()
        if self.broken:
            raise RuntimeError("gone")
        self.numbers[key] = self.numbers.get(key, 0) + amount
        return self.numbers[key]


@contextmanager
def neighbours(board: Notes, heartbeat_seconds: float = 3) -> Iterator[Callable[[], str | None]]:
    """Worker 1 of 3, whose next one is on a host that is not this one; gives a beat whose answer has come."""
    board.set("process/2", "1 elsewhere")
    made = PeerWatchdog(board, 1, 3, heartbeat_seconds)

    def beat() -> str | None:
        counted, said = board.numbers.get("beats/1", 0), made.send_beat()
        deadline = time.monotonic() + (0.05 if not board.open.is_set() or board.broken else 5)
        while board.numbers.get("beats/1", 0) == counted and time.monotonic() < deadline:
            time.sleep(0.001)
        time.sleep(0.01)
        return said

    with made:
        yield beat
        board.open.set()


def test_all_is_well_while_the_next_one_beats() -> None:
    board = Notes()
    with neighbours(board) as beat:
        for _ in range(10):
            board.add("beats/2", 1)
            assert beat() is None
        assert board.numbers["beats/1"] == 10


def test_a_silent_worker_of_another_host_is_named() -> None:
    with neighbours(Notes()) as beat:
        said = [beat() for _ in range(6)]
    assert said[:4] == [None] * 4
    [why, *_] = [why for why in said if why]
    lines = why.splitlines()
    assert lines[0] == "error: worker 2 of 3 was silent for 4 s"
    assert "elsewhere" in lines[2]
    assert [line.split(":")[0].strip() for line in lines[1:]] == ["needed", "got", "repair"]


def test_a_worker_that_gets_no_answer_is_out_of_reach() -> None:
    board = Notes()
    with neighbours(board) as beat:
        assert beat() is None
        board.open.clear()
        said = [beat() for _ in range(4)]
        assert said[:3] == [None] * 3
        assert said[3] is not None
        assert "worker 1 of 3" in said[3]
        assert "is out of reach of the others" in said[3]
        assert "no answer for 4 s" in said[3]


def test_a_short_cut_is_borne() -> None:
    board = Notes()
    with neighbours(board) as beat:
        for _ in range(3):
            board.open.clear()
            assert beat() is None
            assert beat() is None
            board.open.set()
            board.add("beats/2", 1)
            assert beat() is None
            time.sleep(0.05)


def test_a_board_that_has_gone_does_not_answer() -> None:
    board = Notes()
    with neighbours(board) as beat:
        board.broken = True
        assert any(beat() for _ in range(5))


def test_the_end_waits_for_an_answer() -> None:
    """One that comes while Python ends the process would abort it."""
    board = Notes()
    with PeerWatchdog(board, 1, 3, heartbeat_seconds=20) as made:
        board.open.clear()
        made.send_beat()
        board.asked.wait()
        threading.Timer(1.5, board.open.set).start()
    assert board.open.is_set()
    assert not threads()


def test_the_end_does_not_wait_for_long_after_an_error() -> None:
    board, began = Notes(), time.monotonic()
    with suppress(ValueError), PeerWatchdog(board, 1, 3, heartbeat_seconds=20) as made:
        board.open.clear()
        made.send_beat()
        board.asked.wait()
        raise ValueError
    assert time.monotonic() - began < 10
    assert threads()
    board.open.set()
    threads()[0].join(5)


def threads() -> list[threading.Thread]:
    """Those that talk to a board."""
    return [thread for thread in threading.enumerate() if thread.name == "outgrow-neighbours"]
