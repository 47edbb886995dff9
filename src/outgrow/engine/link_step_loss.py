"""The loss of the links of a step, from the rows of their ends and of their negatives."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from outgrow.engine.candidate_loss import candidate_loss, score_loss
from outgrow.engine.link_candidates import CandidateQueries
from outgrow.engine.link_options import LinkOptions
from outgrow.graph.link_triples import LinkTriples
from outgrow.nn.decoder import Decoder
from outgrow.nn.edge_decoder import EdgeDecoder
from outgrow.nn.link_losses import AllAnswers
from outgrow.ops.link_scores import NodePairs, sample_negatives
from outgrow.ops.rng import fold_in
from outgrow.ops.rows.positions import RowNumbers
from outgrow.runtime.distributed.comm import Comm

Pairs = tuple[Tensor, Tensor, Tensor]
"""Tails, heads and relations."""


def draw_pairs(links: LinkTriples, number: Tensor, options: LinkOptions, key: int) -> Pairs:
    """Return tails, heads and relations of all pairs: of the links, then of each number of negatives.

    Args:
        links: The links, ``L`` of them.
        number: ``[L]`` int64, ids of these edges, on which draws depend.
        options: Options of training.
        key: Random key of the negatives of the step.
    """
    head, tail, relation = links
    first, second = [tail], [head]
    for k in range(options.negatives):
        kept, drawn = sample_negatives(head, tail, number, options.ends, fold_in(key, k))
        # What replaces a tail is a tail: decoders may score a link and its reverse differently.
        keeps_head = kept == head
        first.append(torch.where(keeps_head, drawn, tail))
        second.append(torch.where(keeps_head, head, drawn))
    return torch.cat(first), torch.cat(second), relation.repeat(1 + options.negatives)


class LinkStepLoss:
    """The loss of a worker's links of a step. Final.

    Args:
        decoder: Scores links, or edges with targets.
        options: Options of training.
        links: The worker's links of the step.
        num_targets: Number of links of the step over all workers.
        comm: Communicator of the workers.
        number: ``[L]`` int64, ids of these edges.
    """

    def __init__(
        self,
        decoder: Decoder | EdgeDecoder,
        options: LinkOptions,
        links: LinkTriples,
        num_targets: int,
        comm: Comm,
        number: Tensor,
    ) -> None:
        self.decoder = decoder
        self.options = options
        self.links = links
        self.num_targets = num_targets
        self.comm = comm
        self.number = number

    def compute(self, rows: Tensor, at: RowNumbers, pairs: Pairs, queries: Sequence[CandidateQueries] | None) -> Tensor:
        """Return the sum over the worker's links, divided by their number over all workers.

        Args:
            rows: ``[N, F]`` rows of nodes.
            at: The row number of each node.
            pairs: Pairs of the links and of negatives of their own; of the links alone if there are ``queries``.
            queries: Queries with candidates that links have in common; None for negatives of each link.
        """
        if self.options.labels is not None:
            assert isinstance(self.decoder, EdgeDecoder)
            labels, total = self.options.labels, self.num_targets
            return labels.compute_loss(self.decoder, rows, at, self.links, self.number, total)
        value = self._loss_of_pairs(rows, at, pairs) if queries is None else self._loss_of_queries(rows, at, queries)
        if self.options.regularizer is not None:
            value = value + self._penalty(rows, at) / self.num_targets
        return value

    def _loss_of_pairs(self, rows: Tensor, at: RowNumbers, pairs: Pairs) -> Tensor:
        """Return the loss with negatives of each link, from the rows and the row number of each node."""
        assert not isinstance(self.options.loss, AllAnswers)
        first, second, relation = pairs
        score = self._score_pairs(rows, at[first], at[second], relation)
        # The links of the graph come first, then the negatives, number by number.
        shape = 1 + self.options.negatives, len(self.links)
        link, *negatives = score.view(shape).unbind()
        negative = torch.stack(negatives, 1)
        return score_loss(self.options.loss, link, negative) / self.num_targets

    def _loss_of_queries(self, rows: Tensor, at: RowNumbers, queries: Sequence[CandidateQueries]) -> Tensor:
        """Return the loss with candidates that links have in common; the rest as `_loss_of_pairs`."""
        head, tail, relation = self.links
        assert isinstance(self.decoder, Decoder)
        if isinstance(self.options.loss, AllAnswers):
            scores, parts = rows.new_empty(0), self._count_queries(queries)
        else:
            scores, parts = self._score_pairs(rows, at[tail], at[head], relation), 2 * self.num_targets
        return candidate_loss(self.decoder, self.options.loss, rows, scores, queries, at) / parts

    def _count_queries(self, queries: Sequence[CandidateQueries]) -> float:
        """Return the number of distinct queries over all workers."""
        mine = sum(float(each.weight.sum()) for each in queries)
        return float(self.comm.all_reduce(torch.tensor(mine, dtype=torch.float64)))

    def _score_pairs(self, rows: Tensor, first: Tensor, second: Tensor, relation: Tensor) -> Tensor:
        """Return ``[P]``: the decoder's scores of pairs of rows, in the given order."""
        assert isinstance(self.decoder, Decoder)
        tails, heads, relations = (each.to(rows.device) for each in (first, second, relation))
        pairs = NodePairs.from_endpoints(tails, heads, relations, len(rows))
        score: Tensor = self.decoder(rows, pairs)
        return torch.zeros_like(score).index_copy(0, pairs.order, score)

    def _penalty(self, rows: Tensor, at: RowNumbers) -> Tensor:
        """Return the penalty of both ends and of the relation of each link, summed over the worker's links."""
        regularizer = self.options.regularizer
        assert regularizer is not None
        assert isinstance(self.decoder, Decoder)
        head, tail, relation = self.links
        # How often a row is an end, so that no row per link is made.
        ends = torch.bincount(at[torch.cat([head, tail])], minlength=len(rows))
        used = ends.nonzero()[:, 0]
        squares = self.decoder.squared_magnitudes(rows[used.to(rows.device)])
        penalty = regularizer.penalize_rows(squares) @ ends[used].to(rows)
        times = torch.bincount(relation)
        present = times.nonzero()[:, 0]
        of_relations = self.decoder.relation_rows(present.to(rows.device))
        if of_relations is not None:
            squares = self.decoder.squared_magnitudes(of_relations)
            penalty = penalty + regularizer.penalize_rows(squares) @ times[present].to(rows)
        return regularizer.weight * penalty
