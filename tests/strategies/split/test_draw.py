"""What workers draw together over their lines is what they draw when they take turns in one process."""

from __future__ import annotations

import pytest

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.strategies.split.sampler import sample_cooperatively
from strategies.split.split_batches import WAYS, Hops, assert_equal, case_of, together
from suites.checks import named, on_workers
from thread_group import run_in_threads

WORKERS = 3
DEALS = ("scattered", "one node")


def parts_are_the_same(comm: Comm) -> None:
    """Of many batches, also where a worker owns nothing; what is passed on is counted by the worker that sends it."""
    cases, found, added = [case_of(way, WORKERS, deal) for way in WAYS for deal in DEALS], list[list[Hops]](), []
    for case in cases:
        sampler, before = case.samplers()[comm.rank], comm.ledger.bytes_by_link.copy()
        mine = [seeds[case.owner[seeds] == comm.rank] for seeds in case.batches]
        found.append(
            [sample_cooperatively(sampler, comm.background_comm, seeds, 4, step) for step, seeds in enumerate(mine)]
        )
        added.append(comm.ledger.bytes_by_link - before)
    for case, batches, crossed in zip(cases, found, added, strict=True):
        everyones = case.samplers()
        for step, (seeds, hops) in enumerate(zip(case.batches, batches, strict=True)):
            assert_equal(hops, together(everyones, seeds, 4, step)[comm.rank])
        passed_on = [8 * (WORKERS - 1) + 8 * sum(hop.recv_counts) for hops in batches for hop in hops]
        assert crossed == {(Link.PEER, Kind.IDS): sum(passed_on)}


CHECKS = named(parts_are_the_same)


test_three_workers = on_workers(CHECKS, WORKERS, run_in_threads)


@pytest.mark.parametrize("way", WAYS)
def test_one_worker_alone(way: str) -> None:
    case, comm = case_of(way, 1), SingleProcessComm()
    for step, seeds in enumerate(case.batches):
        found = sample_cooperatively(case.samplers()[0], comm.background_comm, seeds, 4, step)
        assert_equal(found, together(case.samplers(), seeds, 4, step)[0])
    assert not comm.ledger.bytes_by_link
