"""The loss of links and of candidates that they have in common, block by block.

Scores of a block of queries with all candidates are one matrix product of the decoder's. They are made, turned into
gradients and dropped before those of the next block, so memory does not grow with the number of links.

Letters: ``N`` rows, ``F`` columns, ``L`` links, ``U`` queries of a block, ``K`` candidates.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outgrow.engine.link_candidates import CandidateQueries, iterate_blocks
from outgrow.nn.decoder import Decoder
from outgrow.nn.link_losses import NO_NEGATIVE, AllAnswers, LinkLoss
from outgrow.ops.backend import once_differentiable
from outgrow.ops.rows.positions import RowNumbers

BLOCK_BYTES = 64 << 20
"""Most bytes of the scores of a block; a few copies of them are held."""
BLOCK_COPIES = 5
"""Scores, what a loss makes of them, and gradients."""


def candidate_loss(
    decoder: Decoder,
    loss: LinkLoss | AllAnswers,
    rows_NF: Tensor,
    link_L: Tensor,
    queries: Sequence[CandidateQueries],
    row_of_node: RowNumbers,
) -> Tensor:
    """Return the sum of the losses of all queries, a scalar.

    Args:
        decoder: Scores queries with candidates.
        loss: The loss.
        rows_NF: Rows of the nodes.
        link_L: Scores of the links.
        queries: Queries, on the CPU.
        row_of_node: The row of each node of the queries.

    Returns:
        Scalar of the rows' type, differentiable in rows, scores of links and parameters of the decoder.
    """
    parameters = [each for each in decoder.parameters() if each.requires_grad]
    work = _Work(decoder, loss, queries, row_of_node)
    return _CandidateLoss.apply(work, rows_NF, link_L, *parameters)  # type: ignore[no-any-return, no-untyped-call]


class _Work:
    """The blocks of a loss: what they are made of, and the sums of their gradients.

    Args:
        decoder: The decoder.
        loss: The loss.
        queries: Queries.
        row_of_node: The row of each node.
    """

    def __init__(
        self,
        decoder: Decoder,
        loss: LinkLoss | AllAnswers,
        queries: Sequence[CandidateQueries],
        row_of_node: RowNumbers,
    ) -> None:
        self.decoder = decoder
        self.loss = loss
        self.queries = queries
        self.row_of_node = row_of_node

    def run(self, rows: Tensor, links: Tensor, parameters: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """Return the loss, and the gradients by the rows, the scores of links and the parameters."""
        sums = [torch.zeros_like(each) for each in (rows, links, *parameters)]
        total = torch.zeros((), dtype=torch.float64, device=rows.device)
        for each in self.queries:
            candidates = rows.index_select(0, self._rows_of(each.candidates, rows)).requires_grad_()
            d_candidates = torch.zeros_like(candidates)
            size = max(1, BLOCK_BYTES // max(1, len(each.candidates) * rows.element_size()))
            for first, last in iterate_blocks(each.starts, size):
                total += self._run_block(each, (first, last), rows, links, candidates, (sums, d_candidates))
            sums[0].index_add_(0, self._rows_of(each.candidates, rows), d_candidates)
        return total, sums

    def _run_block(
        self,
        queries: CandidateQueries,
        block: tuple[int, int],
        rows: Tensor,
        links: Tensor,
        candidates: Tensor,
        gradients: tuple[list[Tensor], Tensor],
    ) -> Tensor:
        sums, d_candidates = gradients
        first, last = block
        at = self._rows_of(queries.node[first:last], rows)
        asked = rows.index_select(0, at).requires_grad_()
        parameters = [each for each in self.decoder.parameters() if each.requires_grad]
        with torch.enable_grad():
            relation = queries.relation[first:last].to(rows.device)
            score = self.decoder.score_candidates(asked, relation, candidates, replaced=queries.side)
        found, d_score = self._grade(queries, block, score.detach().clone(), links, sums[1])
        inputs = [asked, candidates, *parameters]
        d_asked, d_block, *others = torch.autograd.grad(score, inputs, d_score, allow_unused=True)
        if d_asked is not None:
            sums[0].index_add_(0, at, d_asked)
        if d_block is not None:
            d_candidates += d_block
        for known, part in zip(sums[2:], others, strict=True):
            if part is not None:
                known.add_(part)
        return found

    def _grade(
        self, queries: CandidateQueries, block: tuple[int, int], score: Tensor, links: Tensor, d_links: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the loss of a block and its gradient by the scores; add that by the scores of links."""
        first, last = block
        device = score.device
        loops = _slice_of(queries.loop_query, first, last)
        score[(queries.loop_query[loops] - first).to(device), queries.loop[loops].to(device)] = NO_NEGATIVE
        low, high = int(queries.starts[first]), int(queries.starts[last])
        among = None if queries.among is None else queries.among[low:high].to(device)
        answers = _slice_of(queries.answer_query, first, last)
        place = (queries.answer_query[answers] - first).to(device)
        column = queries.answer[answers].to(device)
        if isinstance(self.loss, AllAnswers):
            weight = queries.weight[first:last].to(device, score.dtype)
            return self.loss.compute(score, place, column, weight)
        score[place, column] = NO_NEGATIVE
        numbers = queries.link[low:high].to(device)
        starts = (queries.starts[first : last + 1] - low).to(device)
        found = self.loss.compute(score, links[numbers], starts, among)
        d_links.index_add_(0, numbers, found.links)
        return found.loss, found.negatives

    def _rows_of(self, nodes: Tensor, like: Tensor) -> Tensor:
        return self.row_of_node[nodes].to(like.device)


class _CandidateLoss(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, work: _Work, rows_NF: Tensor, link_L: Tensor, *parameters: Tensor) -> Tensor:
        total, gradients = work.run(rows_NF.detach(), link_L.detach(), parameters)
        # All gradients are known now: scores are not made again.
        ctx.save_for_backward(*gradients)
        return total.to(rows_NF.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        pairs = zip(ctx.saved_tensors, ctx.needs_input_grad[1:], strict=True)
        return None, *(each.mul_(grad) if needed else None for each, needed in pairs)


def _slice_of(ascending: Tensor, first: int, last: int) -> slice:
    """Return the slice of ascending numbers that are from ``first`` to ``last - 1``."""
    return slice(*torch.searchsorted(ascending, torch.tensor([first, last])).tolist())


class _ScoreLoss(torch.autograd.Function):
    """The loss of links and of negatives of their own, from scores."""

    @staticmethod
    def forward(ctx: Any, loss: LinkLoss, link_L: Tensor, negative_LK: Tensor) -> Tensor:
        starts = torch.arange(len(link_L) + 1, device=link_L.device)
        found = loss.compute(negative_LK.detach().clone(), link_L.detach(), starts)
        ctx.save_for_backward(found.links, found.negatives)
        return found.loss.to(link_L.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        of_links, of_negatives = ctx.saved_tensors
        return None, of_links * grad, of_negatives * grad


def score_loss(loss: LinkLoss, link_L: Tensor, negative_LK: Tensor) -> Tensor:
    """Return the sum of the losses of links with negatives of their own, differentiable in both scores.

    Args:
        loss: The loss.
        link_L: Scores of the links.
        negative_LK: Scores of the negatives of each link.
    """
    return _ScoreLoss.apply(loss, link_L, negative_LK)  # type: ignore[no-any-return, no-untyped-call]
