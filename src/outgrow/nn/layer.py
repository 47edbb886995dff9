"""The layer contract: what a layer author writes, and what strategies see of it.

Letters: ``V`` nodes, ``Vs`` sources, ``Vd`` destinations, ``E`` edges; ``D`` input width, ``O`` output width;
``C`` channels (heads, bases, gates), ``F`` columns (the only axis that is ever sliced), ``K`` scores of a node.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from outgrow.core import old_names
from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_members, renamed_options
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.epilogue import DropoutSpec, LayerNormSpec, epilogue
from outgrow.ops.linear import affine
from outgrow.ops.rng import validate_probability
from outgrow.ops.sparse import SparseRows

Features = Tensor | SparseRows
"""``[V, D]`` input of a layer: dense, or sparse rows (raw features of the first layer)."""


@renamed_options(columns="values", score="scores")
class NodeMessages(NamedTuple):
    """What nodes give as sources, or as destinations.

    Attributes:
        values: ``[V, C, F]``; None if nothing is given.
        scores: ``[V, K]``, narrow, never sliced; None if there is none.
    """

    values: Tensor | None
    scores: Tensor | None


@renamed_options(**old_names.CONV_SPEC)
@dataclass(frozen=True, kw_only=True)
class ConvSpec:
    """All that strategies, exchange and planner need to know of a convolution.

    Attributes:
        in_features: ``D``.
        out_features: ``O``.
        source: Channels and columns of a source's row; (0, 0) if it gives none.
        target: Channels and columns of a destination's row; (0, 0) if it gives none.
        score: Number of scores ``K`` that a source and a destination give.
        aggregate: Channels and columns of the aggregate.
        static_edge_weight: `Conv.edge_weight` reads the graph only.
        reads_target: `Conv.update` or `Conv.target` reads the destination's input.
        self_loops: Edges include exactly one self-loop per node.
        source_is_input: `Conv.source` gives its input as it is, as one channel.
        needs_full_neighborhood: `Conv.edge_weight` must see all in-edges of a destination at once, as a
            softmax or a count does.
    """

    in_features: int
    out_features: int
    source: tuple[int, int]
    target: tuple[int, int] = (0, 0)
    score: int = 0
    aggregate: tuple[int, int]
    static_edge_weight: bool
    reads_target: bool
    self_loops: bool = False
    source_is_input: bool = False
    needs_full_neighborhood: bool = False


@renamed_members(**old_names.CONV)
class Conv(nn.Module, ABC):
    """A graph convolution in four phases: `source`, `edge_weight`, aggregation, `update`.

    A subclass is final. It sets ``spec`` and ``aggregation`` in its constructor and draws random numbers only from
    ``block.key``.

    Attributes:
        spec: What strategies need to know.
        aggregation: How source rows are combined.
        accepts_sparse: Whether the input may be `SparseRows`: it is projected before anything else.
        accepts_half: Whether a constant input may be in half precision: it is projected, or summed up by `WeightedSum`.
        num_relations: Relations that the edges of the graph must have; 0 if it reads none.
        exact: Whether the results do not depend on how the work is cut; false for draws that are not keyed.
    """

    spec: ConvSpec
    aggregation: Aggregation
    accepts_sparse: bool = True
    accepts_half: bool = False
    num_relations: int = 0
    exact: bool = True

    @abstractmethod
    def source(self, x_VD: Features) -> NodeMessages:
        """What each node gives its out-neighbours; dense, once per node."""

    def target(self, x_VD: Features) -> NodeMessages:
        """What each destination adds to its in-edges; by default nothing."""
        return NodeMessages(None, None)

    def source_and_target(self, x_VD: Features) -> tuple[NodeMessages, NodeMessages]:
        """`source` and `target` of the same nodes; a layer may share work between them."""
        return self.source(x_VD), self.target(x_VD)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor | None:
        """``[E, K]`` weight of each edge; None if all are 1.

        Reads scores and the graph, never columns (of which it takes the type alone).
        """
        return None

    def aggregate_first(self) -> Conv | None:
        """The same convolution with the same parameters, whose source rows are its input as it is (`source_is_input`).

        Itself if they are; None if there is none: where anything but a product precedes the sum.
        """
        return self if self.spec.source_is_input else None

    @abstractmethod
    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """``[Vd, O]`` from the destinations' input and their aggregate, without `epilogue_bias`; dense."""

    @property
    def epilogue_bias(self) -> Tensor | None:
        """``[O]`` that is added to what `update` gives, in one pass with what follows; by default nothing."""
        return None


