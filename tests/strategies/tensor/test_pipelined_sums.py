"""Rounds of weighted sums on slices are rounds of weighted sums."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.graph.topology import Topology
from outgrow.ops.aggregation.weighted_sum import WeightedSum
from outgrow.ops.memory_pool import LARGE_ROWS
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.chunk_exchange import ChunkExchange
from outgrow.strategies.tensor.chunk_schedule import ChunkGroups, assign_owners, make_schedules
from outgrow.strategies.tensor.pipelined_sums import PipelinedSum
from suites.checks import named, on_workers
from support import normal, random_topology
from thread_group import run_in_threads


class Case(NamedTuple):
    """A graph, the shape of its rows, and how often they are summed up."""

    topology: Topology
    shape: tuple[int, int]
    rounds: int
    chunks: int
    weighted: bool


SMALL, LARGE = random_topology(50, 400), random_topology(3 * LARGE_ROWS, 6 * LARGE_ROWS, seed=5)


def reference(case: Case, rows: Tensor, weight: Tensor | None) -> Tensor:
    """On one worker."""
    for _ in range(case.rounds):
        rows = WeightedSum()(case.topology.block, rows, None, weight)
    return rows


def require_same(comm: Comm, case: Case) -> None:
    """Results and gradients of the own rows, and of the weights, over all workers."""
    topology = case.topology
    owner = assign_owners(topology.indptr, topology.indices, case.chunks, comm.size)
    own = (owner == comm.rank).nonzero()[:, 0]
    groups = ChunkGroups(owner, own, comm.size, (comm.device, comm.device))
    lanes = make_schedules(topology.block.edges, case.chunks, groups)
    rounds = PipelinedSum(ChunkExchange(comm, topology.num_nodes, Timeline()), lanes)
    rows = normal(topology.num_nodes, *case.shape, seed=1).double().requires_grad_()
    mine = rows.detach()[own].requires_grad_()
    weights = [normal(topology.num_edges, case.shape[0], seed=2).double().requires_grad_() for _ in range(2)]
    given = weights if case.weighted else [None, None]
    expected, found = reference(case, rows, given[0]), rounds(mine, given[1], case.rounds, Kind.ACTIVATIONS)
    probe = normal(topology.num_nodes, *case.shape, seed=3).double()
    torch.autograd.backward(expected, probe)
    torch.autograd.backward(found, probe[own])
    partial = comm.all_reduce(weights[1].grad) if weights[1].grad is not None else None
    assert rows.grad is not None
    torch.testing.assert_close(found, expected[own], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(mine.grad, rows.grad[own], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(partial, weights[0].grad, rtol=1e-10, atol=1e-10)


def one_round(comm: Comm) -> None:
    require_same(comm, Case(SMALL, (3, 4), 1, 4, weighted=True))


def several_rounds(comm: Comm) -> None:
    require_same(comm, Case(SMALL, (1, 7), 3, 4, weighted=True))


def without_weights(comm: Comm) -> None:
    require_same(comm, Case(SMALL, (1, 7), 3, 1, weighted=False))


def fewer_columns_than_workers(comm: Comm) -> None:
    require_same(comm, Case(SMALL, (1, 1), 2, 3, weighted=True))


def more_chunks_than_nodes(comm: Comm) -> None:
    require_same(comm, Case(SMALL, (1, 5), 2, 60, weighted=True))


def chunks_of_rows_that_are_padded_where_there_are_many(comm: Comm) -> None:
    require_same(comm, Case(LARGE, (1, 94), 2, 5, weighted=True))


CHECKS = named(
    one_round,
    several_rounds,
    without_weights,
    fewer_columns_than_workers,
    more_chunks_than_nodes,
    chunks_of_rows_that_are_padded_where_there_are_many,
)


test_two_workers = on_workers(CHECKS, 2, run_in_threads)
