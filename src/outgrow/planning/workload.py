"""What is to be trained, as far as its costs depend on it: sizes of the graph, widths of the layers, how it is cut."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from outgrow.engine.batches import Batches
from outgrow.engine.chunks.plan import Techniques
from outgrow.planning.sizes import ModelSizes, Sizes
from outgrow.planning.waves import Cutting, Matrix, Waves
from outgrow.runtime.packing import packed


@dataclass(frozen=True, eq=False)
class Cut:
    """How a graph is dealt out to ``P`` workers.

    Attributes:
        nodes: ``[P]`` int64, nodes of each.
        edges: ``[P]`` int64, their in-edges.
        halo: ``[P, P]`` int64, how many nodes of the second have an edge to one of the first; 0 on the diagonal.
        owner_bytes: Of the list of all nodes' owners, as it is sent to a worker.
    """

    nodes: Matrix
    edges: Matrix
    halo: Matrix
    owner_bytes: int

    @property
    def parts(self) -> int:
        """``P``."""
        return len(self.nodes)

    @cached_property
    def away(self) -> int:
        """Nodes that the first worker does not own."""
        return int(self.nodes[1:].sum())


class Dealt(NamedTuple):
    """How `tensor` deals nodes out.

    Attributes:
        nodes: ``[P]`` int64, nodes of each worker.
        in_order: Whether each worker owns a range of them, in the order of workers.
        owner_bytes: Of the list of all nodes' owners, as it is sent to a worker.
    """

    nodes: Matrix
    in_order: bool
    owner_bytes: int


class Chunked(NamedTuple):
    """How `offload` cuts a graph.

    Attributes:
        order_bytes: Of the order of the chunks, as it is sent to a worker.
        waves: What a layer moves, by view of the graph: whether nodes have edges to themselves besides.
    """

    order_bytes: int
    waves: dict[bool, Waves]


class Drawing(NamedTuple):
    """How mini-batches are drawn.

    Attributes:
        batches: What they are made of.
        views: For each layer, whether nodes have edges to themselves besides.
        seed: Seed of the run.
        partition: How nodes are dealt out to workers.
        cached: Rows of other workers' nodes of which each worker keeps copies, the hottest by `cached_by`.
        cached_by: ``"degree"``, or ``"presampling"``: asked for most in batches of an epoch that is not
            trained.
        time_steps: In how many time steps models travel to the seeds; None where each worker computes its own seeds.
        pregather: Whether rows that several time steps need are asked for once.
    """

    batches: Batches
    views: tuple[bool, ...]
    seed: int
    partition: str
    cached: int = 0
    cached_by: str = "degree"
    time_steps: int | None = None
    pregather: bool = True


class Drawn(NamedTuple):
    """What batches of full size are like, in the mean over some of them.

    Attributes:
        steps: Batches of an epoch.
        full: Batches of full size that have as many seeds.
        rows: ``[P, L + 1]`` float64, nodes of each worker's neighbourhood before each layer, from the bottom up, and
            its seeds.
        edges: ``[P, L]`` float64, edges of each layer.
        asked: ``[P, P]`` float64, rows of raw features that the first asks the second for.
        entries: Entries that are stored of such a row.
        kept: ``[P, P]`` int64, rows of the second worker's nodes of which the first keeps copies.
    """

    steps: int
    full: float
    rows: NDArray[np.float64]
    edges: NDArray[np.float64]
    asked: NDArray[np.float64]
    entries: float
    kept: Matrix


class Crossed(NamedTuple):
    """What crosses in a layer of a batch that all workers compute together: for each pair ``[P, P]``, to the first.

    Attributes:
        sources: Distinct sources of the second worker.
        destinations: Distinct destinations of the first that have some.
        edges: Edges from these to those.
    """

    sources: Matrix
    destinations: Matrix
    edges: Matrix


class Together(NamedTuple):
    """What batches of full size are like that all workers compute together.

    Attributes:
        steps: Batches of an epoch.
        full: Batches of full size that have as many seeds.
        rows: ``[P, L + 1]`` float64, own nodes of each worker before each layer, from the bottom up, and its seeds.
        edges: ``[P, L]`` float64, edges to own destinations of each layer.
        crossed: What crosses in each layer of each batch that was looked at.
    """

    steps: int
    full: float
    rows: NDArray[np.float64]
    edges: NDArray[np.float64]
    crossed: tuple[tuple[Crossed, ...], ...]


class Gathered(NamedTuple):
    """Rows of raw features that are taken from memory, in the mean.

    Attributes:
        rows: By all workers.
        asked: ``[P, P]`` float64, those that the first worker asks the second for.
        entries: Entries that are stored of one of these.
    """

    rows: float
    asked: NDArray[np.float64]
    entries: float


class Halves(NamedTuple):
    """What batches are like whose bottom layer is computed by two sides.

    Attributes:
        steps: Batches of an epoch.
        full: Batches of full size that have as many seeds.
        cold: For a batch without hot nodes.
        warm: For another.
        hot: For the hot nodes of a super-batch.
        hot_nodes: How many these are, over all workers.
    """

    steps: int
    full: float
    cold: Gathered
    warm: Gathered
    hot: Gathered
    hot_nodes: float


class Shape(Protocol):
    """A graph as far as it is dealt out and cut."""

    def cut(self, method: str, parts: int, by: Drawing | None = None) -> Cut:
        """How a partition deals it out, by the name of its method, the number of parts, and what is drawn on it."""

    def dealt(self, chunks: int, parts: int, *, self_loops: bool) -> Dealt:
        """How `tensor` deals it out that reads it in chunks."""

    def chunked(self, cutting: Cutting, views: tuple[bool, ...], parts: int, techniques: Techniques) -> Chunked:
        """How `offload` cuts it that reads it by some views, of which the first decides."""


class Sampling(Protocol):
    """A graph as far as batches are drawn of it."""

    def drawn(self, drawing: Drawing, parts: int) -> Drawn:
        """What mini-batches are like whose seeds are computed by the workers that own them."""

    def together(self, drawing: Drawing, parts: int) -> Together:
        """What mini-batches are like of which each node is computed by the worker that owns it."""

    def halves(self, drawing: Drawing, parts: int, hot_ratio: float, super_batch: int) -> Halves:
        """What mini-batches are like whose bottom layer is computed by two sides, hot nodes by the CPU."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be trained.

    Attributes:
        graph: Sizes of the graph.
        model: Sizes of the model.
        shape: How the graph is dealt out and cut.
        sampling: What batches are like.
    """

    graph: Sizes
    model: ModelSizes
    shape: Shape
    sampling: Sampling


def cut_of(indptr: Tensor, indices: Tensor, part: Tensor, parts: int) -> Cut:
    """How a partition deals a graph out: counted, edge by edge.

    Args:
        indptr: ``[V + 1]`` int64.
        indices: ``[E]`` sources.
        part: ``[V]`` the worker of each node.
        parts: ``P``.
    """
    degree = indptr[1:] - indptr[:-1]
    halo = np.zeros((parts, parts), dtype=np.int64)
    for mine in range(parts):
        rows = (part == mine).nonzero()[:, 0]
        sources = torch.unique(indices[_edges_of(indptr, rows)].long())
        halo[mine] = torch.bincount(part[sources].long(), minlength=parts).numpy()
    np.fill_diagonal(halo, 0)
    return Cut(
        nodes=torch.bincount(part.long(), minlength=parts).numpy(),
        edges=torch.zeros(parts, dtype=torch.int64).index_add_(0, part.long(), degree).numpy(),
        halo=halo,
        owner_bytes=len(packed(part)),
    )


def _edges_of(indptr: Tensor, rows: Tensor) -> Tensor:
    """Positions of the in-edges of some nodes."""
    first, count = indptr[rows], indptr[rows + 1] - indptr[rows]
    ends = count.cumsum(0)
    return torch.arange(int(count.sum())) + (first - (ends - count)).repeat_interleave(count)
