"""Workers that are threads fail as workers do, and have nothing in common that they would change."""

from __future__ import annotations

import threading
import time

import pytest
import torch

import thread_group
from outgrow.core.ledger import Kind
from outgrow.runtime.distributed.comm import SplitSizes
from outgrow.runtime.distributed.worker import WorkerContext
from thread_group import Turns, run_in_threads


def test_the_error_is_that_of_the_worker_that_failed() -> None:
    def task(place: WorkerContext) -> None:
        if place.comm.rank == 1:
            raise KeyError("its own")
        place.comm.all_to_all(torch.zeros(3, 2), SplitSizes((1, 1, 1), (1, 1, 1)), Kind.IDS).wait()

    with pytest.raises(KeyError, match="its own"):
        run_in_threads(task, 3)


def test_a_message_that_nobody_wants_is_noticed() -> None:
    def task(place: WorkerContext) -> None:
        sizes = SplitSizes((0, 1), (0, 0)) if place.comm.rank == 0 else SplitSizes((0, 0), (0, 0))
        place.comm.all_to_all(torch.zeros(sum(sizes.send), 2), sizes, Kind.IDS).wait()

    with pytest.raises(AssertionError):
        run_in_threads(task, 2)


def test_each_has_a_copy_of_the_task() -> None:
    model = torch.nn.Linear(2, 2)

    def task(place: WorkerContext) -> float:
        with torch.no_grad():
            model.weight.fill_(place.comm.rank)
        place.comm.barrier()
        return model.weight.sum().item()

    before = model.weight.clone()
    assert run_in_threads(task, 3) == [0, 4, 8]
    assert torch.equal(model.weight, before)


def test_threads_of_a_worker_may_wait_for_others() -> None:
    def task(place: WorkerContext) -> int:
        answers: list[int] = []

        def ask() -> None:
            rows = torch.full((2, 1), place.comm.rank)
            answers.extend(place.comm.background_comm.all_to_all(rows, SplitSizes((1, 1), (1, 1)), Kind.IDS).wait())

        for _ in range(20):
            asker = threading.Thread(target=ask)
            asker.start()
            asker.join()
        return sum(int(each) for each in answers)

    assert run_in_threads(task, 2) == [20, 20]


def test_one_computes_at_a_time() -> None:
    turns, computing, most = Turns(), list[int](), list[int]()

    def compute(number: int) -> None:
        turns.begin()
        for _ in range(5):
            computing.append(number)
            time.sleep(0.001)
            most.append(len(computing))
            computing.remove(number)
            with turns.waiting():
                time.sleep(0.001)
        turns.end()

    threads = [threading.Thread(target=compute, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1] * 15


@pytest.mark.parametrize("computes", [True, False])
def test_a_turn_is_shared_only_if_its_thread_waits_in_an_unknown_way(
    computes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(thread_group, "PATIENCE_SECONDS", 0.1)
    turns, has_turn, ended = Turns(), threading.Event(), threading.Event()
    alone = list[bool]()

    def hold() -> None:
        turns.begin()
        has_turn.set()
        until = time.monotonic() + 1
        while time.monotonic() < until:
            if not computes:
                time.sleep(0.05)
        ended.set()
        turns.end()

    def follow() -> None:
        has_turn.wait()
        turns.begin()
        alone.append(ended.is_set())
        turns.end()

    threads = [threading.Thread(target=each) for each in (hold, follow)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert alone == [computes or not hasattr(time, "pthread_getcpuclockid")]
