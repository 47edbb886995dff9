"""Mutants of `tensor`, the three faults of the released code of NeutronTP among them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from outgrow.engine.objective import NodeObjective, Objective
from outgrow.nn.layer import Layer
from outgrow.ops.aggregation.base import Aggregate
from outgrow.ops.aggregation.relational import RelationScale
from outgrow.strategies.base import Problem
from outgrow.strategies.tensor import all_to_all, chunk_exchange, pipelined_sums, pipelines
from outgrow.strategies.tensor.all_to_all import ColumnExchange, ColumnRanges
from outgrow.strategies.tensor.chunk_blocks import ChunkBlock
from outgrow.strategies.tensor.chunk_exchange import ChunkExchange, PendingRows
from outgrow.strategies.tensor.chunk_messages import GradientSums
from outgrow.strategies.tensor.chunk_schedule import AggregationChunk, ChunkSchedules, NodeGroup
from outgrow.strategies.tensor.pipelined_aggregation import PipelinedAggregation
from suites.hits import Hits


def _without_gradient(rows: Tensor) -> Tensor:
    """The same numbers; what they were computed from has gradients, but these are zero."""
    return rows.detach() + 0 * rows


@contextmanager
def attention_without_gradient() -> Iterator[Hits]:
    """Weights of edges are constants: no gradient reaches the scores that they were computed from."""
    hits, right = Hits(), ColumnExchange.all_gather_rows

    def everywhere(self: ColumnExchange, rows: Tensor, kind: Any) -> Tensor:
        hits.note(rows.requires_grad)
        return right(self, _without_gradient(rows), kind)

    with patch.object(ColumnExchange, "all_gather_rows", everywhere):
        yield hits


@contextmanager
def backward_along_the_edges() -> Iterator[Hits]:
    """The gradient is multiplied by the matrix of the forward pass instead of its transpose."""
    hits, right = Hits(), pipelines.make_schedules

    def lanes_of(*given: Any) -> ChunkSchedules:
        lanes = right(*given)
        hits.note(len(lanes.backward) > 0)
        return lanes._replace(backward=lanes.forward)

    with patch.object(pipelines, "make_schedules", lanes_of):
        yield hits


@contextmanager
def mean_of_local_means() -> Iterator[Hits]:
    """The loss is the mean over workers of their own means."""
    hits, right = Hits(), vars(Problem)["objective"].func

    def goal(self: Problem) -> Objective:
        whole = right(self)
        assert isinstance(whole, NodeObjective)
        wrong = max(1, len(whole.rows) * self.shard.comm.size)
        hits.note(wrong != whole.total)
        return whole._replace(total=wrong)

    with patch.object(Problem, "objective", property(goal)):
        yield hits


@contextmanager
def partial_gradients_of_scores() -> Iterator[Hits]:
    """A worker keeps the gradient that its own columns give its scores; those of other columns are not added."""
    hits, right = Hits(), ColumnExchange.all_gather_rows

    def everywhere(self: ColumnExchange, rows: Tensor, kind: Any) -> Tensor:
        whole, rank = right(self, rows, kind), self.comm.rank
        first = sum(self.num_owned[:rank])
        own = torch.arange(first, first + self.num_owned[rank])
        mine = torch.zeros(len(whole), 1, dtype=torch.bool)
        mine[own if self.permutation is None else self.permutation.node[own]] = True
        hits.note(self.comm.size > 1 and rows.requires_grad)
        return torch.where(mine, whole, whole.detach())

    with patch.object(ColumnExchange, "all_gather_rows", everywhere):
        yield hits


@contextmanager
def columns_misplaced() -> Iterator[Hits]:
    """Columns of the slices that come from others, and of their gradients, are one place off."""
    hits, right = Hits(), ChunkExchange.receive_slices

    def arrive(self: ChunkExchange, trip: PendingRows, party: NodeGroup, slices: Tensor, channels: int) -> None:
        right(self, trip, party, slices, channels)
        if self.comm.size > 1 and slices.shape[2] > 1:
            hits.note(len(party.nodes) > 0)
            slices[party.nodes] = slices[party.nodes].roll(1, 2)

    with patch.object(ChunkExchange, "receive_slices", arrive):
        yield hits


@contextmanager
def restarts_without_gradient() -> Iterator[Hits]:
    """Every round adds the initial columns, but only the first round has a part in their gradient."""
    hits, right = Hits(), pipelined_sums._add_chunk

    def add(chunk: AggregationChunk, into: Tensor, rows: Tensor, factor: float) -> None:
        # Chunks of the backward pass know the numbers of their edges.
        lost = chunk.edge is not None and factor != 0
        hits.note(lost)
        if not lost:
            right(chunk, into, rows, factor)

    with patch.object(pipelined_sums, "_add_chunk", add):
        yield hits


@contextmanager
def gradient_of_a_sum_for_its_first_channel() -> Iterator[Hits]:
    """The gradient of a sum over channels reaches the first of them alone."""
    hits, right = Hits(), ChunkExchange.receive_slices

    def arrive(self: ChunkExchange, trip: PendingRows, party: NodeGroup, slices: Tensor, channels: int) -> None:
        right(self, trip, party, slices, channels)
        if channels < slices.shape[1]:
            hits.note(len(party.nodes) > 0)
            slices[party.nodes, 1:] = 0

    with patch.object(ChunkExchange, "receive_slices", arrive):
        yield hits


@contextmanager
def rows_taken_for_sorted() -> Iterator[Hits]:
    """Rows of a chunk are in the order of their workers, and are taken for those of ascending nodes."""
    hits, right = Hits(), ChunkExchange.receive_slices

    def arrive(self: ChunkExchange, trip: PendingRows, party: NodeGroup, slices: Tensor, channels: int) -> None:
        wrong = party.nodes.sort().values
        hits.note(not torch.equal(wrong, party.nodes))
        right(self, trip, party._replace(nodes=wrong), slices, channels)

    with patch.object(ChunkExchange, "receive_slices", arrive):
        yield hits


@contextmanager
def slices_in_another_order() -> Iterator[Hits]:
    """Gathered slices are put side by side beginning with the last worker's."""
    hits, right = Hits(), all_to_all.merge_slices

    def joined(flat: Tensor, shape: tuple[int, int, int], cut: ColumnRanges) -> Tensor:
        rows = right(flat, shape, cut)
        hits.note(len(cut) > 1 and len(rows) > 0)
        return torch.cat([rows[:, :, first:last] for first, last in reversed(cut)], 2)

    with ExitStack() as stack:
        for module in (all_to_all, chunk_exchange):
            stack.enter_context(patch.object(module, "merge_slices", joined))
        yield hits