@dataclass(frozen=True, kw_only=True)
class Epilogue:
    """What follows a convolution, in this order: norm, activation, residual, dropout.

    Attributes:
        norm: Whether to normalise each row (layer norm; norms that mix rows would break exactness).
        activation: Element-wise function; None for none.
        residual: Whether to add the layer's input; input and output have the same width then.
        dropout: Probability of zeroing an element of the output, in [0, 1).
    """

    norm: bool = False
    activation: Callable[[Tensor], Tensor] | None = None
    residual: bool = False
    dropout: float = 0.0

    def __post_init__(self) -> None:
        validate_probability("dropout", self.dropout)


def make_norm(epilogue: Epilogue, in_features: int, out_features: int) -> nn.LayerNorm | None:
    """The norm that follows, if one does.

    Raises:
        ValueError: A residual between widths that differ.
    """
    if epilogue.residual and in_features != out_features:
        raise ValueError(f"a residual needs equal widths: got in {in_features}, out {out_features}")
    return nn.LayerNorm(out_features) if epilogue.norm else None


def apply_epilogue(
    then: Epilogue,
    norm: nn.LayerNorm | None,
    x_VD: Features,
    y_VO: Tensor,
    bias_O: Tensor | None,
    nodes_V: Tensor,
    key: int | None,
) -> Tensor:
    """``[V, O]``: what is made of a result ``y`` by what follows it; ``x`` is what it was computed from.

    Args:
        then: What follows.
        norm: Its norm, if it has one.
        x_VD: Added where there is a residual.
        y_VO: The result.
        bias_O: Added to it; None for nothing.
        nodes_V: ``[V]`` int64, global ids of the rows.
        key: Key of the dropout; None draws nothing.
    """
    residual = x_VD if then.residual else None
    assert not isinstance(residual, SparseRows)
    return epilogue(
        y_VO,
        bias_F=bias_O,
        norm=None if norm is None else LayerNormSpec(norm.weight, norm.bias, norm.eps),
        activation=then.activation,
        residual_NF=residual,
        drop=None if key is None else DropoutSpec(nodes_V, key, then.dropout),
    )


