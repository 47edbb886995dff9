"""Attention with matrices per edge type.

Letters as in `outgrow.ops.aggregation.relation_matmul`; ``K`` heads, ``F`` columns of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import torch
from torch import Tensor, nn

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregation
from outgrow.ops.aggregation.edge_attention import softmax_over_in_edges
from outgrow.ops.aggregation.relation_matmul import relation_dot, relation_matmul_sum


class TypedAttention(nn.Module, Aggregation):
    """``out[v] = sum over in-edges e of softmax of (key[u] A_r . query[v]) * prior_r / sqrt(F) times value[u] M_r``.

    Head by head; ``u`` is the source of the edge, ``r`` its type, and the softmax is over all in-edges of ``v``,
    whatever their types. Sources are keys, then values, ``[Vs, 1, 2 O]``, and destinations queries, ``[Vd, 1, O]``.
    Matrices are applied to sums over the pairs of edge type and node that have edges, so sources are the same whatever
    the number of edge types. Hu, Dong, Wang & Sun, Heterogeneous graph transformer, WWW 2020.

    Args:
        names: Name of each edge type; parameters are called so.
        heads: Number of heads.
        columns: ``F``.

    Attributes:
        heads: Number of heads.
        order: Names of the edge types, in the order of the relations of the edges.
    """

    sliceable = False
    additive = False
    sums_pairs = True

    def __init__(self, names: Sequence[str], heads: int, columns: int) -> None:
        super().__init__()
        self.key_matrices, self.value_matrices, self.priors = (nn.ParameterDict() for _ in range(3))
        for name in names:
            for matrices in (self.key_matrices, self.value_matrices):
                matrices[name] = nn.Parameter(torch.empty(heads, columns, columns))
                for matrix in matrices[name].detach():
                    nn.init.xavier_uniform_(matrix)
            self.priors[name] = nn.Parameter(torch.ones(heads))
        self.heads = heads
        self.order = tuple(names)

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Return ``[Vd, 1, O]``; see `Aggregation`."""
        assert dst_VdCF is not None
        assert weight_EK is None
        edges = _with_relation(block.edges, len(self.order))
        key_VsO, value_VsO = torch.chunk(src_VsCF.squeeze(1), 2, 1)
        # Prior and scale as factors of small matrices, not of scores.
        scale_RK = self._stack(self.priors) * self._stack(self.key_matrices).shape[-1] ** -0.5
        matrix_RKFF = self._stack(self.key_matrices) * scale_RK[:, :, None, None]
        score_EK = relation_dot(edges, key_VsO, dst_VdCF.squeeze(1), matrix_RKFF)
        alpha_EK = softmax_over_in_edges(edges, score_EK)
        return relation_matmul_sum(edges, value_VsO, alpha_EK, self._stack(self.value_matrices))[:, None]

    def _stack(self, of_types: nn.ParameterDict) -> Tensor:
        return torch.stack([of_types[name] for name in self.order])


def _with_relation(edges: Edges, num_relations: int) -> Edges:
    """Return the edges with relation 0 if there is one relation, which is not stored; made once for a block's edges."""
    if edges.relation is not None or num_relations > 1:
        return edges
    slot = "edges of the only relation"
    if slot not in edges.cache:
        edges.cache[slot] = replace(edges, relation=edges.indices.new_zeros(edges.num_edges), cache={})
    return cast(Edges, edges.cache[slot])
