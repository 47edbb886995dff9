"""Decoders: scores of links from the embeddings of their ends; the interface, products of columns.

A link runs from a head to a tail. In `NodePairs` the second row of a pair is the head, the first one the tail.
Letters: ``F`` columns of a node, ``R`` relations, ``N`` rows, ``P`` pairs of rows, ``Q`` queries.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from outgrow.core.arguments import check_arguments
from outgrow.core.deprecation import renamed_members
from outgrow.core.validation import require_counts, validate_choice
from outgrow.ops.link_scores import NodePairs, gather_pair_rows, pair_scores

BLOCK_BYTES = 64 << 20
"""Most bytes of one of the tensors that scores of all candidates are computed from at a time."""
SIDES = {"tail": 0, "head": 1}
"""The end of a link that candidates replace."""


@renamed_members(takes="accepts_width")
class Decoder(nn.Module, ABC):
    """Scores links from the rows of both ends. A decoder of one's own defines `score`.

    Scores are differentiable in rows and parameters, and of the type of the rows, float32 or float64. They draw no
    random numbers: blocks are computed once more in the backward pass.

    Attributes:
        num_relations: ``R``; 0 if relations make no difference.
    """

    num_relations: int = 0

    @abstractmethod
    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor) -> Tensor:
        """Return ``[P]`` scores of links, each from its own rows; higher is more likely.

        Args:
            heads_PF: ``[P, F]`` rows of heads.
            relations_P: ``[P]`` int64, below ``R``; to be ignored by decoders without relations.
            tails_PF: ``[P, F]`` rows of tails.
        """

    def accepts_width(self, columns: int) -> bool:
        """Whether nodes may have this number of columns; any, unless a decoder says otherwise."""
        return True

    def score_candidates(self, rows_QF: Tensor, relations_Q: Tensor, candidates_NF: Tensor, *, replaced: str) -> Tensor:
        """Return ``[Q, N]``: scores of links of every query with every candidate.

        Without products of its own a decoder calls `score` on blocks of bounded memory, which autograd computes
        again in the backward pass.

        Args:
            rows_QF: ``[Q, F]`` rows of the ends that are kept.
            relations_Q: ``[Q]`` int64.
            candidates_NF: ``[N, F]`` rows of the candidates for the other end.
            replaced: The end that candidates stand for: ``"tail"`` (rows are heads) or ``"head"`` (rows are tails).

        Raises:
            InputError: ``replaced`` is neither.
        """
        validate_choice("end of a link", replaced, SIDES)

        def score_block(rows_qF: Tensor, relations_q: Tensor, some_nF: Tensor) -> Tensor:
            shape = len(rows_qF), len(some_nF)
            kept = rows_qF[:, None].expand(*shape, -1).flatten(0, 1)
            others = some_nF.expand(shape[0], -1, -1).flatten(0, 1)
            ends = (kept, others) if replaced == "tail" else (others, kept)
            return self.score(ends[0], relations_q.repeat_interleave(shape[1]), ends[1]).view(shape)

        return score_in_blocks(score_block, rows_QF, relations_Q, candidates_NF, candidates_NF.shape[1])

    def forward(self, x_NF: Tensor, pairs: NodePairs) -> Tensor:
        """Return ``[P]`` scores in the order of the pairs: from the second row, the head, to the first, the tail."""
        tails, heads = gather_pair_rows(x_NF, pairs)
        return self.score(heads, pairs.relation, tails)

    def relation_rows(self, relations_P: Tensor) -> Tensor | None:
        """Return ``[P, K]`` parameters of these relations, for penalties; None if there are none."""
        return None

    def squared_magnitudes(self, rows_NK: Tensor) -> Tensor:
        """Return ``[N, k]``: squares of the numbers of rows of nodes or relations, for penalties.

        One for each column here; one for each complex number, its real and its imaginary part, where rows are complex.
        """
        return rows_NK.square()


class QueryDecoder(Decoder, ABC):
    """Decoder that makes a query of one end and the relation, and compares it with the other end."""

    @abstractmethod
    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]`` queries for the other ends of links.

        Args:
            x_NF: ``[N, F]`` rows of the ends that are kept.
            relation_N: ``[N]`` int64.
            replaced: The end that is asked for: ``"tail"`` (rows are heads) or ``"head"`` (rows are tails).
        """

    @abstractmethod
    def compare_pairs(self, queries_PF: Tensor, rows_PF: Tensor) -> Tensor:
        """Return ``[P]``: the score of each query with its row."""

    @abstractmethod
    def compare_all(self, queries_QF: Tensor, rows_NF: Tensor) -> Tensor:
        """Return ``[Q, N]``: the scores of all queries with all rows."""

    def score(self, heads_PF: Tensor, relations_P: Tensor, tails_PF: Tensor) -> Tensor:
        """Return ``[P]``: the query of each head compared with its tail."""
        return self.compare_pairs(self.link_queries(heads_PF, relations_P), tails_PF)

    def score_candidates(self, rows_QF: Tensor, relations_Q: Tensor, candidates_NF: Tensor, *, replaced: str) -> Tensor:
        """Return ``[Q, N]``: all queries compared with all candidates; see `Decoder.score_candidates`."""
        validate_choice("end of a link", replaced, SIDES)
        return self.compare_all(self.link_queries(rows_QF, relations_Q, replaced=replaced), candidates_NF)


