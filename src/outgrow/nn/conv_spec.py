"""What a convolution tells strategies, and what nodes send: the records of the layer contract.

Letters as in `outgrow.nn.layer`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from outgrow.core import old_names
from outgrow.core.deprecation import renamed_options
from outgrow.ops.sparse import SparseRows

Features = Tensor | SparseRows
"""``[V, D]`` input of a layer: dense, or sparse rows (raw features of the first layer)."""


@renamed_options(columns="values", score="scores")
class NodeMessages(NamedTuple):
    """Rows that nodes send as sources, or use as destinations.

    Attributes:
        values: ``[V, C, F]``; None if there are none.
        scores: ``[V, K]``, narrow, never sliced; None if there is none.
    """

    values: Tensor | None
    scores: Tensor | None


@renamed_options(**old_names.CONV_SPEC)
@dataclass(frozen=True, kw_only=True)
class ConvSpec:
    """Properties of a convolution that strategies and the planner depend on.

    Attributes:
        in_features: ``D``, of sources.
        out_features: ``O``.
        source: Channels and columns of a source row; (0, 0) if there is none.
        target: Channels and columns of a destination row; (0, 0) if there is none.
        score: Number of scores ``K`` of a source, and of a destination.
        aggregate: Channels and columns of the aggregate.
        static_edge_weight: `Conv.edge_weight` reads the graph only.
        reads_target: `Conv.update` or `Conv.target` reads the destination's input.
        self_loops: Edges include exactly one self-loop per node.
        source_is_input: `Conv.source` returns its input unchanged, as one channel.
        needs_full_neighborhood: `Conv.edge_weight` must see all in-edges of a destination at once.
        source_widths: Numbers that are used of a source row of each node type, the first ones of its channels and
            columns; the others are zeros, which no link carries. Empty if all rows are used whole.
        score_widths: The same for the scores of a source.
        target_in_features: ``D`` of destinations; None if it is that of sources, as of every convolution but those
            inside a `outgrow.nn.hetero.HeteroConv`.
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
    source_widths: tuple[int, ...] = ()
    score_widths: tuple[int, ...] = ()
    target_in_features: int | None = None
