"""Workers of one machine as if they were on several hosts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from outgrow.core.ledger import Link
from outgrow.runtime.distributed.comm import Comm, ProcessGroupComm


@contextmanager
def on_hosts(comm: Comm, hosts: Sequence[str]) -> Iterator[None]:
    """The same workers as if they were on these hosts; a single one is on one anyway."""
    if comm.size == 1:
        yield
        return
    assert isinstance(comm, ProcessGroupComm)
    before = comm.hosts, comm.links
    comm.hosts = tuple(hosts)
    comm.links = [Link.PEER if host == hosts[comm.rank] else Link.NETWORK for host in hosts]
    try:
        yield
    finally:
        comm.hosts, comm.links = before


def spread_over(comm: Comm, hosts: int) -> list[str]:
    """The host of each worker, where consecutive workers share one."""
    return [f"host{rank * hosts // comm.size}" for rank in range(comm.size)]


def hosts_of_their_own(comm: Comm) -> list[str]:
    """The names of as many hosts as there are workers."""
    return spread_over(comm, comm.size)
