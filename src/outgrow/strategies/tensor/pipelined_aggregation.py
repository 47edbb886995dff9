"""Any aggregation of slices, chunk by chunk, overlapped with the exchange of other chunks' rows.

Forward a chunk's sources are split before it and its results gathered behind it. Backward the chunks run in the
opposite order, and each is computed again with a gradient: the rows that it was the first to read have no reader left,
so their gradient is complete and is gathered while the next chunk is computed. A chunk holds copies of the rows that
it reads, and numbers of its own edges alone. Ai et al.: NeutronTP, PVLDB 18(2), 2024, sections 4.2 and 4.3.

Letters: ``n`` own nodes, ``V`` all nodes, ``E`` edges, ``C`` channels, ``K`` scores, ``F`` columns, ``f`` those of the
worker's slice; of a chunk, ``s`` sources, ``r`` destinations and ``e`` edges.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.core.timeline import Timeline
from outgrow.ops.backend import once_differentiable
from outgrow.ops.kernels.numerics import accumulate_dtype
from outgrow.runtime.distributed.comm import Comm
from outgrow.strategies.tensor.chunk_blocks import ChunkBlock
from outgrow.strategies.tensor.chunk_exchange import ChunkExchange, PendingRows
from outgrow.strategies.tensor.chunk_messages import ChunkMessages, GradientSums, LayerRound, ScoreRows
from outgrow.strategies.tensor.chunk_schedule import NodeGroup
from outgrow.strategies.tensor.device_copies import DeviceCopies
from outgrow.strategies.tensor.mapped_graph import MappedGraph

_SCORES = len(ScoreRows._fields)


class PipelinedAggregation:
    """Aggregations over all nodes, from and to whole rows of own nodes. All workers call it together. Final.

    Args:
        chunks: The chunks of the graph.
        num_own: Number of nodes that the worker owns.
        comm: Gives the device that chunks are aggregated on.
        row_device: Device of whole rows.
        exchange: Splits and gathers their rows; None for one worker, whose rows are whole and stay where they are.
        timeline: Records the spans.
        mapped_graph: Files of slices; None for memory.
    """

    def __init__(
        self,
        chunks: Sequence[ChunkBlock],
        num_own: int,
        comm: Comm,
        row_device: torch.device,
        exchange: ChunkExchange | None,
        timeline: Timeline,
        mapped_graph: MappedGraph | None = None,
    ) -> None:
        self.chunks = chunks
        self.num_own = num_own
        self.copies = DeviceCopies(comm)
        self.row_device = row_device
        self.exchange = exchange
        self.timeline = timeline
        self.mapped_graph = mapped_graph

    def __call__(
        self,
        rounds: Sequence[LayerRound],
        source: Tensor,
        target_nCF: Tensor | None,
        kind: Kind,
        *,
        result_kind: Kind = Kind.ACTIVATIONS,
        in_slices: bool = False,
    ) -> Tensor:
        """Return the own rows after some rounds, ``[n, C, F]``. Differentiable, in parameters of the layers as well.

        Args:
            rounds: The rounds, at least one; several only of layers that read no destinations.
            source: ``[n, C, F]`` rows of own nodes as sources, or ``[V, C, f]`` slices, which are constants.
            target_nCF: Rows of own nodes as destinations; None if there are none.
            kind: Kind of the rows, for the ledger.
            result_kind: Kind of the results.
            in_slices: Whether the sources are slices.
        """
        scores = [each for step in rounds for each in step.scores]
        trained = dict.fromkeys(each for step in rounds for each in step.trained_parameters())
        call = _Call(self, rounds, (kind, result_kind), in_slices or self.exchange is None)
        return _PipelinedAggregationFunction.apply(call, source, target_nCF, *scores, *trained)  # type: ignore[no-any-return, no-untyped-call]

    def chunks_in_use(self, *, backward: bool = False) -> Iterator[tuple[int, ChunkBlock]]:
        """Yield the chunks with their numbers, in the order of the forward or the backward pass."""
        numbers = range(len(self.chunks))
        for number in reversed(numbers) if backward else numbers:
            chunk = self.chunks[number]
            if self.mapped_graph is not None:
                # What kernels derive of the edges is kept where the edges are in memory as well.
                chunk = chunk.without_derived()
            yield number, self.copies.load_edges(chunk)

    def select_rows(
        self, chunk: ChunkBlock, source_VCf: Tensor, target_VCf: Tensor | None, scores: ScoreRows
    ) -> ChunkMessages:
        """Return what a chunk reads, on its device."""
        found = ChunkMessages.select(chunk, source_VCf, target_VCf, scores)
        return found.map_rows(lambda rows: self.copies.load_rows(rows, Kind.ACTIVATIONS))

    def allocate_zeros(self, like: Tensor) -> Tensor:
        """Return zeros for slices, in a file or in memory."""
        mapped = self.mapped_graph
        return torch.zeros_like(like) if mapped is None else mapped.allocate_slices(tuple(like.shape), like).zero_()


class _Call(NamedTuple):
    """The constants of a call; ``has_slices`` if sources are rows of all nodes already."""

    pipeline: PipelinedAggregation
    rounds: Sequence[LayerRound]
    kinds: tuple[Kind, Kind]
    has_slices: bool


class _Arrivals:
    """Slices of the rows of all nodes, which arrive chunk by chunk, or are there.

    Args:
        exchange: Splits the rows; None if the rows are slices.
        rows: Rows of own nodes, or slices.
        splits: Name and group of each split.
        kind: Kind of the rows, for the ledger.
    """

    def __init__(
        self, exchange: ChunkExchange | None, rows: Tensor, splits: Sequence[tuple[str, NodeGroup]], kind: Kind
    ) -> None:
        self.exchange = exchange
        self.channels = rows.shape[1]
        self.slices = rows
        self._pending: Iterator[tuple[PendingRows, NodeGroup]] = iter(())
        if exchange is not None:
            self.slices = exchange.allocate_slices(rows.shape[1], rows.shape[2], rows)
            pending = exchange.start_splits(rows, splits, kind)
            self._pending = zip(pending, (group for _, group in splits), strict=True)

    def receive_next(self) -> None:
        """Wait for the next split."""
        for pending, group in self._pending:
            assert self.exchange is not None
            self.exchange.receive_slices(pending, group, self.slices, self.channels)
            return


class _Results:
    """Rows of own nodes that chunks complete: gathered to their owners, or written where one worker keeps them.

    Args:
        pipeline: Gives the exchange.
        row: Channels and columns of a row.
        like: Gives the type.
        kind: Kind of the rows, for the ledger.
    """

    def __init__(self, pipeline: PipelinedAggregation, row: tuple[int, ...], like: Tensor, kind: Kind) -> None:
        self._pipeline, self._like, self._kind = pipeline, like, kind
        self._shape = pipeline.num_own, row[0], row[1]
        exchange = pipeline.exchange
        self._gather = None if exchange is None else exchange.start_gathers(self._shape, like, kind)
        # Of one worker: allocated with the first chunk, unless they are in place.
        self._rows: Tensor | None = None

    def add_chunk(self, number: int, chunk: ChunkBlock, rows: Tensor) -> None:
        """Add the rows of a chunk's destinations."""
        if self._gather is None:
            if self._rows is None:
                self._rows = self._like.new_empty(self._shape, device=self._pipeline.row_device)
            self._rows[chunk.first : chunk.last] = self._move(rows)
        else:
            self._gather.send(rows, chunk.exchange_groups[1], f"gather {number}", first=chunk.first)

    def add_sources(self, number: int, chunk: ChunkBlock, slices: Tensor) -> None:
        """Add the rows that a chunk was the first to read, among slices of all nodes."""
        if self._gather is None:
            # One worker has the gradient of its rows in place.
            self._rows = slices
        else:
            self._gather.send(slices, chunk.exchange_groups[0], f"gather {number} of sources")

    def finish(self) -> Tensor:
        """Return the own rows."""
        if self._gather is not None:
            return self._gather.receive_all()
        assert self._rows is not None
        return self._move(self._rows)

    def _move(self, rows: Tensor) -> Tensor:
        return self._pipeline.copies.move_rows(rows, self._pipeline.row_device, self._kind)


