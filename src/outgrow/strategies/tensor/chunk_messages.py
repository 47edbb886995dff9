"""What a layer reads of a chunk: rows of its sources and destinations, scores, and the gradients of all of these.

Letters: ``V`` all nodes, ``E`` edges, ``C`` channels, ``K`` scores, ``f`` columns of the worker's slice; of a chunk,
``s`` sources, ``r`` destinations and ``e`` edges.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from outgrow.nn.layer import Layer, NodeMessages
from outgrow.ops.aggregation.base import Aggregate
from outgrow.strategies.tensor.chunk_blocks import ChunkBlock


class ScoreRows(NamedTuple):
    """Scores that weigh the edges of a layer, on every worker.

    Attributes:
        source: ``[V, K]`` of nodes as sources; None if there are none.
        target: ``[V, K]`` of nodes as destinations; None if there are none.
        edge: ``[E, K]`` that features of edges give; None if there are none, or if chunks have the features.
    """

    source: Tensor | None = None
    target: Tensor | None = None
    edge: Tensor | None = None


class ChunkMessages(NamedTuple):
    """What a chunk reads, or the gradients of it; None for what there is not.

    Attributes:
        source: ``[s, C, f]`` rows of its sources.
        target: ``[r, C, f]`` rows of its destinations.
        source_scores: ``[s, K]``.
        target_scores: ``[r, K]``.
        edge_scores: ``[e, K]``.
    """

    source: Tensor | None
    target: Tensor | None
    source_scores: Tensor | None
    target_scores: Tensor | None
    edge_scores: Tensor | None

    @classmethod
    def select(
        cls, chunk: ChunkBlock, source_VCf: Tensor, target_VCf: Tensor | None, scores: ScoreRows
    ) -> ChunkMessages:
        """Return what a chunk reads of slices and scores of all nodes, where these are."""
        given = source_VCf, target_VCf, *scores
        pairs = zip(given, _places(chunk), strict=True)
        return cls(*(None if each is None else _take_rows(each, chunk, at) for each, at in pairs))

    def map_rows(self, function: Callable[[Tensor], Tensor]) -> ChunkMessages:
        """Return the results of a function of each."""
        return ChunkMessages(*(None if each is None else function(each) for each in self))

    def as_leaves(self, wanted: Sequence[bool]) -> ChunkMessages:
        """Return the rows as leaves of a graph of autograd; those wanted have a gradient."""
        pairs = zip(self, wanted, strict=True)
        return ChunkMessages(*(None if each is None else each.detach().requires_grad_(wants) for each, wants in pairs))


class GradientSums:
    """Sums over chunks of the gradients of scores and of trained parameters.

    Args:
        given: The scores of all rounds, then the parameters.
        wanted: Whether each has a gradient.
        num_scores: Number of scores.

    Attributes:
        sums: The sum of each; None if it has none.
        parameters: Parameters that have a gradient.
    """

    def __init__(self, given: Sequence[Tensor | None], wanted: Sequence[bool], *, num_scores: int) -> None:
        self.sums = [
            torch.zeros_like(each) if wants and each is not None else None
            for each, wants in zip(given, wanted, strict=True)
        ]
        self._trained = [place for place in range(num_scores, len(given)) if wanted[place]]
        self.parameters = [each for place in self._trained if (each := given[place]) is not None]

    def add_scores(self, first: int, chunk: ChunkBlock, gradients: ChunkMessages) -> None:
        """Add the gradients of a chunk's scores, which begin at place ``first``."""
        scores = gradients[2:]
        for place, (gradient, at) in enumerate(zip(scores, _places(chunk)[2:], strict=True), first):
            found = self.sums[place]
            if gradient is not None and found is not None:
                # Rows of a chunk are distinct, so none is written twice.
                found[chunk.sources_on(found.device) if at is None else at] += gradient

    def add_parameters(self, gradients: Sequence[Tensor | None]) -> None:
        """Add gradients of `parameters`; None adds nothing."""
        for place, gradient in zip(self._trained, gradients, strict=True):
            found = self.sums[place]
            if gradient is not None and found is not None:
                found += gradient


class LayerRound(NamedTuple):
    """An aggregation of slices by a layer.

    Attributes:
        layer: The layer.
        key: Its random key in this step; None for no random draws.
        aggregate: Its aggregation, restricted to the columns of the slice.
        scores: What its edges are weighed by.
    """

    layer: Layer
    key: int | None
    aggregate: Aggregate
    scores: ScoreRows = ScoreRows()

    @property
    def result_row(self) -> tuple[int, int]:
        """Channels and columns of a result."""
        channels, columns = self.layer.spec.aggregate
        return 1 if self.layer.spec.sums_channels else channels, columns

    def trained_parameters(self) -> list[Parameter]:
        """Return trained parameters that the aggregate may depend on; none where rows and the graph alone decide it."""
        aggregation = self.layer.conv.aggregation
        trains = isinstance(aggregation, Module) and next(aggregation.parameters(), None) is not None
        if self.layer.spec.static_edge_weight and not trains and not aggregation.has_parameters:
            return []
        return [each for each in self.layer.conv.parameters() if each.requires_grad]

    def compute_chunk(self, chunk: ChunkBlock, rows: ChunkMessages) -> Tensor:
        """Return the aggregate of a chunk, ``[r, C, f]``, with one channel if the layer sums them."""
        assert rows.source is not None
        block = replace(chunk.block, key=self.key, edge_scores=rows.edge_scores)
        source, target = NodeMessages(rows.source, rows.source_scores), NodeMessages(rows.target, rows.target_scores)
        weight = self.layer.conv.edge_weight(block, source, target)
        out = self.aggregate(block, rows.source, rows.target, weight)
        # Before the gather, which then moves one channel.
        return out.sum(1, keepdim=True) if self.layer.spec.sums_channels else out

    def differentiate_chunk(
        self, chunk: ChunkBlock, rows: ChunkMessages, gradient: Tensor, sums: GradientSums
    ) -> ChunkMessages:
        """Return the gradients of a chunk's rows, and add those of parameters to ``sums``.

        Args:
            chunk: The chunk.
            rows: What it reads, as leaves.
            gradient: ``[r, C, f]`` gradient of its aggregate.
            sums: Gives the parameters.
        """
        leaves = [each for each in rows if each is not None and each.requires_grad]
        wanted = [*leaves, *sums.parameters]
        with torch.enable_grad():
            out = self.compute_chunk(chunk, rows)
        if not (wanted and out.requires_grad):
            found: tuple[Tensor | None, ...] = (None,) * len(wanted)
        else:
            found = torch.autograd.grad(out, wanted, gradient, allow_unused=True)
        sums.add_parameters(found[len(leaves) :])
        # A row that nothing reads has the gradient zero: what is exchanged does not depend on the values.
        by_leaf = iter(
            torch.zeros_like(leaf) if each is None else each for leaf, each in zip(leaves, found, strict=False)
        )
        return ChunkMessages(*(next(by_leaf) if each is not None and each.requires_grad else None for each in rows))


def _places(chunk: ChunkBlock) -> tuple[slice | None, ...]:
    """Return where the fields of `ChunkMessages` are among rows of all nodes, and scores of all edges.

    None for the chunk's sources.
    """
    here = slice(chunk.first, chunk.last)
    first = chunk.block.first_edge
    return None, here, None, here, slice(first, first + chunk.block.edges.num_edges)


def _take_rows(rows: Tensor, chunk: ChunkBlock, at: slice | None) -> Tensor:
    return rows.index_select(0, chunk.sources_on(rows.device)) if at is None else rows[at]
