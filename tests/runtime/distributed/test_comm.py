"""What workers say to each other arrives, is counted, and is differentiable."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from tests.runtime.distributed.comm_checks import CHECKS, Mixed, links_are_told_apart

from outgrow.core.errors import WorkerError
from outgrow.core.ledger import Kind, Ledger
from outgrow.runtime.distributed.comm import CommunicationError, SingleProcessComm, SplitSizes, communication_errors
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import WorkerContext
from suites.checks import on_workers
from thread_group import run_in_threads

test_three_workers = on_workers(CHECKS, 3, run_workers)
test_three_threads = on_workers(
    {name: check for name, check in CHECKS.items() if name != links_are_told_apart.__name__}, 3, run_in_threads
)


def test_one_worker_alone_says_nothing() -> None:
    ledger = Ledger()
    comm, rows = SingleProcessComm(ledger), torch.ones(3, 2, requires_grad=True)
    assert (comm.rank, comm.size, comm.is_rank_zero, comm.hosts) == (0, 1, True, (socket.gethostname(),))
    for line in (comm, comm.background_comm):
        assert line.all_to_all(rows, SplitSizes((3,), (3,)), Kind.IDS).wait() is rows
    assert comm.all_reduce(rows) is rows
    value = object()
    assert comm.broadcast(value) is value
    assert comm.all_gather_object(value) == [value]
    model = Mixed(0, 1)
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    comm.all_reduce_gradients(model)
    comm.broadcast_parameters(model)
    assert all(parameter.grad is before[name] for name, parameter in model.named_parameters())
    comm.barrier()
    comm.close()
    assert not ledger.bytes_by_link


def test_a_peer_that_is_gone(scratch: Path) -> None:
    def task(place: WorkerContext) -> None:
        comm = place.comm
        comm.barrier()
        if comm.rank == 1:
            os._exit(3)
        for talk in (
            lambda: comm.all_to_all(torch.zeros(2, 4), SplitSizes((1, 1), (1, 1)), Kind.IDS).wait(),
            lambda: comm.all_reduce(torch.zeros(4)),
            lambda: comm.broadcast("x", root=1),
            lambda: comm.all_gather_object("x"),
            comm.barrier,
        ):
            try:
                talk()
            except CommunicationError as error:
                place.send_message(type(error.__cause__))

    heard: list[object] = []
    with pytest.raises(WorkerError, match="worker 1 of 2"):
        run_workers(task, 2, on_message=heard.append)
    assert heard == [RuntimeError] * 5


def test_only_what_torch_raises_is_taken_for_a_lost_peer() -> None:
    with pytest.raises(CommunicationError, match="reset"), communication_errors():
        raise RuntimeError("connection reset")
    with pytest.raises(KeyError), communication_errors():
        raise KeyError("x")


@pytest.mark.parametrize("route", [SplitSizes((1, 2), (3, 4)), SplitSizes((), ())])
def test_the_way_back(route: SplitSizes) -> None:
    assert route.reverse == SplitSizes(route.receive, route.send)
    assert route.reverse.reverse == route
