"""CompGCN: messages composed of a source and a trained vector of the relation. Letters as in `outgrow.nn.layer`."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.errors import InputError
from outgrow.core.validation import out_of_range_error, require_counts, validate_choice
from outgrow.nn.decoder import ProductDecoder, parameter_rows
from outgrow.nn.encoder import LinearEncoder
from outgrow.nn.layer import Conv, ConvSpec, Features, NodeMessages
from outgrow.nn.model import Model
from outgrow.nn.projection import Projection
from outgrow.nn.stack import LayerPosition, StackOptions, accept_stack_options, make_stack
from outgrow.ops.aggregation.composed import (
    COMPOSITIONS,
    CORR,
    MULT,
    ComposedSum,
    CorrelatedSum,
    correlate_rows,
    restore_rows,
    transform_rows,
)
from outgrow.ops.edge_weight import mean_weight


class RelationVectors(nn.Module):
    """Vectors ``[R, F]`` of relations: trained ones, or those of a layer before times a trained matrix. Final.

    Args:
        num_relations: ``R``.
        columns: ``F``.
        before: Vectors of the layer before; None for the first.
    """

    def __init__(self, num_relations: int, columns: int, before: RelationVectors | None = None) -> None:
        super().__init__()
        self.num_relations = num_relations
        self.columns = columns
        self.before = before
        self.vectors = nn.Parameter(torch.empty(num_relations, columns)) if before is None else None
        self.map = None if before is None else Projection(before.columns, columns)
        if self.vectors is not None:
            # A product with them keeps the size of a row.
            nn.init.normal_(self.vectors)

    def forward(self) -> Tensor:
        """Return ``[R, F]``."""
        if self.before is None or self.map is None:
            assert self.vectors is not None
            return self.vectors
        mapped: Tensor = self.before() @ self.map.weight
        return mapped


@check_arguments()
class CompGCNConv(Conv):
    """``x'_v = (x_v o z) W + b + sum over directions of (mean over in-edges (u, v, r) of x_u o z_r) W_direction``.

    Vashishth et al., Composition-based multi-relational graph convolutional networks, ICLR 2020. ``o`` is a difference,
    a product by column or a circular correlation, whose rows are sent as their Fourier transforms; the directions are
    relations and their inverses, which have numbers behind all relations. Weights of edges are divided by their sum
    over all in-edges of the node, of both directions.

    Args:
        in_features: ``D``.
        out_features: ``O``.
        num_relations: ``R``, inverses included.
        composition: ``sub``, ``mult`` or ``corr``.
        inverses: Whether the second half of the relations are inverses.
        before: Convolution of the layer before, whose vectors of relations are mapped; None for vectors of its own.

    Raises:
        InputError: There is no such composition; relations with inverses are odd in number; the convolution before has
            other relations or gives another width.
    """

    normalizes_weights = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        num_relations: int,
        *,
        composition: str = "mult",
        inverses: bool = False,
        before: Conv | None = None,
    ) -> None:
        super().__init__()
        require_counts(num_relations=num_relations)
        validate_choice("composition", composition, dict.fromkeys(COMPOSITIONS))
        if inverses and num_relations % 2:
            raise out_of_range_error("num_relations", "an even number: relations and their inverses", num_relations)
        _require_before(before, num_relations, in_features)
        self.num_relations = num_relations
        self.composition = composition
        vectors: RelationVectors | None = before.relations if isinstance(before, CompGCNConv) else None
        self.relations: RelationVectors = RelationVectors(num_relations, in_features, vectors)
        self.own_vector = nn.Parameter(torch.empty(in_features))
        nn.init.normal_(self.own_vector)
        directions = 1 + inverses
        self.itself = Projection(in_features, out_features, bias=True)
        self.neighbour = Projection(directions * in_features, out_features)
        num_forward = num_relations // directions
        transforms = composition == CORR
        # Real and imaginary parts of the first half of a transform, which determines the other half.
        parts, columns = (2, in_features // 2 + 1) if transforms else (1, in_features)
        self.aggregation = (
            CorrelatedSum(self.relations, num_forward)
            if transforms
            else ComposedSum(self.relations, composition, num_forward)
        )
        self.spec = ConvSpec(
            in_features=in_features,
            out_features=out_features,
            source=(parts, columns),
            aggregate=(parts * directions, columns),
            static_edge_weight=True,
            source_is_input=not transforms,
            reads_target=True,
        )

    def source(self, x_VD: Features) -> NodeMessages:
        """Return ``[V, 1, D]`` the input, or ``[V, 2, D // 2 + 1]`` its Fourier transform."""
        assert isinstance(x_VD, Tensor)
        return NodeMessages(transform_rows(x_VD) if self.composition == CORR else x_VD[:, None], None)

    def edge_weight(self, block: Block, source: NodeMessages, target: NodeMessages) -> Tensor:
        """Return ``[E, 1]``: weight of each edge over that of all in-edges of its destination."""
        assert source.values is not None
        return mean_weight(block, source.values.dtype)

    def update(self, x_VD: Features, aggregate_VCF: Tensor) -> Tensor:
        """Return ``[Vd, O]``: the node itself, composed with a vector, and the aggregates, each times its weight."""
        assert isinstance(x_VD, Tensor)
        if self.composition == CORR:
            composed = correlate_rows(x_VD, self.own_vector)
            transforms = aggregate_VCF.reshape(-1, 2, aggregate_VCF.shape[2])
            sums = restore_rows(transforms, self.spec.in_features).view(len(x_VD), self.neighbour.weight.shape[0])
        else:
            composed = x_VD * self.own_vector if self.composition == MULT else x_VD - self.own_vector
            sums = aggregate_VCF.flatten(1)
        return self.itself.add_products(composed, (sums, self.neighbour.weight))


@accept_stack_options()
def CompGCN(
    in_features: int,
    hidden: int,
    out_features: int,
    *,
    num_relations: int,
    composition: str = "mult",
    inverses: bool = False,
    sparse_input: bool = False,
    **stack: Unpack[StackOptions],
) -> Model:
    """A stack of `CompGCNConv`, whose vectors of relations are mapped from layer to layer; see `GCN` for the rest.

    Args:
        in_features: Width of the features, which must be dense unless ``sparse_input``.
        hidden: Width of hidden layers.
        out_features: Number of classes, or the width that a decoder takes.
        num_relations: Number of relations of edges, inverses included.
        composition: ``sub``, ``mult`` or ``corr``.
        inverses: Whether the second half of the relations are inverses, which then have weights of their own.
        sparse_input: A linear map of the features to ``hidden`` columns precedes the layers, which compose dense rows.
        **stack: ``layers`` (or ``num_layers``), ``dropout``, ``norm`` and the other fields of `Stack`.
    """
    made = list[CompGCNConv]()

    def make_conv(width_in: int, width_out: int, position: LayerPosition) -> Conv:
        before = made[-1] if made else None
        conv = CompGCNConv(
            width_in, width_out, num_relations, composition=composition, inverses=inverses, before=before
        )
        made.append(conv)
        return conv

    width = hidden if sparse_input else in_features
    model = make_stack(stack).build((width, hidden, out_features), make_conv)
    return model.with_encoder(LinearEncoder(in_features, hidden)) if sparse_input else model


@check_arguments()
class ComposedDistMult(ProductDecoder):
    """DistMult by the vectors of relations of a CompGCN, times a matrix, divided by ``sqrt(F)``. Final.

    Both share the vectors, which encoder and decoder train.

    Args:
        model: The encoder, whose last layer is a `CompGCNConv`.

    Raises:
        InputError: It is another.
    """

    def __init__(self, model: Model) -> None:
        super().__init__()
        last = model.layers_list()[-1].conv
        if not isinstance(last, CompGCNConv):
            raise InputError(
                "the decoder takes its vectors from another encoder",
                needed="a model whose last layer is a CompGCNConv",
                got=type(last).__name__,
                repair="give og.nn.CompGCN(...) (--model compgcn), or use og.nn.DistMult (decoder=distmult), which has "
                "vectors of its own",
            )
        self.num_relations = last.num_relations
        self.relations = RelationVectors(last.num_relations, last.spec.out_features, last.relations)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the encoder's output."""
        return columns == self.relations.columns

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: the scaled rows, which are the same for either end."""
        return x_NF * parameter_rows(self.relations() * self.relations.columns**-0.5, relation_N, x_NF)

    def relation_rows(self, relations_P: Tensor) -> Tensor:
        """Return ``[P, F]``: the mapped vectors of relations."""
        z_RF = self.relations()
        return parameter_rows(z_RF, relations_P, z_RF)


def _require_before(before: Conv | None, num_relations: int, in_features: int) -> None:
    if before is None:
        return
    fits = isinstance(before, CompGCNConv) and before.num_relations == num_relations
    if not fits or before.spec.out_features != in_features:
        raise InputError(
            "the layer before has other relations, or gives rows of another width",
            needed=f"a CompGCNConv of {num_relations} relations and {in_features} columns",
            got=f"{type(before).__name__} of {before.num_relations} relations and {before.spec.out_features} columns",
            repair="build both by og.nn.CompGCN(...)",
        )
