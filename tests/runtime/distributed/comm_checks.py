"""What `tests.runtime.test_comm` checks on each worker. All workers run the same checks, and talk before they judge."""

from __future__ import annotations

import itertools
import pickle
import socket
from concurrent.futures import ThreadPoolExecutor
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import Comm, ProcessGroupComm, SplitSizes
from suites.checks import named

SHAPES = ((), (3,), (2, 5), (0,))
DTYPES = (torch.float16, torch.float32, torch.float64, torch.int64, torch.uint8, torch.bfloat16)


def random_counts(size: int, draw: int) -> list[list[int]]:
    """Rows that worker ``i`` sends to ``j``: up to 9, some none, and in every third draw whole workers send nothing."""
    random = np.random.default_rng(draw)
    counts = random.integers(0, 10, (size, size)) * (random.random((size, size)) < 0.7)
    if draw % 3 == 0:
        counts[draw % size] = 0
    return counts.tolist()


def route_of(counts: list[list[int]], rank: int) -> SplitSizes:
    """One worker's route, where worker ``i`` sends ``counts[i][j]`` rows to ``j``."""
    return SplitSizes(tuple(counts[rank]), tuple(row[rank] for row in counts))


def rows_for(source: int, target: int, count: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Rows that differ for each pair of workers and each place."""
    numbers = torch.arange(count * int(np.prod(shape))).view(count, *shape) % 7
    return (numbers + 10 * source + 40 * target).to(dtype)


def sent_by(rank: int, counts: list[list[int]], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All rows that a worker sends."""
    return torch.cat([rows_for(rank, peer, count, shape, dtype) for peer, count in enumerate(counts[rank])])


def got_by(rank: int, counts: list[list[int]], shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """All rows that a worker should get."""
    return torch.cat([rows_for(peer, rank, row[rank], shape, dtype) for peer, row in enumerate(counts)])


def rows_go_where_they_should(comm: Comm) -> None:
    """Any route, shape and type."""
    for draw, (shape, dtype) in enumerate(itertools.product(SHAPES, DTYPES)):
        counts = random_counts(comm.size, draw)
        got = comm.all_to_all(sent_by(comm.rank, counts, shape, dtype), route_of(counts, comm.rank), Kind.IDS).wait()
        expected = got_by(comm.rank, counts, shape, dtype)
        assert got.dtype == dtype
        assert got.shape == expected.shape
        assert torch.equal(got, expected), (shape, dtype, counts)


def rows_may_lie_anywhere(comm: Comm) -> None:
    """Rows that are not contiguous."""
    counts = random_counts(comm.size, 4)
    strided = sent_by(comm.rank, counts, (4, 3), torch.float64).transpose(1, 2).contiguous().transpose(1, 2)
    got = comm.all_to_all(strided, route_of(counts, comm.rank), Kind.IDS).wait()
    assert torch.equal(got, got_by(comm.rank, counts, (4, 3), torch.float64))


def several_are_under_way(comm: Comm) -> None:
    """Exchanges may be waited for in any order, and in another one on each worker."""
    for draw in range(6):
        kinds = [random_counts(comm.size, 10 * draw + each) for each in range(4)]
        arrivals = [
            comm.all_to_all(
                sent_by(comm.rank, counts, (each + 1,), torch.float32), route_of(counts, comm.rank), Kind.IDS
            )
            for each, counts in enumerate(kinds)
        ]
        order = np.random.default_rng([draw, comm.rank]).permutation(4).tolist()
        got = {each: arrivals[each].wait() for each in order}
        for each, counts in enumerate(kinds):
            assert torch.equal(got[each], got_by(comm.rank, counts, (each + 1,), torch.float32))


def the_gradient_is_the_transpose(comm: Comm) -> None:
    """What a row earns at its worker comes back to its owner, bit by bit, and as its own kind of bytes."""
    for draw in range(8):
        counts, shape = random_counts(comm.size, draw), ((4,), (2, 3))[draw % 2]
        route = route_of(counts, comm.rank)
        sent = sent_by(comm.rank, counts, shape, torch.float64).requires_grad_()
        got = comm.all_to_all(sent, route, Kind.ACTIVATIONS).wait()
        (got * got_by(comm.rank, counts, shape, torch.float64)).sum().backward()
        assert sent.grad is not None
        assert torch.equal(sent.grad, sent.detach())


def gradients_of_several_exchanges(comm: Comm) -> None:
    """Two exchanges of the same rows, a sum over both, and a second layer on top."""
    counts = random_counts(comm.size, 5)
    route = route_of(counts, comm.rank)
    sent = torch.ones(sum(route.send), 2, dtype=torch.float64, requires_grad=True)
    first, second = comm.all_to_all(sent, route, Kind.ACTIVATIONS), comm.all_to_all(3 * sent, route, Kind.ACTIVATIONS)
    there = second.wait() + first.wait()
    again = comm.all_to_all(there * 5, route.reverse, Kind.ACTIVATIONS).wait()
    (again * 7).sum().backward()
    assert sent.grad is not None
    assert torch.equal(sent.grad, torch.full_like(sent, 4 * 5 * 7))


def exchanged(line: Comm, calls: int, first: int) -> list[tuple[Tensor, Tensor]]:
    """What so many calls brought, and what they should have brought."""
    found = []
    for draw in range(first, first + calls):
        counts, dtype = random_counts(line.size, draw), DTYPES[draw % len(DTYPES)]
        mine = sent_by(line.rank, counts, (3,), dtype)
        got = line.all_to_all(mine, route_of(counts, line.rank), Kind.IDS).wait()
        found.append((got, got_by(line.rank, counts, (3,), dtype)))
    return found


def another_line_is_for_another_thread(comm: Comm) -> None:
    """Calls of three threads do not meet, however many each makes; the same counts of rows are under way on all."""
    aside, third = comm.background_comms(2)
    wrong = []
    for calls, calls_aside in ((40, 90), (90, 40), (0, 5)):
        with ThreadPoolExecutor(2) as pool:
            other = pool.submit(exchanged, aside, calls_aside, 3)
            others = pool.submit(exchanged, third, calls, 5)
            mine = exchanged(comm, calls, 0)
            for name, pairs in (("line", mine), ("aside", other.result()), ("third", others.result())):
                wrong += [name for got, expected in pairs if not torch.equal(got, expected)]
    assert wrong == []
    assert comm.background_comm is aside
    assert comm.size == 1 or [line is third for line in comm.background_comms(3)] == [False, True, False]
    assert (aside.rank, aside.size, aside.ledger) == (comm.rank, comm.size, comm.ledger)


def sums_and_gradients_beside_another_line(comm: Comm) -> None:
    """All that the first line carries, while rows travel on the other."""
    wrong, counts = [], random_counts(comm.size, 4)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(exchanged, comm.background_comm, 60, 7)
        for turn in range(20):
            sent = sent_by(comm.rank, counts, (3,), torch.float64).requires_grad_()
            comm.all_to_all(sent, route_of(counts, comm.rank), Kind.ACTIVATIONS).wait().sum().backward()
            total = comm.all_reduce(torch.full((5,), turn + comm.rank))
            expected = torch.full((5,), comm.size * turn + comm.size * (comm.size - 1) // 2)
            wrong += [turn] if sent.grad is None or not (sent.grad == 1).all() else []
            wrong += [turn] if not torch.equal(total, expected) else []
            wrong += (
                [turn] if comm.broadcast(turn + comm.rank, root=turn % comm.size) != turn + turn % comm.size else []
            )
        wrong += [-1 for got, expected in other.result() if not torch.equal(got, expected)]
    assert wrong == []


def bytes_on_another_line_are_counted_too(comm: Comm) -> None:
    """In the same ledger."""
    comm.ledger.bytes_by_link.clear()
    comm.background_comm.all_to_all(
        torch.zeros(comm.size, 2), route_of([[1] * comm.size] * comm.size, comm.rank), Kind.TOPOLOGY
    ).wait()
    assert dict(comm.ledger.bytes_by_link) == {(Link.PEER, Kind.TOPOLOGY): 8 * (comm.size - 1)}


def sums_are_the_same_everywhere(comm: Comm) -> None:
    """In place, and the same bits on all workers."""
    for dtype in (torch.float32, torch.float64, torch.int64):
        mine = (torch.arange(101) * 0.1 + comm.rank).to(dtype)
        total = comm.all_reduce(mine)
        everybody = comm.all_gather_object(total)
        assert total is mine
        assert all(torch.equal(total, other) for other in everybody)
        right = sum((torch.arange(101) * 0.1 + rank).to(dtype) for rank in range(comm.size))
        torch.testing.assert_close(total, right)


def objects_are_shared(comm: Comm) -> None:
    """From any worker to all."""
    for root in range(comm.size):
        given = {"from": comm.rank, "rows": torch.arange(comm.rank)}
        got = comm.broadcast(given, root=root)
        assert got["from"] == root
        assert torch.equal(got["rows"], torch.arange(root))
    assert comm.broadcast(None) is None


def objects_are_gathered(comm: Comm) -> None:
    """Of any size, in the order of ranks."""
    assert comm.all_gather_object("x" * (1 + 100 * comm.rank)) == ["x" * (1 + 100 * rank) for rank in range(comm.size)]


class Mixed(nn.Module):
    """Parameters of two types; of each type one has a gradient on all workers, one on the last and one on none."""

    def __init__(self, rank: int, size: int) -> None:
        super().__init__()
        self.values = nn.ParameterDict()
        for dtype in (torch.float32, torch.float64):
            for where in ("all", "last", "none", "fixed"):
                name = f"{where}-{str(dtype).removeprefix('torch.')}"
                self.values[name] = nn.Parameter(torch.zeros(2, 3, dtype=dtype), requires_grad=where != "fixed")
                if where == "all" or (where == "last" and rank == size - 1):
                    self.values[name].grad = torch.full((2, 3), rank + 1, dtype=dtype)


def gradients_are_summed(comm: Comm) -> None:
    """Also where only some workers have one; what has none anywhere stays without."""
    model = Mixed(comm.rank, comm.size)
    before = comm.ledger.bytes_by_link[Link.PEER, Kind.PARAMETERS]
    comm.all_reduce_gradients(model)
    sent = comm.ledger.bytes_by_link[Link.PEER, Kind.PARAMETERS] - before
    assert model.values["fixed-float32"].grad is None
    for dtype in (torch.float32, torch.float64):
        name = str(dtype).removeprefix("torch.")
        for where, value in (("all", comm.size * (comm.size + 1) / 2), ("last", comm.size)):
            grad = model.values[f"{where}-{name}"].grad
            assert grad is not None
            assert torch.equal(grad, torch.full((2, 3), value, dtype=dtype))
        assert model.values[f"none-{name}"].grad is None
    numbers = 3 * 6 + 3  # gradients of three parameters, and whether each has one
    assert sent == sum(2 * numbers * width * (comm.size - 1) // comm.size for width in (4, 8))


def parameters_are_shared(comm: Comm) -> None:
    """Those of worker 0, buffers too."""
    model = nn.BatchNorm1d(3)
    for value in [*model.parameters(), *model.buffers()]:
        value.data.fill_(comm.rank + 2)
    comm.broadcast_parameters(model)
    assert all(bool((value == 2).all()) for value in [*model.parameters(), *model.buffers()])


def bytes_are_counted_by_the_sender(comm: Comm) -> None:
    """Rows and their gradients; what a worker sends to itself is not counted."""
    counts = [[100 * source + target + 1 for target in range(comm.size)] for source in range(comm.size)]
    ledger, route = comm.ledger, route_of(counts, comm.rank)
    ledger.bytes_by_link.clear()
    sent = torch.ones(sum(route.send), 3, requires_grad=True)
    comm.all_to_all(sent, route, Kind.FEATURES, grad_kind=Kind.METRICS).wait().sum().backward()
    others = [peer for peer in range(comm.size) if peer != comm.rank]
    row_bytes = 3 * 4
    assert dict(ledger.bytes_by_link) == {
        (Link.PEER, Kind.FEATURES): row_bytes * sum(counts[comm.rank][peer] for peer in others),
        (Link.PEER, Kind.METRICS): row_bytes * sum(counts[peer][comm.rank] for peer in others),
    }


def bytes_of_collectives(comm: Comm) -> None:
    """Sums as a ring, shared objects at their root, gathered ones at the length of the longest."""
    ledger, peers = comm.ledger, comm.size - 1
    ledger.bytes_by_link.clear()
    comm.all_reduce(torch.zeros(1000), Kind.GRADIENTS)
    comm.broadcast(b"x" * 50, Kind.TOPOLOGY, root=1)
    comm.all_gather_object(b"y" * (10 * comm.rank))
    expected = {
        (Link.PEER, Kind.GRADIENTS): 2 * 4000 * peers // comm.size,
        (Link.PEER, Kind.METRICS): peers * len(pickle.dumps(b"y" * (10 * peers))),
    }
    if comm.rank == 1:
        expected[Link.PEER, Kind.TOPOLOGY] = peers * len(pickle.dumps(b"x" * 50))
    assert dict(ledger.bytes_by_link) == expected


def links_are_told_apart(comm: Comm) -> None:
    """Bytes to a worker of the same host cross `PEER`, others `NETWORK`; here workers 0 and 1 share a host."""
    with patch.object(socket, "gethostname", lambda: "one" if comm.rank < 2 else "two"):
        group = ProcessGroupComm()
    counts = [[1] * comm.size] * comm.size
    group.all_to_all(torch.zeros(comm.size, 2), route_of(counts, comm.rank), Kind.IDS).wait()
    near = 1 if comm.rank < 2 else 0
    crossed = {link: number for (link, _), number in group.ledger.bytes_by_link.items()}
    assert group.hosts == ("one", "one", *("two",) * (comm.size - 2))
    assert crossed == {link: 8 * n for link, n in ((Link.PEER, near), (Link.NETWORK, comm.size - 1 - near)) if n}
    assert comm.hosts == (socket.gethostname(),) * comm.size


CHECKS = named(
    rows_go_where_they_should,
    rows_may_lie_anywhere,
    several_are_under_way,
    the_gradient_is_the_transpose,
    gradients_of_several_exchanges,
    another_line_is_for_another_thread,
    sums_and_gradients_beside_another_line,
    bytes_on_another_line_are_counted_too,
    sums_are_the_same_everywhere,
    objects_are_shared,
    objects_are_gathered,
    gradients_are_summed,
    parameters_are_shared,
    bytes_are_counted_by_the_sender,
    bytes_of_collectives,
    links_are_told_apart,
)
