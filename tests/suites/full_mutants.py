"""Mutants of what all strategies use, and of `full`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.engine import shard
from outgrow.graph import halo
from outgrow.nn import epilogue as epilogue_module
from outgrow.runtime.distributed.comm import Comm, ExchangeHandle
from outgrow.strategies.base import FullGraphExecution, Problem
from suites.hits import Hits


@contextmanager
def stream_dropout() -> Iterator[Hits]:
    """Dropout draws from torch's stream, which each worker begins with the same seed."""
    hits, right = Hits(), epilogue_module.epilogue

    def finish(y_NF: Tensor, *, drop: Any, **others: Any) -> Tensor:
        out = right(y_NF, drop=None, **others)
        hits.note(drop is not None and drop.p > 0 and out.numel() > 0)
        return out if drop is None else torch.nn.functional.dropout(out, drop.p)

    with patch.object(epilogue_module, "epilogue", finish):
        yield hits


@contextmanager
def block_degrees() -> Iterator[Hits]:
    """Degrees are those in the worker's block, where a node of the halo has no in-edge but its loop."""
    hits, right = Hits(), shard.build_local_graph

    def local_graph(*given: Any, **options: Any) -> halo.LocalGraph:
        held = right(*given, **options)
        degree = held.block.src_degree.clone()
        degree[len(held.owned) :] = 1
        hits.note(not torch.equal(degree, held.block.src_degree))
        return replace(held, block=replace(held.block, src_degree=degree))

    with patch.object(shard, "build_local_graph", local_graph):
        yield hits


@contextmanager
def edge_numbers_of_the_part() -> Iterator[Hits]:
    """Edges are numbered within the worker's part, so draws for edges differ."""
    hits, right = Hits(), halo.row_edge_ids

    def ids_of(rows: Any) -> Tensor:
        ids = right(rows)
        wrong = torch.arange(rows.num_edges)
        hits.note(ids is not None and not torch.equal(wrong, ids))
        return wrong

    with patch.object(halo, "row_edge_ids", ids_of):
        yield hits


class _Misplaced:
    """Rows that arrive one place off: the last row of an owner is taken for the first of the next."""

    def __init__(self, arrival: ExchangeHandle) -> None:
        self.arrival = arrival

    def wait(self) -> Tensor:
        return self.arrival.wait().roll(1, 0)


@contextmanager
def halo_of_wrong_owner() -> Iterator[Hits]:
    """Rows of the halo are one place off."""
    hits, right = Hits(), shard.PartitionShard.fetch_halo

    def fetch(self: shard.PartitionShard, rows: Tensor, kind: Any, *others: Any) -> ExchangeHandle:
        hits.note(len(self.halo_nodes) > 1)
        return _Misplaced(right(self, rows, kind, *others))

    with patch.object(shard.PartitionShard, "fetch_halo", fetch):
        yield hits


@contextmanager
def forgotten_backward_exchange() -> Iterator[Hits]:
    """Every third exchange sends no gradient back."""
    hits, right, calls = Hits(), shard.PartitionShard.fetch_halo, Counter[int]()

    def fetch(self: shard.PartitionShard, rows: Tensor, kind: Any, *others: Any) -> ExchangeHandle:
        calls[self.comm.rank] += rows.requires_grad
        forgotten = calls[self.comm.rank] % 3 == 2
        hits.note(forgotten and rows.requires_grad and len(self.halo_nodes) > 0)
        return right(self, rows.detach() if forgotten else rows, kind, *others)

    with patch.object(shard.PartitionShard, "fetch_halo", fetch):
        yield hits


@contextmanager
def gradients_not_summed() -> Iterator[Hits]:
    """Every worker keeps the gradient of its own nodes."""
    hits = Hits()

    def sum_gradients(self: Comm, model: torch.nn.Module) -> None:
        hits.note(self.size > 1)

    with patch.object(Comm, "all_reduce_gradients", sum_gradients):
        yield hits


@contextmanager
def mean_over_own_nodes() -> Iterator[Hits]:
    """The loss is the mean over the worker's own labelled nodes."""
    hits, right = Hits(), FullGraphExecution.__init__

    def begin(self: FullGraphExecution, problem: Problem, *, overlap: bool = True) -> None:
        targets = problem.node_targets
        own = len(targets.train_rows)
        hits.note(own != problem.num_train)
        wrong = replace(targets, nodes=targets.nodes[: max(1, own)])
        right(self, replace(problem, targets=wrong), overlap=overlap)

    with patch.object(FullGraphExecution, "__init__", begin):
        yield hits
