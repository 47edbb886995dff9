"""Workers of one round agree on a name, whatever earlier rounds have left in the store."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from outgrow.core.errors import WorkerError
from outgrow.runtime.distributed.rendezvous import Round as AgreedRound
from outgrow.runtime.distributed.rendezvous import agree_on_round

SECONDS = 20.0


class Threads:
    """Workers that are threads, each with a connection of its own to one store."""

    def __init__(self, server: TCPStore, pool: ThreadPoolExecutor) -> None:
        self.server, self.pool = server, pool

    def connect(self) -> TCPStore:
        return TCPStore("127.0.0.1", self.server.port, is_master=False, timeout=timedelta(seconds=SECONDS))

    def start(self, rank: int, size: int, seconds: float = SECONDS, **options: int) -> Future[AgreedRound]:
        return self.pool.submit(agree_on_round, self.connect(), rank, size, seconds=seconds, **options)

    def finish(self, size: int, **options: int) -> AgreedRound:
        [agreed] = {each.result(SECONDS) for each in [self.start(rank, size, **options) for rank in range(size)]}
        return agreed


@pytest.fixture
def group() -> Iterator[Threads]:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with ThreadPoolExecutor(8) as pool:
        yield Threads(server, pool)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_each_round_has_a_name_of_its_own_and_knows_how_many_there_were(group: Threads, size: int) -> None:
    rounds = [group.finish(size) for _ in range(3)]
    assert [each.attempt for each in rounds] == [0, 1, 2]
    assert len({each.name for each in rounds}) == 3


@pytest.mark.parametrize(
    ("variables", "same"),
    [
        ({"TORCHELASTIC_USE_AGENT_STORE": "True"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RUN_ID": "1"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RUN_ID": "job 7"}, True),
        ({"TORCHELASTIC_USE_AGENT_STORE": "False", "TORCHELASTIC_RUN_ID": "none"}, False),
        ({}, False),
    ],
)
def test_rounds_know_their_job_if_anything_tells_it(
    variables: dict[str, str], same: bool, group: Threads, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCHELASTIC_USE_AGENT_STORE", "TORCHELASTIC_RUN_ID"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    first, second = group.finish(2), group.finish(3)
    assert first.job == second.job
    assert bool(first.job) == same


def test_a_later_training_of_the_same_process_is_no_restart(group: Threads) -> None:
    assert [group.finish(2, training=number).attempt for number in (0, 1, 0, 1)] == [0, 0, 1, 1]


def test_a_restart_that_one_launcher_alone_has_counted_counts_for_all(group: Threads) -> None:
    """As of a store that is new in each round."""
    agreed = [group.start(rank, 3, restarts=restarts) for rank, restarts in enumerate((0, 2, 1))]
    assert {each.result(SECONDS).attempt for each in agreed} == {2}


def test_workers_that_have_died_before_all_had_come_are_not_waited_for(group: Threads) -> None:
    """Worker 2 of a round never comes; 1 has accepted and died; in the next round all come, the first of them late."""
    dead = [group.start(rank, 3, seconds=0.5) for rank in (0, 1)]
    for each in dead:
        with pytest.raises(WorkerError, match=r"has not met the others"):
            each.result(SECONDS)
    early = [group.start(rank, 3) for rank in (1, 2)]
    time.sleep(0.3)
    assert not any(each.done() for each in early)
    last = group.start(0, 3)
    assert len({each.result(SECONDS) for each in (*early, last)}) == 1


def test_a_token_of_a_dead_worker_is_not_taken_for_it(group: Threads) -> None:
    store = group.connect()
    store.set("token/1", json.dumps(["of a dead worker", 0]))
    store.set("accepted/1", json.dumps("of a dead round"))
    first = group.start(0, 2)
    while not store.check(["proposal"]):
        time.sleep(0.01)
    time.sleep(0.2)
    assert not first.done()
    second = group.start(1, 2)
    assert first.result(SECONDS) == second.result(SECONDS)


def test_who_is_missing_is_named(group: Threads) -> None:
    waiting = group.start(0, 4, seconds=0.3), group.start(2, 4, seconds=0.3)
    for each in waiting:
        with pytest.raises(WorkerError) as caught:
            each.result(SECONDS)
        assert caught.value.got == "none of 1, 3"


@pytest.mark.parametrize("rank", [0, 1])
def test_what_is_left_of_an_earlier_start_gives_way(group: Threads, rank: int) -> None:
    left = group.start(rank, 2)
    store = group.connect()
    while not store.check([f"token/{rank}"]):
        time.sleep(0.01)
    agreed = group.start(rank, 2)
    with pytest.raises(WorkerError, match="has been replaced"):
        left.result(SECONDS)
    other = group.start(1 - rank, 2)
    assert agreed.result(SECONDS) == other.result(SECONDS)


def test_an_orphan_does_not_wait(group: Threads, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = time.monotonic()
    parents = iter([1, 1, 2])
    monkeypatch.setattr("outgrow.runtime.distributed.rendezvous.os.getppid", lambda: next(parents))
    with pytest.raises(WorkerError):
        agree_on_round(group.connect(), 0, 2, seconds=SECONDS)
    assert time.monotonic() - begun < SECONDS / 2
