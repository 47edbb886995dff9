"""Decoders that are distances: TransE and RotatE. Letters as in `outgrow.nn.decoder`."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import out_of_range_error, require_counts
from outgrow.nn.bilinear_decoders import require_even, square_complex
from outgrow.nn.decoder import QueryDecoder, parameter_rows, score_in_blocks

_NORMS = (1, 2)


@check_arguments()
class TransE(QueryDecoder):
    """``margin - |head + r - tail|``, in the norm ``p``. Bordes et al., NeurIPS 2013. Final.

    Relations begin as in the paper, uniformly between ``-6 / sqrt(F)`` and ``6 / sqrt(F)``. Without a margin no score
    is above 0: losses that compare a score with zero, such as the binary cross-entropy, need one.

    Args:
        columns: ``F``.
        num_relations: ``R``, at least 1.
        p: 1 or 2.
        margin: What is added to all scores; it does not change any rank.

    Raises:
        InputError: No columns or relations, or another norm.
    """

    def __init__(self, columns: int, num_relations: int, *, p: int = 1, margin: float = 0.0) -> None:
        super().__init__()
        require_counts(columns=columns, num_relations=num_relations)
        _require_norm(p)
        self.num_relations = num_relations
        self.p = p
        self.margin = margin
        self.relation = nn.Parameter(torch.empty(num_relations, columns))
        nn.init.uniform_(self.relation, -6 * columns**-0.5, 6 * columns**-0.5)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the relations."""
        return columns == self.relation.shape[1]

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: ``head + r`` for tails, ``tail - r`` for heads."""
        r_NF = parameter_rows(self.relation, relation_N, x_NF)
        return x_NF + r_NF if replaced == "tail" else x_NF - r_NF

    def compare_pairs(self, queries_PF: Tensor, rows_PF: Tensor) -> Tensor:
        """Return ``[P]``: the margin less the distance of each query and its row."""
        distance: Tensor = torch.linalg.vector_norm(queries_PF - rows_PF, self.p, 1)
        return self.margin - distance

    def compare_all(self, queries_QF: Tensor, rows_NF: Tensor) -> Tensor:
        """Return ``[Q, N]``: the margin less all distances."""
        return self.margin - _distances(queries_QF, rows_NF, self.p)

    def relation_rows(self, relations_P: Tensor) -> Tensor:
        """Return ``[P, F]``: the translations of relations."""
        return parameter_rows(self.relation, relations_P, self.relation)


@check_arguments()
class RotatE(QueryDecoder):
    """``margin - |head * r - tail|`` of complex numbers, where ``r`` rotates each: Sun et al., ICLR 2019. Final.

    The first half of the columns are the real parts, the second half the imaginary ones. With ``p`` 1 the distance is
    the sum of the moduli, as in the authors' code; with 2 it is the root of the sum of their squares. Angles begin
    uniformly on the circle.

    Args:
        columns: ``F``, even.
        num_relations: ``R``, at least 1.
        p: 1 or 2.
        margin: What is added to all scores; it does not change any rank. Losses that compare a score with zero need
            one, since no score is above it.

    Raises:
        InputError: No relations, a number of columns that is not even, or another norm.
    """

    def __init__(self, columns: int, num_relations: int, *, p: int = 1, margin: float = 0.0) -> None:
        super().__init__()
        require_counts(columns=columns, num_relations=num_relations)
        require_even(columns)
        _require_norm(p)
        self.num_relations = num_relations
        self.p = p
        self.margin = margin
        self.angle = nn.Parameter(torch.empty(num_relations, columns // 2))
        nn.init.uniform_(self.angle, -math.pi, math.pi)

    def accepts_width(self, columns: int) -> bool:
        """Accept only two columns for each angle."""
        return columns == 2 * self.angle.shape[1]

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: rows rotated by ``r`` for tails, and back for heads, which keeps all distances."""
        real, imaginary = x_NF.chunk(2, 1)
        angle = parameter_rows(self.angle, relation_N, x_NF)
        cos, sin = angle.cos(), angle.sin() if replaced == "tail" else -angle.sin()
        return torch.cat([real * cos - imaginary * sin, real * sin + imaginary * cos], 1)

    def compare_pairs(self, queries_PF: Tensor, rows_PF: Tensor) -> Tensor:
        """Return ``[P]``: the margin less the distance of each query and its row."""
        return self.margin - self._norm(queries_PF - rows_PF)

    def compare_all(self, queries_QF: Tensor, rows_NF: Tensor) -> Tensor:
        """Return ``[Q, N]``: the margin less all distances."""
        if self.p == 1:
            return self.margin - score_in_blocks(
                lambda some_qF, _, others_nF: self._norm(some_qF[:, None] - others_nF),
                queries_QF,
                torch.zeros(len(queries_QF), dtype=torch.int64),
                rows_NF,
                rows_NF.shape[1],
            )
        return self.margin - _distances(queries_QF, rows_NF, self.p)

    def squared_magnitudes(self, rows_NK: Tensor) -> Tensor:
        """Return ``[N, F / 2]``: squares of the absolute values of complex numbers."""
        return square_complex(rows_NK)

    def _norm(self, difference: Tensor) -> Tensor:
        # Of complex numbers, whose modulus has a gradient at zero too.
        distance: Tensor = torch.linalg.vector_norm(torch.complex(*difference.chunk(2, -1)), self.p, -1)
        return distance


def _distances(queries_QF: Tensor, rows_NF: Tensor, p: int) -> Tensor:
    # Not by products: they lose the digits of small distances, and with them which nodes are equally far.
    return torch.cdist(queries_QF, rows_NF, p, compute_mode="donot_use_mm_for_euclid_dist")


def _require_norm(p: int) -> None:
    if p not in _NORMS:
        raise out_of_range_error("p", "1 or 2", p)
