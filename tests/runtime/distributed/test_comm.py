"""What workers say to each other arrives, is counted, and is differentiable."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest
import torch
from tests.runtime.distributed.comm_checks import CHECKS, Mixed

from outgrow.core.errors import WorkerError
from outgrow.core.ledger import Kind, Ledger
from outgrow.runtime.distributed.comm import Alone, CommunicationError, Route, talking
from outgrow.runtime.distributed.launch import run_workers
from outgrow.runtime.distributed.worker import Workplace
from suites.checks import on_workers

test_three_workers = on_workers(CHECKS, 3, run_workers)


def test_one_worker_alone_says_nothing() -> None:
    ledger = Ledger()
    comm, rows = Alone(ledger), torch.ones(3, 2, requires_grad=True)
    assert (comm.rank, comm.size, comm.leads, comm.hosts) == (0, 1, True, (socket.gethostname(),))
    for line in (comm, comm.aside):
        assert line.rows(rows, Route((3,), (3,)), Kind.IDS).wait() is rows
    assert comm.sum_(rows) is rows
    value = object()
    assert comm.broadcast(value) is value
    assert comm.gather(value) == [value]
    model = Mixed(0, 1)
    before = {name: parameter.grad for name, parameter in model.named_parameters()}
    comm.sum_gradients(model)
    comm.broadcast_parameters(model)
    assert all(parameter.grad is before[name] for name, parameter in model.named_parameters())
    comm.barrier()
    comm.close()
    assert not ledger.crossed


def test_a_peer_that_is_gone(scratch: Path) -> None:
    def task(place: Workplace) -> None:
        comm = place.comm
        comm.barrier()
        if comm.rank == 1:
            os._exit(3)
        for talk in (
            lambda: comm.rows(torch.zeros(2, 4), Route((1, 1), (1, 1)), Kind.IDS).wait(),
            lambda: comm.sum_(torch.zeros(4)),
            lambda: comm.broadcast("x", root=1),
            lambda: comm.gather("x"),
            comm.barrier,
        ):
            try:
                talk()
            except CommunicationError as error:
                place.tell(type(error.__cause__))

    heard: list[object] = []
    with pytest.raises(WorkerError, match="worker 1 of 2"):
        run_workers(task, 2, hear=heard.append)
    assert heard == [RuntimeError] * 5


def test_only_what_torch_raises_is_taken_for_a_lost_peer() -> None:
    with pytest.raises(CommunicationError, match="reset"), talking():
        raise RuntimeError("connection reset")
    with pytest.raises(KeyError), talking():
        raise KeyError("x")


@pytest.mark.parametrize("route", [Route((1, 2), (3, 4)), Route((), ())])
def test_the_way_back(route: Route) -> None:
    assert route.back == Route(route.receive, route.send)
    assert route.back.back == route
