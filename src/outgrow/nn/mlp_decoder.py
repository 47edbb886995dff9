"""A decoder that is a network of both ends and the relation. Letters as in `outgrow.nn.decoder`; ``H`` hidden units."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from outgrow.core.arguments import check_arguments
from outgrow.core.validation import require_counts, validate_choice
from outgrow.nn.decoder import SIDES, Decoder, parameter_rows, score_in_blocks
from outgrow.nn.projection import Projection


@check_arguments()
class MLPDecoder(Decoder):
    """``relu([head, tail] W + r + b) . out + c``: a layer over both ends and the relation, then a number. Final.

    A vector ``r`` of ``H`` numbers for each relation is what a vector beside those of the ends, times its part of the
    weights, comes to. The parts of heads and of tails are computed once for each node, so that all candidates take
    ``H`` operations a pair, in blocks of bounded memory.

    Args:
        columns: ``F``.
        num_relations: ``R``; 0 if relations make no difference.
        hidden: ``H``; None for ``F``.

    Raises:
        InputError: No columns, no hidden units, or fewer relations than none.
    """

    def __init__(self, columns: int, num_relations: int = 0, *, hidden: int | None = None) -> None:
        super().__init__()
        width = columns if hidden is None else hidden
        require_counts(columns=columns, hidden=width)
        require_counts(0, num_relations=num_relations)
        self.num_relations = num_relations
        self.head = Projection(columns, width, bias=True)
        self.tail = Projection(columns, width)
        self.relation = nn.Parameter(torch.empty(num_relations, width)) if num_relations else None
        self.out = nn.Parameter(torch.empty(width))
        self.out_bias = nn.Parameter(torch.zeros(()))
        if self.relation is not None:
            nn.init.normal_(self.relation)
        # Scores of rows whose numbers have variance 1 then have a deviation near 1.
        nn.init.normal_(self.out, 0.0, width**-0.5)

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the weights."""
        return columns == self.head.weight.shape[0]

    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor) -> Tensor:
        """Return ``[P]`` scores of links."""
        of_heads = self._add_relation(self.head(heads_PF), relations_P)
        return self._read_out(of_heads + self.tail(tails_PF))

    def score_candidates(self, rows_QF: Tensor, relations_Q: Tensor, candidates_NF: Tensor, *, replaced: str) -> Tensor:
        """Return ``[Q, N]``; see `Decoder.score_candidates`."""
        validate_choice("end of a link", replaced, SIDES)
        kept, other = (self.head, self.tail) if replaced == "tail" else (self.tail, self.head)
        return score_in_blocks(
            lambda some_qH, _, others_nH: self._read_out(some_qH[:, None] + others_nH),
            self._add_relation(kept(rows_QF), relations_Q),
            relations_Q,
            other(candidates_NF),
            len(self.out),
        )

    def relation_rows(self, relations_P: Tensor) -> Tensor | None:
        """Return ``[P, H]``: the vectors of relations; None without relations."""
        return None if self.relation is None else parameter_rows(self.relation, relations_P, self.relation)

    def _add_relation(self, hidden_PH: Tensor, relations_P: Tensor) -> Tensor:
        if self.relation is None:
            return hidden_PH
        return hidden_PH + parameter_rows(self.relation, relations_P, hidden_PH)

    def _read_out(self, hidden: Tensor) -> Tensor:
        return torch.relu(hidden) @ self.out + self.out_bias
