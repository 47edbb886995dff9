"""Layers of a full graph that compute some rows: which ones, from which in-edges, and from which rows below."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.objective import index_output_rows
from outgrow.nn.layer import Features
from outgrow.ops.rows.gather import concat_ranges
from outgrow.ops.sparse import index_rows, slice_rows


class LayerRows(NamedTuple):
    """The own nodes whose output of a layer is of use.

    Attributes:
        rows: ``[m]`` int64, ascending, rows of the layer's input; or the range that they are.
        block: Their in-edges. Source rows are those of the layer's input, then those of the halo.
    """

    rows: Tensor | range
    block: Block

    def select_rows(self, x: Features, first: int = 0, last: int | None = None) -> Features:
        """Return rows of the layer's input: all of these, or from the ``first`` one to the one before the ``last``."""
        rows = self.rows[first:last]
        if isinstance(rows, range):
            return slice_rows(x, rows.start, rows.stop)
        return index_output_rows(x, rows) if isinstance(x, Tensor) else index_rows(x, rows.to(x.device))


class NeededRows(NamedTuple):
    """What each layer of an inference computes.

    Attributes:
        inputs: ``[n]`` int64, ascending own rows of the features that are read; None for all.
        layers: For each layer its rows; None for all. Above a layer that computes some, none computes all.
    """

    inputs: Tensor | None
    layers: tuple[LayerRows | None, ...]


def select_destinations(block: Block, rows: Tensor) -> Block:
    """Return the block of some destination rows, ascending, their in-edges and all sources, with the same edge ids."""
    edges = block.edges
    rows = rows.to(edges.indptr.device)
    counts = edges.indptr[rows + 1] - edges.indptr[rows]
    at = concat_ranges(edges.indptr[rows], counts)

    def select(values: Tensor | None) -> Tensor | None:
        return None if values is None else values.index_select(0, at)

    part = replace(
        edges,
        indptr=torch.cat([counts.new_zeros(1), counts.cumsum(0)]),
        indices=edges.indices.index_select(0, at),
        relation=select(edges.relation),
        weight=select(edges.weight),
        features=select(edges.features),
        cache={},
    )
    return replace(
        block,
        edges=part,
        dst_nodes=block.dst_nodes[rows],
        dst_degree=block.dst_degree[rows],
        first_edge=0,
        edge_ids=at + block.first_edge if block.edge_ids is None else select(block.edge_ids),
        sample_weight=select(block.sample_weight),
        relation_degree=select(block.relation_degree),
        edge_scores=select(block.edge_scores),
    )


def select_sources(block: Block, rows: Tensor) -> Block:
    """Return the same edges with some source rows alone, among them the sources of all edges.

    Args:
        block: The edges.
        rows: ``[s]`` int64, distinct source rows, in the order that they shall have.
    """
    edges = block.edges
    rows = rows.to(edges.indptr.device)
    place = torch.zeros(edges.num_src, dtype=edges.indices.dtype, device=rows.device)
    place[rows] = torch.arange(len(rows), dtype=place.dtype, device=rows.device)
    return replace(
        block,
        edges=replace(edges, indices=place[edges.indices.long()], num_src=len(rows), cache={}),
        src_nodes=block.src_nodes[rows],
        src_degree=block.src_degree[rows],
    )
