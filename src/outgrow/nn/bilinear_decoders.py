"""Decoders that are bilinear forms of both ends and tell the ends apart: ComplEx and RESCAL.

Letters as in `outgrow.nn.decoder`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import out_of_range_error, require_counts
from outgrow.nn.decoder import ProductDecoder, parameter_rows
from outgrow.ops.backend import once_differentiable
from outgrow.ops.row_slots import Slot
from outgrow.ops.segment_matmul import segment_matmul


@check_arguments()
class ComplEx(ProductDecoder):
    """``Re(sum over f of head[f] * r[f] * conj(tail[f]))`` of complex numbers. Trouillon et al., ICML 2016. Final.

    The first half of the columns are the real parts, the second half the imaginary ones. A link and its reverse have
    different scores where a relation has imaginary parts.

    The numbers of relations begin as normal ones of deviation ``1 / sqrt(2 F)``: scores of rows whose numbers have
    variance 1 then have a deviation of 1.

    Args:
        columns: ``F``, even.
        num_relations: ``R``, at least 1.

    Raises:
        InputError: No relations, or a number of columns that is not even.
    """

    def __init__(self, columns: int, num_relations: int) -> None:
        super().__init__()
        require_counts(columns=columns, num_relations=num_relations)
        require_even(columns)
        self.num_relations = num_relations
        self.relation = nn.Parameter(torch.empty(num_relations, columns))
        nn.init.normal_(self.relation, 0.0, (2 * columns) ** -0.5)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the relations."""
        return columns == self.relation.shape[1]

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: ``head * r`` for tails, ``tail * conj(r)`` for heads, real parts first."""
        real, imaginary = x_NF.chunk(2, 1)
        r_real, r_imaginary = parameter_rows(self.relation, relation_N, x_NF).chunk(2, 1)
        if replaced == "head":
            r_imaginary = -r_imaginary
        # Re(q conj(t)) is the dot product of the real numbers of q and t; that of heads is conjugated as a whole.
        return torch.cat([real * r_real - imaginary * r_imaginary, real * r_imaginary + imaginary * r_real], 1)

    def relation_rows(self, relations_P: Tensor) -> Tensor:
        """Return ``[P, F]``: the real parts of relations, then the imaginary ones."""
        return parameter_rows(self.relation, relations_P, self.relation)

    def squared_magnitudes(self, rows_NK: Tensor) -> Tensor:
        """Return ``[N, F / 2]``: squares of the absolute values of complex numbers."""
        return square_complex(rows_NK)


@check_arguments()
class Bilinear(ProductDecoder):
    """``head W_r tail`` with a full matrix for each relation: RESCAL. Nickel et al., ICML 2011. Final.

    Matrices begin as normal numbers of deviation ``1 / F``: scores of rows whose numbers have variance 1 then have a
    deviation of 1.

    Args:
        columns: ``F``.
        num_relations: ``R``, at least 1.

    Raises:
        InputError: No columns or no relations.
    """

    def __init__(self, columns: int, num_relations: int) -> None:
        super().__init__()
        require_counts(columns=columns, num_relations=num_relations)
        self.num_relations = num_relations
        self.relation = nn.Parameter(torch.empty(num_relations, columns, columns))
        nn.init.normal_(self.relation, 0.0, 1 / columns)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the matrices."""
        return columns == self.relation.shape[1]

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: ``head W_r`` for tails, ``tail W_r^T`` for heads."""
        matrices = self.relation.to(x_NF.device)
        matrices = matrices.transpose(1, 2) if replaced == "head" else matrices
        # Grouped by relation: a matrix for each row would take F times the memory of the rows.
        order = torch.argsort(relation_N.to(x_NF.device), stable=True)
        ends = torch.bincount(relation_N, minlength=self.num_relations).cumsum(0).tolist()
        parts = [(first, last) for first, last in zip([0, *ends], ends, strict=False)]
        present = [number for number, (first, last) in enumerate(parts) if first < last]
        if not present:
            return x_NF[:, :] @ matrices[0]
        every = matrices.unbind(0)
        slots = [Slot(slice(*parts[number]), 0, x_NF.shape[1]) for number in present]
        products = segment_matmul(_permute(x_NF, order), slots, [every[number] for number in present])
        return _permute(products, torch.empty_like(order).scatter_(0, order, torch.arange(len(order)).to(order)))

    def relation_rows(self, relations_P: Tensor) -> Tensor:
        """Return ``[P, F * F]``: the matrices of relations, row by row."""
        return parameter_rows(self.relation.flatten(1), relations_P, self.relation)


def require_even(columns: int) -> None:
    """Check that columns make up complex numbers.

    Raises:
        InputError: Their number is odd.
    """
    if columns % 2:
        raise out_of_range_error("columns", "an even number: a real and an imaginary part of each", columns)


def square_complex(rows_NK: Tensor) -> Tensor:
    """Return ``[N, K / 2]``: squared absolute values of rows whose first half are real parts."""
    real, imaginary = rows_NK.chunk(2, 1)
    return real.square() + imaginary.square()


def _permute(x_NF: Tensor, order_N: Tensor) -> Tensor:
    return _Permute.apply(x_NF, order_N)  # type: ignore[no-any-return, no-untyped-call]


class _Permute(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x_NF: Tensor, order_N: Tensor) -> Tensor:
        ctx.order = order_N
        return x_NF.index_select(0, order_N)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NF: Tensor) -> tuple[Tensor, None]:
        # Every row is taken once, so that nothing is summed.
        return torch.empty_like(grad_NF).index_copy_(0, ctx.order, grad_NF), None
