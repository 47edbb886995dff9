"""Losses of link prediction, from the scores of links and of negatives, with their gradients by these scores.

Negatives belong to queries: nodes with a relation, whose other end is asked for. A score of minus infinity marks a
candidate that is no negative. Letters: ``U`` queries, ``K`` candidates, ``L`` links, grouped by query.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

NO_NEGATIVE = float("-inf")
"""Score of a candidate that is no negative."""


class ScoreGradients(NamedTuple):
    """A loss and its gradients.

    Attributes:
        loss: Scalar float64, the sum over links.
        negatives: ``[U, K]``, the gradient by the scores of candidates; zeros where they are no negatives.
        links: ``[L]``, the gradient by the scores of links.
    """

    loss: Tensor
    negatives: Tensor
    links: Tensor


class LinkLoss(ABC):
    """A loss of links and negatives."""

    @abstractmethod
    def compute(
        self, negative_UK: Tensor, link_L: Tensor, starts: Tensor, among_L: Tensor | None = None
    ) -> ScoreGradients:
        """Return the sum of the losses of all links, and its gradients.

        Args:
            negative_UK: Scores of the candidates of each query, floating; overwritten.
            link_L: Scores of the links.
            starts: ``[U + 1]`` int64: the links of query ``u`` are ``starts[u]`` to ``starts[u + 1] - 1``.
            among_L: Whether a link's own answer is one of the candidates, where known answers are negatives of other
                links; None if no candidate is a known answer. Losses but `SoftmaxCrossEntropy` take only None.
        """


@dataclass(frozen=True)
class BinaryCrossEntropy(LinkLoss):
    """Mean binary cross-entropy over a link and its negatives (Yang et al., ICLR 2015)."""

    def compute(
        self, negative_UK: Tensor, link_L: Tensor, starts: Tensor, among_L: Tensor | None = None
    ) -> ScoreGradients:
        """See `LinkLoss.compute`."""
        assert among_L is None
        share = 1 / (1 + negative_UK.shape[1])
        count_U = starts.diff().to(negative_UK.dtype)
        of_links = functional.softplus(-link_L).sum(dtype=torch.float64)
        of_negatives = functional.softplus(negative_UK).sum(1, dtype=torch.float64) @ count_U.double()
        # The sigmoid of minus infinity is zero, and so is its loss: no negatives need no mask.
        gradient = negative_UK.sigmoid_().mul_((share * count_U)[:, None])
        return ScoreGradients(share * (of_links + of_negatives), gradient, -share * torch.sigmoid(-link_L))


@dataclass(frozen=True)
class SoftmaxCrossEntropy(LinkLoss):
    """Cross-entropy of a softmax over a link and its negatives (Toutanova & Chen, CVSC 2015; Lacroix et al., 2018)."""

    def compute(
        self, negative_UK: Tensor, link_L: Tensor, starts: Tensor, among_L: Tensor | None = None
    ) -> ScoreGradients:
        """See `LinkLoss.compute`."""
        # The negatives of a query are summed once for all its links: a link's loss is softplus(sum - score).
        total_U = torch.logsumexp(negative_UK, 1)
        query_L = _query_of_links(starts)
        gap_L = total_U[query_L] - link_L
        missed_L, loss_L = torch.sigmoid(gap_L), functional.softplus(gap_L)
        if among_L is not None:
            # Such a sum holds the link's own score already.
            missed_L, loss_L = torch.where(among_L, 1.0, missed_L), torch.where(among_L, gap_L, loss_L)
        factor_U = _sum_by_query(missed_L, starts)
        # A query without negatives has a sum of minus infinity, which must not be subtracted from itself.
        base_U = torch.where(torch.isfinite(total_U), total_U, torch.zeros_like(total_U))
        gradient = negative_UK.sub_(base_U[:, None]).exp_().mul_(factor_U[:, None])
        return ScoreGradients(loss_L.sum(dtype=torch.float64), gradient, -missed_L)


@dataclass(frozen=True)
class SelfAdversarial(LinkLoss):
    """Log-sigmoid loss with a margin, whose negatives weigh as much as they score (Sun et al., ICLR 2019).

    Attributes:
        margin: What a link should score above minus this, and a negative below.
        temperature: Factor of the scores in the softmax of the weights; 0 for equal weights.
    """

    margin: float = 9.0
    temperature: float = 1.0

    def compute(
        self, negative_UK: Tensor, link_L: Tensor, starts: Tensor, among_L: Tensor | None = None
    ) -> ScoreGradients:
        """See `LinkLoss.compute`."""
        assert among_L is None
        count_U = starts.diff().to(negative_UK.dtype)
        is_negative = negative_UK != NO_NEGATIVE
        # Weights are constants to the gradient, as in the paper.
        weight = torch.where(is_negative, negative_UK * self.temperature, negative_UK)
        weight = torch.nan_to_num_(torch.softmax(weight, 1), nan=0.0)
        shifted = negative_UK.add_(self.margin)
        of_negatives = (weight * functional.softplus(shifted)).sum(1, dtype=torch.float64) @ count_U.double()
        of_links = functional.softplus(-self.margin - link_L).sum(dtype=torch.float64)
        gradient = shifted.sigmoid_().mul_(weight).mul_((0.5 * count_U)[:, None])
        d_links = -0.5 * torch.sigmoid(-self.margin - link_L)
        return ScoreGradients(0.5 * (of_links + of_negatives), gradient, d_links)


@dataclass(frozen=True)
class MarginRanking(LinkLoss):
    """Mean hinge loss of a link against each of its negatives (Bordes et al., NeurIPS 2013).

    Attributes:
        margin: By how much a link should score above each negative.
    """

    margin: float = 1.0

    def compute(
        self, negative_UK: Tensor, link_L: Tensor, starts: Tensor, among_L: Tensor | None = None
    ) -> ScoreGradients:
        """See `LinkLoss.compute`."""
        assert among_L is None
        share = 1 / max(1, negative_UK.shape[1])
        query_L = _query_of_links(starts)
        total = torch.zeros((), dtype=torch.float64, device=link_L.device)
        gradient, d_links = torch.zeros_like(negative_UK), torch.zeros_like(link_L)
        # Some links at a time, as a query may have many: no more than there are queries.
        for some in torch.split(torch.arange(len(link_L), device=link_L.device), max(1, len(negative_UK))):
            excess_SK = negative_UK[query_L[some]].sub_((link_L[some] - self.margin)[:, None]).relu_()
            total += excess_SK.sum(dtype=torch.float64)
            hits_SK = excess_SK.sign_()
            d_links[some] = -share * hits_SK.sum(1)
            gradient.index_add_(0, query_L[some], hits_SK, alpha=share)
        return ScoreGradients(share * total, gradient, d_links)


@dataclass(frozen=True)
class AllAnswers:
    """Binary cross-entropy of all nodes as answers to a query, with all known answers as ones ("KvsAll").

    Dettmers et al., AAAI 2018, section 4.1.

    Attributes:
        label_smoothing: Share of each label that is spread over all candidates.
    """

    label_smoothing: float = 0.0

    def compute(self, score_UK: Tensor, row_A: Tensor, column_A: Tensor, weight_U: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted sum of the queries' mean losses, scalar float64, and its gradient ``[U, K]``.

        Args:
            score_UK: Scores of all candidates; overwritten. Minus infinity where a node is no candidate.
            row_A: ``[A]`` int64, the query of each known answer.
            column_A: ``[A]`` int64, its candidate.
            weight_U: Weight of each query.
        """
        size = score_UK.shape[1]
        spread = self.label_smoothing / size
        factor_U = weight_U / size
        finite = torch.where(score_UK == NO_NEGATIVE, torch.zeros_like(score_UK), score_UK)
        loss_U = functional.softplus(score_UK).sum(1, dtype=torch.float64) - spread * finite.sum(1, dtype=torch.float64)
        loss_U.index_add_(0, row_A, (self.label_smoothing - 1) * finite[row_A, column_A].double())
        gradient = torch.where(score_UK == NO_NEGATIVE, torch.zeros_like(score_UK), score_UK.sigmoid() - spread)
        gradient[row_A, column_A] -= 1 - self.label_smoothing
        return loss_U @ factor_U.double(), gradient.mul_(factor_U[:, None])


def _query_of_links(starts: Tensor) -> Tensor:
    """Return ``[L]`` int64: the query of each link."""
    return torch.repeat_interleave(starts.diff())


def _sum_by_query(values_L: Tensor, starts: Tensor) -> Tensor:
    """Return ``[U]``: the sum of the values of each query's links."""
    return torch.zeros(len(starts) - 1, dtype=values_L.dtype, device=values_L.device).index_add_(
        0, _query_of_links(starts), values_L
    )
