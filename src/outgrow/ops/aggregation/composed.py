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

SUB, MULT, CORR = "sub", "mult", "corr"
COMPOSITIONS = (SUB, MULT, CORR)


class ComposedSum(Aggregation):
    """``out[v, c] = sum over in-edges e of direction c of weight[e] * (src[source] o z[relation])``.

    ``o`` is a difference (``sub``) or a product by column (``mult``): the sum of differences is that of rows less that
    of vectors.

    Args:
        relations: Returns ``[R, F]``, the trained vectors.
        composition: ``sub`` or ``mult``.
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
        edges, parts = block.edges, []
        for mask_RF in _direction_masks(z_RF, self.num_forward):
            if self.composition == MULT:
                parts.append(sum_scaled_rows(src_VsCF, z_RF * mask_RF, weight_EK, edges))
            else:
                rows = sum_scaled_rows(src_VsCF, mask_RF, weight_EK, edges)
                of_relations = _relation_edges(edges, len(z_RF))
                parts.append(rows - sum_weighted_rows((z_RF * mask_RF)[:, None], weight_EK, of_relations))
        return torch.cat(parts, 1)


class CorrelatedSum(Aggregation):
    """``ComposedSum`` with the circular correlation: ``(x o z)[k] = sum over i of x[i] z[(k + i) mod D]``.

    Nickel et al., AAAI 2016. By the Fourier transform it is ``conj(X) Z`` column by column, so sources and sums are
    transforms, real and imaginary parts as two channels of ``D // 2 + 1`` columns (`transform_rows`): four scaled sums.

    Args:
        relations: Returns ``[R, D]``, the trained vectors.
        num_forward: Relations below this number are of direction 0, others of direction 1; ``R`` for one direction.
    """

    sliceable = True
    additive = True
    has_parameters = True

    def __init__(self, relations: Callable[[], Tensor], num_forward: int) -> None:
        self.relations = relations
        self.num_forward = num_forward

    def __call__(self, block: Block, src_VsCF: Tensor, dst_VdCF: Tensor | None, weight_EK: Tensor | None) -> Tensor:
        """Aggregate two channels with one constant weight per edge, into two channels per direction."""
        return self._sum_correlated(transform_rows(self.relations()), block, src_VsCF, weight_EK)

    def restrict_to_columns(self, first: int, last: int) -> Aggregate:
        """Return the aggregation with these columns of the transforms only."""
        return lambda block, src_VsCF, _, weight_EK: self._sum_correlated(
            transform_rows(self.relations())[:, :, first:last], block, src_VsCF, weight_EK
        )

    def _sum_correlated(self, z_R2F: Tensor, block: Block, src_VsCF: Tensor, weight_EK: Tensor | None) -> Tensor:
        assert weight_EK is not None
        rows, parts = src_VsCF.flatten(1)[:, None], []
        real_RF, imaginary_RF = z_R2F.unbind(1)
        scales = torch.cat([real_RF, imaginary_RF], 1), torch.cat([imaginary_RF, -real_RF], 1)
        for mask_RF in _direction_masks(scales[0], self.num_forward):
            for scale_RF in scales:
                terms = sum_scaled_rows(rows, scale_RF * mask_RF, weight_EK, block.edges)
                parts.append(terms.view(len(terms), 1, 2, terms.shape[2] // 2).sum(2))
        return torch.cat(parts, 1)


# MKL refuses to transform no rows: what stands in for their transforms is as wide, and differentiable.


def transform_rows(x_ND: Tensor) -> Tensor:
    """Return ``[N, 2, D // 2 + 1]``: real and imaginary parts of the Fourier transform of each row."""
    if not len(x_ND):
        half_NF = x_ND[:, : x_ND.shape[1] // 2 + 1]
        return torch.stack([half_NF, half_NF], 1)
    return torch.view_as_real(torch.fft.rfft(x_ND)).movedim(2, 1)


def restore_rows(transform_N2F: Tensor, columns: int) -> Tensor:
    """Return ``[N, D]``: the rows that have these transforms; ``columns`` is ``D``."""
    if not len(transform_N2F):
        return transform_N2F.flatten(1)[:, :columns]
    rows_ND: Tensor = torch.fft.irfft(torch.complex(transform_N2F[:, 0], transform_N2F[:, 1]), n=columns)
    return rows_ND


def correlate_rows(x_ND: Tensor, z_D: Tensor) -> Tensor:
    """Return ``[N, D]``: the circular correlation of each row with a vector."""
    if not len(x_ND):
        return x_ND * z_D
    rows_ND: Tensor = torch.fft.irfft(torch.fft.rfft(x_ND).conj() * torch.fft.rfft(z_D), n=len(z_D))
    return rows_ND


def _direction_masks(z_RF: Tensor, num_forward: int) -> list[Tensor]:
    """Return ``[R, F]`` ones for the relations of each direction, else zeros.

    Every direction then has all edges, and their weights, as they are.
    """
    numbers = torch.arange(len(z_RF), device=z_RF.device)
    ranges = (numbers < num_forward, numbers >= num_forward)
    chosen = ranges if num_forward < len(z_RF) else ranges[:1]
    return [each[:, None].to(z_RF.dtype).expand(z_RF.shape).contiguous() for each in chosen]


def _relation_edges(edges: Edges, num_relations: int) -> Edges:
    """Return edges from relations instead of sources; once for a block, with what is derived from them."""
    slot = "edges from relations"
    if slot not in edges.cache:
        relation = validate_relations(edges, num_relations)
        edges.cache[slot] = Edges(indptr=edges.indptr, indices=relation.to(edges.indices.dtype), num_src=num_relations)
    found = edges.cache[slot]
    assert isinstance(found, Edges)
    return found
