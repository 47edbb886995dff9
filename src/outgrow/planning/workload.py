"""What is to be trained, as far as its costs depend on it: sizes of the graph, widths of the layers, how it is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outgrow.engine.batches import Batches
from outgrow.engine.chunks.layers import without_parameters
from outgrow.engine.chunks.plan import Techniques
from outgrow.engine.constant import is_constant
from outgrow.engine.slices.passes import only_propagates, runs_of
from outgrow.graph.graph import Graph
from outgrow.nn.layer import Layer, Widths
from outgrow.nn.model import Model
from outgrow.planning.waves import Cutting, Matrix, Waves
from outgrow.runtime.packing import packed


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of a graph ``[V nodes, E edges]``.

    Attributes:
        name: Of the graph.
        nodes: ``V``.
        edges: ``E``, without self-loops that a layer adds.
        features: Columns of raw features ``D``.
        feature_bytes: Of a raw feature as it is stored.
        row_entries: Entries of a row of raw features that are stored, on average: ``D``, or fewer in sparse rows.
        train: Nodes to train on.
        classes: Columns of the logits.
    """

    name: str
    nodes: int
    edges: int
    features: int
    feature_bytes: int
    row_entries: float
    train: int
    classes: int

    @property
    def sparse(self) -> bool:
        """Whether raw features are sparse rows."""
        return self.row_entries < self.features

    @property
    def feature_row_bytes(self) -> float:
        """Of a row of raw features as it is stored; an entry of a sparse one has a column number of 4 bytes."""
        return self.row_entries * (self.feature_bytes + 4 * self.sparse)


@dataclass(frozen=True, kw_only=True)
class LayerSizes:
    """Of a layer.

    Attributes:
        widths: Those of its convolution.
        constant: Whether the aggregate is that of raw features, and kept.
        fixed: Whether its aggregation has no parameters.
        run: Number of the layers that only propagate the same columns, one after the other; None for other layers.
        weights: Numbers of its matrices, each of which every node is multiplied by once.
    """

    widths: Widths
    constant: bool
    fixed: bool
    run: int | None
    weights: int

    @property
    def source(self) -> int:
        """Columns of a source's row over all channels, without scores."""
        return self.widths.source[0] * self.widths.source[1]

    @property
    def source_row(self) -> int:
        """Numbers of a source's row: its columns, then its scores."""
        return self.source + self.widths.score

    @property
    def aggregate(self) -> int:
        """Columns of the aggregate over all channels."""
        return self.widths.aggregate[0] * self.widths.aggregate[1]

    def edges(self, edges: int, nodes: int) -> int:
        """Of a graph, as the layer sees it."""
        return edges + self.widths.self_loops * nodes


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Of a model.

    Attributes:
        layers: From the bottom up; an encoder's products are among the first one's.
        parameters: How many tensors of parameters there are, and how many numbers in all of them.
        number_bytes: Of a parameter, an activation and a gradient.
        state_bytes: Of all parameters and buffers as they are sent to a worker.
        takes_raw: Whether raw features are sources of the first layer.
        drops_raw: Whether they have dropout.
        reads_features: Whether the first layer's input are the features: there is no encoder.
    """

    layers: tuple[LayerSizes, ...]
    parameters: tuple[int, int]
    number_bytes: int
    state_bytes: int
    takes_raw: bool
    drops_raw: bool
    reads_features: bool

    @property
    def views(self) -> tuple[bool, ...]:
        """For each layer, whether nodes have edges to themselves besides."""
        return tuple(layer.widths.self_loops for layer in self.layers)


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


class Shape(Protocol):
    """A graph as far as it is cut, sampled and dealt out."""

    def cut(self, method: str, parts: int) -> Cut:
        """How a partition deals it out, by the name of its method and the number of parts."""

    def dealt(self, chunks: int, parts: int, *, self_loops: bool) -> Dealt:
        """How `tensor` deals it out that reads it in chunks."""

    def chunked(self, cutting: Cutting, views: tuple[bool, ...], parts: int, techniques: Techniques) -> Chunked:
        """How `offload` cuts it that reads it by some views, of which the first decides."""

    def drawn(self, drawing: Drawing, parts: int) -> Drawn:
        """What mini-batches are like whose seeds are computed by the workers that own them."""


@dataclass(frozen=True, kw_only=True)
class Workload:
    """What is to be trained.

    Attributes:
        graph: Sizes of the graph.
        model: Sizes of the model.
        shape: How the graph is dealt out.
    """

    graph: Sizes
    model: ModelSizes
    shape: Shape


def graph_sizes(graph: Graph) -> Sizes:
    """Of a graph at hand, which has features and labels."""
    assert graph.features is not None
    features = graph.features
    entries = features.shape[1] if isinstance(features, Tensor) else len(features.values) / max(1, graph.num_nodes)
    return Sizes(
        name=graph.name,
        nodes=graph.num_nodes,
        edges=graph.num_edges,
        features=graph.num_features,
        feature_bytes=features.dtype.itemsize,
        row_entries=entries,
        train=len(graph.split.train),
        classes=graph.num_classes,
    )


def model_sizes(model: Model, graph: Graph) -> ModelSizes:
    """Of a model on a graph, which has features."""
    assert graph.features is not None
    constant = is_constant(model, graph.features)
    layers = [
        _layer(layer, constant=constant and number == place == 0, run=number if only_propagates(layer) else None)
        for number, run in enumerate(runs_of(model.stages()))
        for place, layer in enumerate(run)
    ]
    if model.encoder is not None:
        layers[0] = replace(layers[0], weights=layers[0].weights + _weights(model.encoder))
    parameters = [parameter.numel() for parameter in model.parameters() if parameter.requires_grad]
    return ModelSizes(
        layers=tuple(layers),
        parameters=(len(parameters), sum(parameters)),
        number_bytes=next(model.parameters()).dtype.itemsize,
        state_bytes=len(packed(model.state_dict())),
        takes_raw=model.passes_features_on and layers[0].widths.raw_source,
        drops_raw=model.input_dropout > 0,
        reads_features=model.encoder is None,
    )


def _layer(layer: Layer, *, constant: bool, run: int | None) -> LayerSizes:
    return LayerSizes(
        widths=layer.widths, constant=constant, fixed=without_parameters(layer), run=run, weights=_weights(layer)
    )


def _weights(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters() if parameter.dim() > 1)


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