class ProductDecoder(QueryDecoder, ABC):
    """Decoder whose scores are dot products of queries and rows: those of all candidates are one matrix product."""

    def compare_pairs(self, queries_PF: Tensor, rows_PF: Tensor) -> Tensor:
        """Return ``[P]``: the dot product of each query with its row."""
        return (queries_PF * rows_PF).sum(1)

    def compare_all(self, queries_QF: Tensor, rows_NF: Tensor) -> Tensor:
        """Return ``[Q, N]``: the dot products of all queries with all rows."""
        return torch.mm(queries_QF, rows_NF.T)


@renamed_members(scale="column_scale", queries="link_queries")
@check_arguments()
class Dot(ProductDecoder):
    """Dot product of both ends, divided by ``sqrt(F)``; relations make no difference. Symmetric. Final.

    The division gives scores of untrained models a similar size for every width; it does not change any rank.
    """

    def __init__(self) -> None:
        super().__init__()

    def column_scale(self, like: Tensor) -> Tensor:
        """Return ``[1, F]``: the same scale for all columns, with the type and width of the rows ``like [N, F]``."""
        return like.new_full((1, like.shape[1]), like.shape[1] ** -0.5)

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: the divided rows."""
        return x_NF / math.sqrt(x_NF.shape[1])

    def forward(self, x_NF: Tensor, pairs: NodePairs) -> Tensor:
        """Return ``[P]`` scores without a row per pair, forward or backward."""
        # There is one row of scales, which links of all relations use.
        return pair_scores(x_NF, pairs.with_relation_zero, self.column_scale(x_NF))


@renamed_members(scale="column_scale", queries="link_queries")
@check_arguments()
class DistMult(ProductDecoder):
    """``sum over f of head[f] * s_r[f] * tail[f]``. Yang et al., ICLR 2015. Symmetric. Final.

    The scales ``s_r`` begin as normal numbers of deviation ``1 / sqrt(F)``: scores of rows whose numbers have variance
    1 then have a deviation of 1, neither so small that all links begin alike, nor so large that the loss is saturated;
    and relations differ from the start.

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
        self.relation = nn.Parameter(torch.empty(num_relations, columns))
        nn.init.normal_(self.relation, 0.0, columns**-0.5)

    def column_scale(self, like: Tensor) -> Tensor:
        """Return the trained scales ``[R, F]``."""
        return self.relation

    def accepts_width(self, columns: int) -> bool:
        """Accept only the width of the trained scales."""
        return columns == self.relation.shape[1]

    def link_queries(self, x_NF: Tensor, relation_N: Tensor, *, replaced: str = "tail") -> Tensor:
        """Return ``[N, F]``: the scaled rows, which are the same for either end."""
        return x_NF * parameter_rows(self.relation, relation_N, x_NF)

    def forward(self, x_NF: Tensor, pairs: NodePairs) -> Tensor:
        """Return ``[P]`` scores without a row per pair, forward or backward."""
        return pair_scores(x_NF, pairs, self.relation)

    def relation_rows(self, relations_P: Tensor) -> Tensor:
        """Return ``[P, F]``: the scales of relations."""
        return parameter_rows(self.relation, relations_P, self.relation)


def parameter_rows(parameter_RK: Tensor, relations_P: Tensor, like: Tensor) -> Tensor:
    """Return ``[P, K]``: rows of a parameter by relation, on the device of ``like``.

    The gradient sums rows in a fixed order, unlike that of an index in float32.
    """
    # Rows may be in host memory while the parameters are on a device.
    rows: Tensor = functional.embedding(relations_P.to(like.device), parameter_RK.to(like.device))
    return rows


def score_in_blocks(
    score_block: Callable[[Tensor, Tensor, Tensor], Tensor],
    rows_QF: Tensor,
    relations_Q: Tensor,
    candidates_NF: Tensor,
    width: int,
) -> Tensor:
    """Return ``[Q, N]``, computed in blocks of queries and candidates.

    Args:
        score_block: From ``[q, F]`` rows, ``[q]`` relations and ``[n, F]`` candidates to ``[q, n]`` scores.
        rows_QF: ``[Q, F]``.
        relations_Q: ``[Q]`` int64.
        candidates_NF: ``[N, F]``.
        width: Numbers that a block makes for a query and a candidate.
    """
    parts = list(_split_blocks(len(rows_QF), len(candidates_NF), max(1, width) * candidates_NF.element_size()))
    compute: Callable[..., Any] = score_block
    if len(parts) > 1 and torch.is_grad_enabled():
        # Otherwise autograd would keep what all blocks together have made.
        compute = _recompute(score_block)
    rows = [
        torch.cat([compute(rows_QF[some], relations_Q[some], candidates_NF[others]) for others in columns], 1)
        for some, columns in parts
    ]
    return torch.cat(rows) if rows else candidates_NF.new_empty(len(rows_QF), len(candidates_NF))


def _recompute(compute: Callable[..., Tensor]) -> Callable[..., Any]:
    return lambda *given: checkpoint(compute, *given, use_reentrant=False, preserve_rng_state=False)


def _split_blocks(queries: int, candidates: int, pair_bytes: int) -> Iterator[tuple[slice, list[slice]]]:
    pairs = max(1, BLOCK_BYTES // pair_bytes)
    n = max(1, min(candidates, pairs))
    q = max(1, pairs // n)
    columns = [slice(at, at + n) for at in range(0, candidates, n)]
    for at in range(0, queries if columns else 0, q):
        yield slice(at, at + q), columns
