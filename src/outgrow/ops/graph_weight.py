"""The weights that edges have in the graph, as aggregations take them."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.ops.edge_weight import as_sampled
from outgrow.ops.half import computed


def graph_weight(block: Block, dtype: torch.dtype) -> Tensor | None:
    """``[E, 1]``: weight of each edge in the graph; None if all are 1. Converted once per block.

    For rows in half precision weights are float32. Edges that stand for others weigh as much as
    they (see `as_sampled`).
    """
    dtype = computed(dtype)
    edges, slot = block.edges, f"graph {dtype}"
    if edges.weight is None and block.stands_for is None:
        return None
    if slot not in edges.derived:
        weight_E = edges.indptr.new_ones(edges.num_edges) if edges.weight is None else edges.weight
        edges.derived[slot] = as_sampled(block, weight_E.to(dtype)[:, None])
    return cast(Tensor, edges.derived[slot])