@contextmanager
def gradients_before_their_last_reader() -> Iterator[Hits]:
    """Gradients leave in the order in which rows came: the first ones before most chunks have added to them."""
    hits, right = Hits(), PipelinedAggregation.chunks_in_use

    def in_use(self: PipelinedAggregation, *, backward: bool = False) -> Iterator[tuple[int, ChunkBlock]]:
        given = list(right(self, backward=backward))
        if not backward or self.exchange is None:
            return iter(given)
        hits.note(len(given) > 1)
        read = [chunk.exchange_groups[0] for _, chunk in given[::-1]]
        pairs = zip(given, read, strict=True)
        return iter(
            [(number, chunk._replace(groups=(group, chunk.exchange_groups[1]))) for (number, chunk), group in pairs]
        )

    with patch.object(PipelinedAggregation, "chunks_in_use", in_use):
        yield hits


@contextmanager
def parameters_without_gradient() -> Iterator[Hits]:
    """What a chunk adds to the gradient of trained weights of relations is lost."""
    hits, right = Hits(), GradientSums.add_parameters

    def add(self: GradientSums, gradients: Sequence[Tensor | None]) -> None:
        hits.note(any(each is not None for each in gradients))
        right(self, [None for _ in gradients])

    with patch.object(GradientSums, "add_parameters", add):
        yield hits


@contextmanager
def nodes_taken_for_ranges() -> Iterator[Hits]:
    """All nodes are taken to be in the order of their workers, as if each owned a range of them."""
    hits, right = Hits(), ColumnExchange.__init__

    def begin(self: ColumnExchange, *given: Any) -> None:
        right(self, *given)
        hits.note(self.permutation is not None)
        self.permutation = None

    with patch.object(ColumnExchange, "__init__", begin):
        yield hits


@contextmanager
def scales_of_the_first_columns() -> Iterator[Hits]:
    """Every worker scales its columns as if they were the first ones."""
    hits, right = Hits(), RelationScale.restrict_to_columns

    def on_columns(self: RelationScale, first: int, last: int) -> Aggregate:
        hits.note(0 < first < last)
        return right(self, 0, last - first)

    with patch.object(RelationScale, "restrict_to_columns", on_columns):
        yield hits


@contextmanager
def draws_by_place() -> Iterator[Hits]:
    """Dropout of a row depends on its place among the worker's own, not on its node."""
    hits, right = Hits(), Layer.update_nodes

    def update_nodes(self: Layer, x: Any, aggregate: Tensor, nodes: Tensor, key: int | None) -> Tensor:
        places = torch.arange(len(nodes))
        hits.note(key is not None and not torch.equal(places, nodes))
        return right(self, x, aggregate, places, key)

    with patch.object(Layer, "update_nodes", update_nodes):
        yield hits