@renamed_options(finish="epilogue")
@renamed_members(**old_names.LAYER)
class Layer(nn.Module):
    """A convolution and what follows it. Final: strategies call its parts, in their own order and place.

    Args:
        conv: The convolution.
        epilogue: What follows it; nothing by default, as in the last layer of a model.

    Attributes:
        output_hook: Told of the ids of nodes and of what the layer gives for them, ``[Vd, O]``; None for nobody.

    Raises:
        ValueError: A residual between widths that differ.
    """

    def __init__(self, conv: Conv, epilogue: Epilogue | None = None) -> None:
        super().__init__()
        self.conv = conv
        self.epilogue = epilogue or Epilogue()
        self.norm = make_norm(self.epilogue, conv.spec.in_features, conv.spec.out_features)
        self.output_hook: Callable[[Tensor, Tensor], None] | None = None

    @property
    def spec(self) -> ConvSpec:
        """Widths of the convolution."""
        return self.conv.spec

    @property
    def reads_target(self) -> bool:
        """Whether `target` or `update` reads the destinations' input."""
        return self.spec.reads_target or self.epilogue.residual

    @property
    def accepts_sparse(self) -> bool:
        """Whether the input may be `SparseRows`."""
        return self.conv.accepts_sparse and not self.epilogue.residual

    @property
    def accepts_half(self) -> bool:
        """Whether a constant input may be in half precision."""
        return self.conv.accepts_half and not self.epilogue.residual

    def source(self, x_VD: Features) -> NodeMessages:
        """`Conv.source`."""
        return self.conv.source(x_VD)

    def target(self, x_VD: Features) -> NodeMessages:
        """`Conv.target`."""
        return self.conv.target(x_VD)

    def source_and_target(self, x_src: Features, x_dst: Features) -> tuple[NodeMessages, NodeMessages]:
        """`source` and `target`; in one go where both sides are the same nodes."""
        return self.conv.source_and_target(x_src) if x_src is x_dst else (self.source(x_src), self.target(x_dst))

    def aggregate(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """``[Vd, C, F]``: weigh the edges and aggregate; on whole rows, column slices, chunks or edge parts alike."""
        assert source.values is not None
        weight_EK = self.conv.edge_weight(block, source, target)
        return self.conv.aggregation(block, source.values, target.values, weight_EK)

    def update(self, x_VD: Features, aggregate_VCF: Tensor, block: Block) -> Tensor:
        """``[Vd, O]``: the convolution's update, its late bias and what follows.

        Dropout is drawn if ``block.key`` is not None.
        """
        return self.update_nodes(x_VD, aggregate_VCF, block.dst_nodes, block.key)

    def update_nodes(self, x_VD: Features, aggregate_VCF: Tensor, nodes_V: Tensor, key: int | None) -> Tensor:
        """``[Vd, O]``: `update` of nodes that no block is needed for.

        Args:
            x_VD: Input of the nodes.
            aggregate_VCF: Their aggregate.
            nodes_V: ``[Vd]`` int64, their global ids.
            key: Key of this layer in this step; None draws nothing.
        """
        y_VO = self.conv.update(x_VD, aggregate_VCF)
        out_VO = apply_epilogue(self.epilogue, self.norm, x_VD, y_VO, self.conv.epilogue_bias, nodes_V, key)
        if self.output_hook is not None:
            self.output_hook(nodes_V, out_VO)
        return out_VO

    def aggregate_first(self) -> Layer | None:
        """The same layer with the same parameters, of `Conv.aggregate_first`; None if there is none."""
        conv = self.conv.aggregate_first()
        if conv is None or conv is self.conv:
            return None if conv is None else self
        twin = Layer(conv, self.epilogue)
        twin.norm = self.norm
        return twin

    @property
    def has_static_aggregate(self) -> bool:
        """Whether the aggregate has no parameters: it is constant where the input is."""
        return self.spec.static_edge_weight and self.spec.source_is_input

    def forward(self, block: Block, x_src: Features, x_dst: Features) -> Tensor:
        """``[Vd, O]``: all phases at once, on one worker."""
        source, target = self.source_and_target(x_src, x_dst)
        return self.update(x_dst, self.aggregate(block, source, target), block)


@renamed_members(plus="add_products")
class Projection(nn.Module):
    """``x @ weight (+ bias)`` for dense and for sparse rows; Glorot-uniform weight, zero bias.

    Attributes:
        weight: ``[D, O]``.
        bias: ``[O]``, or None.
    """

    def __init__(self, in_features: int, out_features: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(in_features, out_features))
        self.bias = nn.Parameter(torch.zeros(out_features)) if bias else None
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x_VD: Features) -> Tensor:
        """``[V, O]``."""
        return project_rows(x_VD, self.weight, self.bias)

    def add_products(self, x_VD: Features, *terms: tuple[Tensor, Tensor]) -> Tensor:
        """``[V, O]``: the projection, plus the products of these pairs of rows ``[V, I]`` and weights ``[I, O]``."""
        if isinstance(x_VD, Tensor):
            return affine((x_VD, self.weight), *terms, bias_O=self.bias)
        return project_rows(x_VD, self.weight, self.bias) + affine(*terms)


def project_rows(x_VD: Features, weight_DO: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """``[V, O]``: ``x @ weight (+ bias)`` for dense and for sparse rows."""
    if isinstance(x_VD, Tensor):
        return affine((x_VD, weight_DO), bias_O=bias_O)
    y_VO: Tensor = x_VD @ weight_DO
    return y_VO if bias_O is None else y_VO + bias_O


def project_channels(x_VD: Features, *projections: Projection) -> Tensor:
    """``[V, C, O]``: a channel for each of the projections, all of the same width; one product."""
    width = projections[0].weight.shape[1]
    biases = [torch.zeros_like(p.weight[0]) if p.bias is None else p.bias for p in projections]
    bias = torch.cat(biases) if any(p.bias is not None for p in projections) else None
    y_VJ = project_rows(x_VD, torch.cat([p.weight for p in projections], 1), bias)
    return torch.unflatten(y_VJ, 1, (len(projections), width))


def require_counts(**counts: int) -> None:
    """Raise a ValueError unless every count is at least 1."""
    for name, count in counts.items():
        if count < 1:
            raise ValueError(f"{name} must be at least 1, got {count}")
