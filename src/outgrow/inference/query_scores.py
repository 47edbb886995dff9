"""Scores of queries with the rows of own nodes, and how many of them are above those of the right answers.

Scores are rounded from float64 to float32. Candidates are scored in blocks, so that memory does not grow with them.

Letters: ``Q`` queries, ``F`` columns, ``P`` pairs of a query and a node, ``B`` candidates of a block.
"""

from __future__ import annotations

from functools import cached_property

import torch
from torch import Tensor

from outgrow.inference.scored_rows import ScoredRows
from outgrow.nn.decoder import Decoder, ProductDecoder
from outgrow.ops.candidate_scores import count_products, pair_products, row_norms
from outgrow.ops.link_scores import rank_counts
from outgrow.ops.rows.positions import find_positions

CHUNK_BYTES = 64 << 20
"""Most bytes of the scores, or of the rows of pairs, held at a time."""


class QueryScores:
    """Scores of a chunk of queries with own nodes. Final.

    Args:
        decoder: In float64.
        rows_QF: ``[Q, F]`` float64 rows of the queried nodes.
        relations_Q: ``[Q]`` int64.
        rows: Rows of own nodes.
        replaced: The end that is asked for.
    """

    def __init__(self, decoder: Decoder, rows_QF: Tensor, relations_Q: Tensor, rows: ScoredRows, replaced: str) -> None:
        self.decoder = decoder
        self.rows_QF = rows_QF
        self.relations_Q = relations_Q.to(rows.device)
        self.rows = rows
        self.replaced = replaced
        self.uses_products = (
            isinstance(decoder, ProductDecoder)
            and rows.dtype == torch.float32
            and rows.device.type == "cpu"
            # Another precision of products has no bound that is known here.
            and torch.get_float32_matmul_precision() == "highest"
        )

    def score_nodes(self, given_Q: Tensor) -> Tensor:
        """Return ``[Q]``: the score of one node of each query, zero where it is no own one."""
        at = find_positions(self.rows.nodes, given_Q)
        mine = at >= 0
        scores = torch.zeros(len(given_Q))
        scores[mine] = self._score_pairs(mine.nonzero()[:, 0], at[mine])
        return scores

    def count_above(self, threshold_Q: Tensor, span: tuple[int, int], filtered: tuple[Tensor, Tensor]) -> Tensor:
        """Return ``[2, Q]`` int64: how many own nodes are above and equal to the thresholds.

        Args:
            threshold_Q: ``[Q]`` float32; NaN counts as above.
            span: Candidates are the nodes from the first to the one before the second.
            filtered: Query and node, ``[P]`` int64 each, of nodes that do not count.
        """
        nodes = self.rows.nodes
        low, high = torch.searchsorted(nodes, torch.tensor(span)).tolist()
        # All candidates are counted, and what does not count is subtracted: that needs no mask of queries by nodes.
        query, at = filtered[0], find_positions(nodes, filtered[1])
        at, order = at.sort()
        query = query[order]
        counts = torch.zeros(2, len(threshold_Q), dtype=torch.int64)
        size = max(1, CHUNK_BYTES // (8 * max(1, len(threshold_Q))))
        for first, block in self.rows.iterate_blocks(low, high, size):
            here = slice(*torch.searchsorted(at, torch.tensor([first, first + len(block)])).tolist())
            counts += self._count_block(block, threshold_Q, query[here], at[here] - first)
        return counts

    def count_pairs(self, threshold_Q: Tensor, query_P: Tensor, nodes_P: Tensor) -> Tensor:
        """Return ``[2, Q]``: how many of some pairs of query and node are above and equal, own nodes alone."""
        at = find_positions(self.rows.nodes, nodes_P)
        mine = at >= 0
        return _count_scores(self._score_pairs(query_P[mine], at[mine]), threshold_Q, query_P[mine])

    def _count_block(self, block: Tensor, threshold: Tensor, query_P: Tensor, at_P: Tensor) -> Tensor:
        """Return the counts of a block without some pairs."""
        if self.uses_products:
            found = pair_products(self._queries_QF, query_P, block, at_P)
            return count_products(self._queries_QF, block, row_norms(block), threshold) - _count_scores(
                found, threshold, query_P
            )
        given = self.rows_QF, self.relations_Q, block.double()
        score_QB = self.decoder.score_candidates(*given, replaced=self.replaced).float()
        found = score_QB[query_P.to(block.device), at_P.to(block.device)].cpu()
        return rank_counts(score_QB, threshold.to(block.device)) - _count_scores(found, threshold, query_P)

    def _score_pairs(self, query_P: Tensor, at_P: Tensor) -> Tensor:
        """Return ``[P]`` float32 on the CPU: scores of queries with own rows, both by number."""
        size = max(1, CHUNK_BYTES // (8 * max(1, self.rows.width)))
        parts = zip(torch.split(query_P, size), torch.split(at_P, size), strict=True)
        return torch.cat([self._score_some(query, *self.rows.select(at)) for query, at in parts])

    def _score_some(self, query_P: Tensor, rows_MF: Tensor, at_P: Tensor) -> Tensor:
        if self.uses_products:
            return pair_products(self._queries_QF, query_P, rows_MF, at_P)
        query, at = (each.to(rows_MF.device) for each in (query_P, at_P))
        ends = self.rows_QF[query], rows_MF[at].double()
        heads, tails = ends if self.replaced == "tail" else ends[::-1]
        return self.decoder.score(heads, self.relations_Q[query], tails).float().cpu()

    @cached_property
    def _queries_QF(self) -> Tensor:
        assert isinstance(self.decoder, ProductDecoder)
        return self.decoder.link_queries(self.rows_QF, self.relations_Q, replaced=self.replaced).contiguous()


def _count_scores(score_P: Tensor, threshold_Q: Tensor, query_P: Tensor) -> Tensor:
    """Return ``[2, Q]``: how many scores of each query are above and equal to its threshold."""
    bar = threshold_Q[query_P]
    # Negated, since every comparison with NaN is false: NaN counts as above.
    taken = (~(score_P <= bar), score_P == bar)
    return torch.stack([torch.bincount(query_P[each], minlength=len(threshold_Q)) for each in taken])
