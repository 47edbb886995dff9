"""Model: a sequence of layers, with an optional encoder of features and an optional decoder of links or edges."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.block import Block
from outgrow.core.deprecation import renamed_members
from outgrow.core.errors import InputError
from outgrow.core.graph_schema import GraphSchema
from outgrow.core.graph_types import GraphTypes
from outgrow.core.validation import validate_probability
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.encoder import Encoder, SequentialEncoder
from outgrow.nn.layer import Features, Layer
from outgrow.ops.block_rows import BlockRows
from outgrow.ops.linear import with_dst_prefix
from outgrow.ops.rng import dropout, dropout_blocks, dropout_sparse, fold_in, write_dropout
from outgrow.ops.sparse import SparseRows


@renamed_members(
    stages="layers_list",
    reads="first_reader",
    passes_features_on="source_is_features",
    input="encode_input",
    above="forward_from_second",
)
@check_arguments()
class Model(nn.Module):
    """Sequence of layers. The output of the last is one logit per class, or the input of a decoder. Final.

    Layer ``l`` draws from ``fold_in(key, l + 1)``, the dropout of the input from ``fold_in(key, 0)``, and the
    encoder from a key derived from that; ``key`` is that of (seed, epoch, step). A draw therefore does not
    depend on which worker computes it.

    Args:
        layers: At least one layer.
        input_dropout: Probability of zeroing an element of the input features, in [0, 1).
        encoder: Encoder of the features of each node, before the first layer; None for none.
        decoder: Decoder that scores links, or predicts targets of edges, from the output of the last layer; None for a
            model of nodes.

    Attributes:
        schema: Names of the graph that the model was trained on, by which other graphs are matched; None before.
        temporal_strategy: How it was trained on in-edges before the time of each node; None for in-edges of any time.
            Prediction is then of all in-edges before the time of each node.
        constructor: Name and arguments of the function of `outgrow.nn` that made the model; None for another model.

    Raises:
        InputError: The widths of encoder and first layer, or of last layer and decoder, do not match.
    """

    schema: GraphSchema | None = None
    temporal_strategy: str | None = None
    constructor: tuple[str, dict[str, Any]] | None = None

    def __init__(
        self,
        layers: Sequence[Layer],
        *,
        input_dropout: float = 0.0,
        encoder: Encoder | None = None,
        decoder: Decoder | EdgeDecoder | None = None,
    ) -> None:
        super().__init__()
        if not len(layers):
            raise InputError("a model has no layers", needed="at least 1", got="0", repair="give it layers")
        validate_probability("input_dropout", input_dropout)
        if encoder is not None and encoder.out_features != layers[0].spec.in_features:
            needed, got = layers[0].spec.in_features, encoder.out_features
            raise InputError(
                "the encoder does not fit the first layer",
                needed=f"{needed} columns, which the first layer takes",
                got=f"{got} columns from the encoder",
                repair="make both of the same width",
            )
        columns = layers[-1].spec.out_features
        if decoder is not None and not decoder.accepts_width(columns):
            raise InputError(
                "the decoder does not take what the last layer gives",
                needed="an output of the width that the decoder takes",
                got=f"{columns} columns",
                repair="make both of the same width",
            )
        self.layers = nn.ModuleList(layers)
        self.input_dropout = input_dropout
        self.encoder = encoder
        self.decoder = decoder

    def accept_sparse_features(self) -> bool:
        """Let the first layer project before it aggregates, as sparse features need; return whether it can.

        Parameters and results are the same, to rounding. If it cannot, the model stays as it is.
        """
        first = self.first_reader
        if isinstance(first, Layer) and not first.accepts_sparse and not first.epilogue.residual:
            first.conv = first.conv.with_projection_first() or first.conv
        return first.accepts_sparse

    def find_static_first_layer(self) -> Layer | None:
        """Return the first layer in a form whose aggregate of dense features is the same in all steps; None if none is.

        None, too, where the sum is wider than the features, so that steps would cost more in that form.
        Parameters are shared, and results the same, to rounding.
        """
        first = self.layers_list()[0]
        form = None if self.encoder is not None or self.input_dropout else first.aggregate_first()
        if form is None or not form.has_static_aggregate:
            return None
        return form if form.spec.aggregate == (1, form.spec.in_features) else None

    @check_arguments()
    def with_decoder(self, decoder: Decoder | EdgeDecoder) -> Model:
        """Return a model of links, or of edges, with the same layers; both models share the parameters.

        Raises:
            InputError: The decoder does not accept the width of the last layer.
        """
        return Model(self.layers_list(), input_dropout=self.input_dropout, encoder=self.encoder, decoder=decoder)

    @check_arguments()
    def with_encoder(self, encoder: Encoder) -> Model:
        """Return a model with an encoder before its input, and before an encoder that it has; parameters are shared.

        Raises:
            InputError: The width of the encoder is not that of the input.
        """
        both = encoder if self.encoder is None else SequentialEncoder([encoder, self.encoder])
        return Model(self.layers_list(), input_dropout=self.input_dropout, encoder=both, decoder=self.decoder)

    def layers_list(self) -> list[Layer]:
        """Return the layers, in order."""
        return [layer for layer in self.layers if isinstance(layer, Layer)]

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context in which all modules are in evaluation mode; afterwards each is in the mode of before."""
        with self.keeping_modes():
            self.eval()
            yield

    @contextmanager
    def keeping_modes(self) -> Iterator[None]:
        """Context after which each module is in the mode of before: training or evaluation."""
        modes = {module: module.training for module in self.modules()}
        try:
            yield
        finally:
            for module, mode in modes.items():
                module.training = mode

    @property
    def dtype(self) -> torch.dtype:
        """Type of the first parameter, in which the model computes; of vectors of nodes if it has none, or float32."""
        floats = (each.dtype for each in self.buffers() if each.is_floating_point())
        return next((each.dtype for each in self.parameters()), next(floats, torch.float32))

    @property
    def reads_features(self) -> bool:
        """Whether features of nodes are read; not if vectors of a `NodeEmbedding` replace them."""
        return self.encoder is None or self.encoder.reads_features

    @property
    def reads_relations(self) -> bool:
        """Whether relations of edges matter to some layer or to the decoder."""
        decoder = 0 if self.decoder is None else self.decoder.num_relations
        return bool(decoder or any(layer.conv.num_relations for layer in self.layers_list()))

    @property
    def reads_types(self) -> bool:
        """Whether a layer or the encoder has modules per type of nodes or edges."""
        encoder = self.encoder is not None and self.encoder.reads_types
        return encoder or any(layer.conv.reads_types for layer in self.layers_list())

    def bind_types(self, types: GraphTypes) -> None:
        """Match modules per type with the types of a graph, by name; other modules stay as they are.

        Raises:
            InputError: The model was made for other types, or a layer reads a type that none enters before.
        """
        if self.encoder is not None:
            self.encoder.bind_types(types)
        layers = self.layers_list()
        for layer in layers:
            layer.conv.bind_types(types)
        for index, (before, after) in enumerate(pairwise(layers), 1):
            read = after.conv.types_read(types)
            if lost := [name for name in before.conv.types_without_output if name in read]:
                raise InputError(
                    f"no relation enters {', '.join(lost)}, of which layer {index + 1} reads what layer {index} gives",
                    needed="an edge type into each type that a later layer reads",
                    got="edge types " + ", ".join(map(str, types.edge_types)),
                    repair="give the graph reverse edges, as T.ToUndirected() of PyG does, with relations of their own",
                )

    @property
    def first_reader(self) -> Encoder | Layer:
        """Module that reads the features: the encoder, or the first layer."""
        return self.layers_list()[0] if self.encoder is None else self.encoder

    @property
    def in_features(self) -> int:
        """``D``."""
        return self.layers_list()[0].spec.in_features if self.encoder is None else self.encoder.in_features

    @property
    def source_is_features(self) -> bool:
        """Whether the source rows of the first layer are the features themselves."""
        return self.encoder is None and self.layers_list()[0].spec.source_is_input

    def encode_input(
        self, x_VD: Features, nodes_V: Tensor, key: int | None, *, overwrite_input: bool = False
    ) -> Features:
        """Return the first layer's input for ``nodes_V``: features, with dropout if ``key`` is given, encoded."""
        x = x_VD if key is None else self._drop_input(x_VD, nodes_V, fold_in(key, 0), overwrite=overwrite_input)
        if self.encoder is None:
            return x
        # Not the key of the input's dropout itself: equal keys would draw equal masks.
        encoded: Tensor = self.encoder(x, nodes_V, None if key is None else fold_in(key, 0, 0))
        return encoded

    def _drop_input(self, x_VD: Features, nodes_V: Tensor, key: int, *, overwrite: bool) -> Features:
        if isinstance(x_VD, SparseRows):
            return dropout_sparse(x_VD, nodes_V, key, self.input_dropout)
        if isinstance(x_VD, BlockRows):
            return dropout_blocks(x_VD, nodes_V, key, self.input_dropout)
        if overwrite and self.input_dropout:
            write_dropout(x_VD, nodes_V, key, self.input_dropout, x_VD)
            return x_VD
        return dropout(x_VD, nodes_V, key, self.input_dropout)

    def forward(
        self,
        blocks: Sequence[Block],
        x_VD: Features,
        key: int | None = None,
        first_aggregate: Tensor | None = None,
        *,
        overwrite_input: bool = False,
    ) -> Tensor:
        """Return the logits of the last block's destinations, on one worker.

        Args:
            blocks: One per layer; the destinations of a block are the sources of the next, in the same order.
                If a layer reads its destinations, they are the first source rows.
            x_VD: ``[Vs, D]`` features of the first block's sources.
            key: Key of (seed, epoch, step); None for no dropout.
            first_aggregate: ``[Vd, C, F]`` aggregate of the first layer, if it is known; None to compute it.
            overwrite_input: Whether ``x`` may be overwritten: dropout of dense features is then done in place.

        Returns:
            ``[Vd, C]``.
        """
        encoded = self.encode_input(x_VD, blocks[0].src_nodes, key, overwrite_input=overwrite_input)
        x, x_dst = src_and_dst_rows(encoded, len(blocks[0].dst_nodes))
        first, keyed = self.layers_list()[0], blocks[0].with_rng_key(layer_key(key, 0))
        # A known aggregate, such as a cached one of raw features, saves the widest sum of the model.
        if first_aggregate is None:
            return self.forward_from_second(blocks[1:], first(keyed, x, x_dst), key)
        return self.forward_from_second(blocks[1:], first.update(x_dst, first_aggregate, keyed), key)

    def forward_first(self, blocks: Sequence[Block], x_VD: Features) -> Tensor:
        """Return the output of the first layers, one for each block, without random draws; see `forward`."""
        x = self.encode_input(x_VD, blocks[0].src_nodes, None)
        for layer, block in zip(self.layers_list(), blocks, strict=False):
            x = layer(block.with_rng_key(None), *src_and_dst_rows(x, len(block.dst_nodes)))
        assert isinstance(x, Tensor)
        return x

    def forward_from_second(self, blocks: Sequence[Block], x_VO: Tensor, key: int | None) -> Tensor:
        """Run `forward` from the first layer's output: ``[Vs, O]`` for the sources of the second block."""
        for index, (layer, block) in enumerate(zip(self.layers_list()[1:], blocks, strict=True), 1):
            x_VO = layer(block.with_rng_key(layer_key(key, index)), *src_and_dst_rows(x_VO, len(block.dst_nodes)))
        return x_VO


def src_and_dst_rows(x: Features, num_dst: int) -> tuple[Features, Features]:
    """Return the rows of the sources, and of the destinations, which are the first ``num_dst`` of them."""
    # The same object for both tells a layer that it may project sources and destinations at once.
    if num_dst == len(x):
        return x, x
    return with_dst_prefix(x, num_dst) if isinstance(x, Tensor) else (x, x.slice_rows(0, num_dst))


def layer_key(key: int | None, index: int) -> int | None:
    """Return the key of layer ``index``, derived from the key of (seed, epoch, step)."""
    # From 1: 0 is the input's.
    return None if key is None else fold_in(key, index + 1)
