"""What the output of hot nodes was computed from, kept in host memory: their gradient is computed from it again."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.hidden_edges import select_edges
from outgrow.nn.layer import Features, Layer
from outgrow.nn.model import Model, src_and_dst_rows
from outgrow.ops.rows.gather import concat_ranges
from outgrow.ops.sparse import SparseRows, index_rows
from outgrow.strategies.orchestrate.sparse_aggregates import aggregate_sparse_rows


class HotInputs(NamedTuple):
    """In-edges of hot nodes, and raw features of their sources.

    Attributes:
        block: The edges, with the key of the bottom layer; its first sources are its destinations.
        rows: ``[Vs, D]`` features of the sources.
        key: Random key of the input.
    """

    block: Block
    rows: Features
    key: int

    def select_nodes(self, positions: Tensor) -> HotInputs:
        """Return the inputs of some destinations, without sources that none of them has.

        Args:
            positions: ``[h]`` int64, distinct rows of the destinations.
        """
        block, edges = self.block, self.block.edges
        counts = edges.indptr.diff()[positions]
        indptr = torch.cat([counts.new_zeros(1), counts.cumsum(0)])
        selected = select_edges(block, indptr, concat_ranges(edges.indptr[positions], counts))
        sources, indices = _number_sources(selected.edges.indices.long(), positions, edges.num_src)
        selected = replace(
            selected,
            edges=replace(selected.edges, indices=indices, num_src=len(sources)),
            src_nodes=block.src_nodes[sources],
            dst_nodes=block.dst_nodes[positions],
            src_degree=block.src_degree[sources],
            dst_degree=block.dst_degree[positions],
        )
        return HotInputs(selected, index_rows(self.rows, sources), self.key)


class HotRows(NamedTuple):
    """Rows of hot nodes in the bottom layer.

    Attributes:
        target: ``[h, D]`` input of the nodes.
        aggregate: ``[h, C, F]``.
    """

    target: Features
    aggregate: Tensor


def aggregate_hot_rows(model: Model, inputs: HotInputs) -> HotRows:
    """Run the bottom layer up to its aggregate.

    Args:
        model: Result of `outgrow.strategies.orchestrate.host_side.bottom_model`.
        inputs: In-edges and features.
    """
    [layer] = model.layers_list()
    block = inputs.block
    encoded = model.encode_input(inputs.rows, block.src_nodes, inputs.key)
    x_src, x_dst = src_and_dst_rows(encoded, len(block.dst_nodes))
    if isinstance(x_src, SparseRows) and layer.spec.source_is_input:
        return HotRows(x_dst, aggregate_sparse_rows(layer, block, x_src))
    messages = layer.source_and_target(x_src, x_dst, block.src_nodes, block.dst_nodes)
    return HotRows(x_dst, layer.aggregate(block, *messages))


def aggregates_raw_features(model: Model, bottom: Layer) -> bool:
    """Whether no parameters precede the aggregate of a bottom layer: the gradient of all needs nothing but that."""
    return bottom.has_static_aggregate and model.encoder is None


def _number_sources(source_E: Tensor, positions: Tensor, num_src: int) -> tuple[Tensor, Tensor]:
    """Return the sources that edges have, the destinations first, and the number of each edge's source among them."""
    place = torch.full((num_src,), -1)
    place[positions] = torch.arange(len(positions))
    others = torch.unique(source_E[place[source_E] < 0])
    place[others] = torch.arange(len(positions), len(positions) + len(others))
    return torch.cat([positions, others]), place[source_E]