class _PipelinedAggregationFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, call: _Call, source: Tensor, target_nCF: Tensor | None, *rest: Tensor | None) -> Tensor:
        pipeline, rounds = call.pipeline, call.rounds
        exchange = pipeline.exchange
        reads, makes = _name_splits(pipeline)
        sources = _Arrivals(None if call.has_slices else exchange, source, reads, call.kinds[0])
        targets = None if target_nCF is None else _Arrivals(exchange, target_nCF, makes, call.kinds[0])
        inputs = [sources.slices]
        # Rows in half precision are summed in float32.
        like = source.new_empty(0, dtype=accumulate_dtype(source.dtype), device=pipeline.row_device)
        results = _Results(pipeline, rounds[-1].result_row, like, call.kinds[1])
        for index, step in enumerate(rounds):
            last = index == len(rounds) - 1
            made = None if last else pipeline.allocate_zeros(inputs[-1])
            for number, chunk in pipeline.chunks_in_use():
                if index == 0:
                    sources.receive_next()
                    if targets is not None:
                        targets.receive_next()
                with pipeline.timeline.span("aggregate"):
                    target = None if targets is None else targets.slices
                    out = step.compute_chunk(chunk, pipeline.select_rows(chunk, inputs[-1], target, step.scores))
                if made is None:
                    results.add_chunk(number, chunk, out)
                else:
                    made[chunk.first : chunk.last] = pipeline.copies.move_rows(out, made.device, Kind.ACTIVATIONS)
            if made is not None:
                inputs.append(made)
        ctx.call = call
        ctx.rows = tuple(source.shape[1:]), None if target_nCF is None else tuple(target_nCF.shape[1:])
        # What the caller has given belongs to autograd; slices that were made here belong to the call.
        alone = exchange is None
        ctx.save_for_backward(source if call.has_slices else None, target_nCF if alone else None, *rest)
        ctx.inputs = [None if call.has_slices else inputs[0], *inputs[1:]]
        ctx.target = None if targets is None or alone else targets.slices
        return results.finish()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_nCF: Tensor) -> tuple[Tensor | None, ...]:
        call: _Call = ctx.call
        pipeline, rounds = call.pipeline, call.rounds
        source, given_target, *rest = ctx.saved_tensors
        inputs = [ctx.inputs[0] if source is None else source, *ctx.inputs[1:]]
        target = ctx.target if given_target is None else given_target
        _, wants_source, wants_target, *wants_rest = ctx.needs_input_grad
        sums = GradientSums(rest, wants_rest, num_scores=_SCORES * len(rounds))
        d_source, d_target = (
            _Results(pipeline, row, grad_nCF, Kind.GRADIENTS) if wanted else None
            for row, wanted in zip(ctx.rows, (wants_source, wants_target), strict=True)
        )
        arrivals = _Arrivals(pipeline.exchange, grad_nCF, _name_splits(pipeline)[1][::-1], Kind.GRADIENTS)
        upper: Tensor | None = arrivals.slices
        for index in range(len(rounds) - 1, -1, -1):
            slices = inputs.pop()
            lower = pipeline.allocate_zeros(slices) if index or wants_source else None
            first = _SCORES * index
            scores = ScoreRows(*rest[first : first + _SCORES])
            wanted = lower is not None, wants_target, *wants_rest[first : first + _SCORES]
            for number, chunk in pipeline.chunks_in_use(backward=True):
                if index == len(rounds) - 1:
                    arrivals.receive_next()
                assert upper is not None
                with pipeline.timeline.span("aggregate"):
                    rows = pipeline.select_rows(chunk, slices, target, scores).as_leaves(wanted)
                    gradient = pipeline.copies.load_rows(upper[chunk.first : chunk.last], Kind.GRADIENTS)
                    found = rounds[index].differentiate_chunk(chunk, rows, gradient, sums)
                    sums.add_scores(first, chunk, found)
                    if lower is not None and found.source is not None:
                        # Sources of a chunk are distinct, so no row is written twice.
                        added = pipeline.copies.move_rows(found.source, lower.device, Kind.GRADIENTS)
                        lower[chunk.sources_on(lower.device)] += added
                if d_target is not None:
                    assert found.target is not None
                    d_target.add_chunk(number, chunk, found.target)
                if index == 0 and d_source is not None:
                    assert lower is not None
                    # No chunk that is still to come reads what this one was the first to read.
                    d_source.add_sources(number, chunk, lower)
            upper = lower
        return (
            None,
            None if d_source is None else d_source.finish(),
            None if d_target is None else d_target.finish(),
            *sums.sums,
        )


def _name_splits(pipeline: PipelinedAggregation) -> tuple[list[tuple[str, NodeGroup]], list[tuple[str, NodeGroup]]]:
    """Return name and group of the splits of what chunks are the first to read, and of their destinations."""
    if pipeline.exchange is None:
        return [], []
    groups = [chunk.exchange_groups for chunk in pipeline.chunks]
    return (
        [(f"split {number}", read) for number, (read, _) in enumerate(groups)],
        [(f"split {number} of destinations", made) for number, (_, made) in enumerate(groups)],
    )
