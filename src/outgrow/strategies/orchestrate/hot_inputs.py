"""What the output of hot nodes was computed from, kept in host memory: their gradient is computed from it again."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
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
        at = concat_ranges(edges.indptr[positions], counts)
        sources, indices = _number_sources(edges.indices[at].long(), positions, edges.num_src)

        def of_edges(values: Tensor | None) -> Tensor | None:
            return None if values is None else values[at]

        part = Edges(
            indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
            indices=indices,
            num_src=len(sources),
            relation=of_edges(edges.relation),
            weight=of_edges(edges.weight),
            features=of_edges(edges.features),
            feature_sizes=edges.feature_sizes,
        )
        selected = replace(
            block,
            edges=part,
            src_nodes=block.src_nodes[sources],
            dst_nodes=block.dst_nodes[positions],
            src_degree=block.src_degree[sources],
            dst_degree=block.dst_degree[positions],
            # Random draws are functions of these ids.
            edge_ids=block.first_edge + at if block.edge_ids is None else block.edge_ids[at],
            sample_weight=of_edges(block.sample_weight),
            relation_degree=of_edges(block.relation_degree),
            edge_scores=of_edges(block.edge_scores),
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
