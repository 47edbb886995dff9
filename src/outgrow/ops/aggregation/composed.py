"""Sums of rows composed with vectors of relations, apart by the direction of the relation, without a row per edge.

Letters: ``Vs`` sources, ``Vd`` destinations, ``E`` edges, ``R`` relations, ``C`` directions, ``F`` columns.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from outgrow.core.block import Block, Edges
from outgrow.ops.aggregation.base import Aggregate, Aggregation
from outgrow.ops.aggregation.relation_edges import validate_relations
from outgrow.ops.aggregation.relational import sum_scaled_rows
from outgrow.ops.aggregation.weighted_sum import sum_weighted_rows

COMPOSITIONS = ("sub", "mult")


class ComposedSum(Aggregation):
    """``out[v, c] = sum over in-edges e of direction c of weight[e] * (src[source] o z[relation])``.

    ``o`` is a difference (``sub``) or a product by column (``mult``): the sum of differences is that of rows less that
    of vectors.

    Args:
        relations: Returns ``[R, F]``, the trained vectors.
        composition: One of `COMPOSITIONS`.
        num_forward: Relations below this number are of direction 0, others of direction 1; ``R`` for one direction.
    """

    sliceable = True
    additive = True
    has_parameters = True

    def __init__(self, relations: Callable[[], Tensor], composition: str, num_forward: int) -> None:
        self.relations = relations
        self.composition = composition
        self.num_forward = num_forward

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate one channel with one constant weight per edge, into a channel per direction."""
        return self._sum_composed(self.relations(), block, src_VsCF, weight_EK)

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation with these columns of the vectors only."""
        return lambda block, src_VsCF, _, weight_EK: self._sum_composed(
            self.relations()[:, first:last], block, src_VsCF, weight_EK
        )

    def _sum_composed(self, z_RF: Tensor, block: Block, src_VsCF: Tensor, weight_EK: Tensor | None) -> Tensor:
        assert weight_EK is not None
        edges, numbers = block.edges, torch.arange(len(z_RF), device=z_RF.device)
        ranges = (numbers < self.num_forward, numbers >= self.num_forward)
        parts = []
        for chosen in ranges if self.num_forward < len(z_RF) else ranges[:1]:
            # A mask by relation, so that every direction has all edges, and their weights, as they are.
            mask_RF = chosen[:, None].to(z_RF.dtype).expand(z_RF.shape).contiguous()
            if self.composition == "mult":
                parts.append(sum_scaled_rows(src_VsCF, z_RF * mask_RF, weight_EK, edges))
            else:
                rows = sum_scaled_rows(src_VsCF, mask_RF, weight_EK, edges)
                of_relations = _relation_edges(edges, len(z_RF))
                parts.append(rows - sum_weighted_rows((z_RF * mask_RF)[:, None], weight_EK, of_relations))
        return torch.cat(parts, 1)


def _relation_edges(edges: Edges, num_relations: int) -> Edges:
    """Return edges from relations instead of sources; once for a block, with what is derived from them."""
    slot = "edges from relations"
    if slot not in edges.cache:
        relation = validate_relations(edges, num_relations)
        edges.cache[slot] = Edges(indptr=edges.indptr, indices=relation.to(edges.indices.dtype), num_src=num_relations)
    found = edges.cache[slot]
    assert isinstance(found, Edges)
    return found
