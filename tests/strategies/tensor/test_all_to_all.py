"""Columns dealt out: what each worker gets, the way back, and the bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from functools import reduce
from itertools import pairwise, product

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from outgrow.core.ledger import Kind, Link
from outgrow.runtime.distributed.comm import Comm, SingleProcessComm
from outgrow.strategies.tensor.all_to_all import ColumnExchange, column_ranges
from suites.checks import named, on_workers
from support import normal
from thread_group import run_in_threads

NODES, WORKERS = 23, 3
SCORES = 4


def in_ranges(*sizes: int) -> Tensor:
    """The owner of each node, where worker 0 owns the first ones."""
    return torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))


OWNERS = {
    "uneven ranges": in_ranges(7, 5, 11),
    "a worker without nodes": in_ranges(9, 0, 14),
    "the first one without nodes": in_ranges(0, 8, 15),
    "ranges in another order": (in_ranges(7, 5, 11) + 2) % WORKERS,
    "scattered": torch.arange(NODES) * 7 % NODES % WORKERS,
    "scattered, and one without nodes": torch.arange(NODES) % 2 * 2,
}
SHAPES = [(1, 7), (1, 6), (3, 5), (2, 2), (1, 1)]
"""Channels and columns; of one or two columns some workers get none."""
CASES = list(product(OWNERS, SHAPES))


@given(columns=st.integers(0, 200), workers=st.integers(1, 40))
def test_columns_are_dealt_out_evenly_and_in_order(columns: int, workers: int) -> None:
    cut = column_ranges(columns, workers)
    widths = [last - first for first, last in cut]
    assert len(cut) == workers
    assert cut[0][0] == 0
    assert cut[-1][1] == columns
    assert all(before[1] == after[0] for before, after in pairwise(cut))
    assert max(widths) - min(widths) <= 1
    assert widths.count(0) == max(0, workers - columns)


def own_of(name: str, comm: Comm) -> Tensor:
    return (OWNERS[name] == comm.rank).nonzero()[:, 0]


def view_of(rows: Tensor) -> Tensor:
    """The same numbers as some columns of wider rows."""
    return torch.nn.functional.pad(rows, (1, 2))[..., 1:-2]


def split_and_back(comm: Comm, layout: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, bool]]:
    """Whether a split gives the own columns of all nodes, and takes their gradients back."""
    for name, (channels, columns) in CASES:
        own = own_of(name, comm)
        deal, mine = ColumnExchange(comm, own), slice(*column_ranges(columns, comm.size)[comm.rank])
        whole, probe = normal(NODES, channels, columns), normal(NODES, channels, columns, seed=1)
        rows = whole[own].requires_grad_()
        found = deal.to_slices(layout(rows), Kind.ACTIVATIONS).wait()
        [grad] = torch.autograd.grad((found * probe[:, :, mine]).sum(), rows)
        yield f"{name} {columns}", torch.equal(found, whole[:, :, mine]) and torch.equal(grad, probe[own])


def gather_and_back(comm: Comm, layout: Callable[[Tensor], Tensor]) -> Iterator[tuple[str, bool]]:
    """Whether a gather gives the whole rows of the own nodes, and takes their gradients back."""
    for name, (channels, columns) in CASES:
        own = own_of(name, comm)
        deal, mine = ColumnExchange(comm, own), slice(*column_ranges(columns, comm.size)[comm.rank])
        whole, probe = normal(NODES, channels, columns), normal(NODES, channels, columns, seed=1)
        slices = whole[:, :, mine].clone().requires_grad_()
        found = deal.to_rows(layout(slices), columns, Kind.ACTIVATIONS)
        [grad] = torch.autograd.grad((found * probe[own]).sum(), slices)
        yield f"{name} {columns}", torch.equal(found, whole[own]) and torch.equal(grad, probe[:, :, mine])


def wrong(results: Iterator[tuple[str, bool]]) -> list[str]:
    return [name for name, right in results if not right]


def a_split_gives_columns_of_all_nodes(comm: Comm) -> None:
    assert wrong(split_and_back(comm, lambda rows: rows)) == []


def a_split_of_a_view_does_too(comm: Comm) -> None:
    assert wrong(split_and_back(comm, view_of)) == []


def a_gather_gives_whole_rows_of_own_nodes(comm: Comm) -> None:
    assert wrong(gather_and_back(comm, lambda rows: rows)) == []


def a_gather_of_a_view_does_too(comm: Comm) -> None:
    assert wrong(gather_and_back(comm, view_of)) == []


def splits_may_be_under_way_together(comm: Comm) -> None:
    """Waited for in the other order, there and back."""
    own = own_of("scattered", comm)
    deal, mine = ColumnExchange(comm, own), slice(*column_ranges(7, comm.size)[comm.rank])
    wholes = [normal(NODES, 2, 7, seed=seed) for seed in (0, 1)]
    rows = [whole[own].requires_grad_() for whole in wholes]
    under = [deal.to_slices(each, Kind.ACTIVATIONS) for each in rows]
    second, first = under[1].wait(), under[0].wait()
    grads = torch.autograd.grad((first * 2 + second * 3).sum(), rows)
    assert torch.equal(first, wholes[0][:, :, mine])
    assert torch.equal(second, wholes[1][:, :, mine])
    assert [grad.unique().tolist() for grad in grads] == [[2.0], [3.0]]


def everywhere_gives_all_rows_and_sums_gradients(comm: Comm) -> None:
    """The sum is made in the order of the workers: the same bits on any of them."""
    results = []
    for name in OWNERS:
        own = own_of(name, comm)
        deal, whole = ColumnExchange(comm, own), normal(NODES, SCORES)
        probes = [normal(NODES, SCORES, seed=1 + rank) for rank in range(comm.size)]
        rows = whole[own].requires_grad_()
        found = deal.all_gather_rows(rows, Kind.ACTIVATIONS)
        [grad] = torch.autograd.grad((found * probes[comm.rank]).sum(), rows)
        results.append((name, torch.equal(found, whole) and torch.equal(grad, reduce(torch.add, probes)[own])))
    assert wrong(iter(results)) == []


def crossed(comm: Comm) -> dict[Kind, int]:
    """What this worker has sent since this was asked for last."""
    found = {kind: count for (link, kind), count in comm.ledger.bytes_by_link.items() if link == Link.PEER and count}
    comm.ledger.bytes_by_link.clear()
    return found


def all_bytes_are_the_formula(comm: Comm) -> None:
    """Of a split, of a gather, and of both ways back."""
    unexpected, found, expected = [], Counter[str](), Counter[str]()
    for (name, (channels, columns)), dtype in product(CASES, (torch.float64, torch.float32)):
        own = own_of(name, comm)
        deal, (first, last) = ColumnExchange(comm, own), column_ranges(columns, comm.size)[comm.rank]
        crossed(comm)
        rows = torch.ones(len(own), channels, columns, dtype=dtype, requires_grad=True)
        slices = deal.to_slices(rows, Kind.FEATURES).wait()
        deal.to_rows(slices, columns, Kind.ACTIVATIONS).sum().backward()
        away, others = len(own) * (columns - last + first), (NODES - len(own)) * (last - first)
        row = channels * dtype.itemsize
        formula = {Kind.FEATURES: away * row, Kind.ACTIVATIONS: others * row, Kind.GRADIENTS: (away + others) * row}
        sent = crossed(comm)
        unexpected += [] if sent == {kind: count for kind, count in formula.items() if count} else [(name, columns)]
        case = f"{name} {channels} {columns} {dtype}"
        found[case] += sum(sent.values())
        expected[case] += 4 * away * row
    totals = [sum(counts, Counter[str]()) for counts in zip(*comm.all_gather_object((found, expected)), strict=True)]
    assert unexpected == []
    assert totals[0] == totals[1]


def narrow_rows_go_to_all_others(comm: Comm) -> None:
    """Scores, and the nodes of each worker where these are no ranges in the order of the workers."""
    results = []
    for name, owner in OWNERS.items():
        own = own_of(name, comm)
        crossed(comm)
        deal = ColumnExchange(comm, own)
        dealt = crossed(comm)
        deal.all_gather_rows(torch.ones(len(own), SCORES, requires_grad=True), Kind.ACTIVATIONS).sum().backward()
        found, others = crossed(comm), comm.size - 1
        ids = 0 if bool((owner.diff() >= 0).all()) else len(own) * others * 8
        there, back = len(own) * SCORES * others * 4, (NODES - len(own)) * SCORES * 4
        right = found.get(Kind.ACTIVATIONS, 0) == there and found.get(Kind.GRADIENTS, 0) == back
        results.append((name, right and dealt.get(Kind.IDS, 0) == ids and dealt.keys() <= {Kind.IDS, Kind.METRICS}))
    assert wrong(iter(results)) == []


CHECKS = named(
    a_split_gives_columns_of_all_nodes,
    a_split_of_a_view_does_too,
    a_gather_gives_whole_rows_of_own_nodes,
    a_gather_of_a_view_does_too,
    splits_may_be_under_way_together,
    everywhere_gives_all_rows_and_sums_gradients,
    all_bytes_are_the_formula,
    narrow_rows_go_to_all_others,
)


test_three_workers = on_workers(CHECKS, WORKERS, run_in_threads)


def test_the_cases_are_as_odd_as_they_should_be() -> None:
    counts = [owner.bincount(minlength=WORKERS).tolist() for owner in OWNERS.values()]
    assert all(sum(each) == NODES and len(each) == WORKERS for each in counts)
    assert any(0 in each for each in counts)
    assert any(len(set(each)) == WORKERS for each in counts)


def test_one_worker_has_all_columns_and_sends_nothing() -> None:
    comm, rows = SingleProcessComm(), normal(NODES, 2, 5).requires_grad_()
    deal = ColumnExchange(comm, torch.arange(NODES))
    assert deal.local_columns(5) == (0, 5)
    slices = deal.to_slices(rows, Kind.ACTIVATIONS).wait()
    assert torch.equal(slices, rows)
    whole = deal.to_rows(slices, 5, Kind.ACTIVATIONS)
    assert torch.equal(whole, rows)
    [grad] = torch.autograd.grad((whole * 3).sum(), rows)
    assert grad.unique().tolist() == [3.0]
    scores = normal(NODES, SCORES)
    assert deal.all_gather_rows(scores, Kind.ACTIVATIONS) is scores
    assert not comm.ledger.bytes_by_link
