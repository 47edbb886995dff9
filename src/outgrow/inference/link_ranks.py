"""Metrics of ranked links: of all, by the end that is asked for, and by relation.

Letters: ``P`` links, ``Q = 2 P`` queries: those for tails, then those for heads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

HITS = (1, 3, 10)
"""The ``k`` of hits at k."""
LINK_METRICS: Mapping[str, bool] = {
    "mrr": True,
    **{f"hits@{k}": True for k in HITS},
    "mean_rank": False,
    "auc": True,
    "ap": True,
}
"""Metrics of links, and whether a higher value is better; the first is the one to choose models by."""
STANDARD_ERROR = "mrr_standard_error"
"""A figure beside those of `LINK_METRICS`, where candidates are drawn."""
ENDS = ("tail", "head")
"""The ends of a link, in the order of queries."""


class LinkRanks(NamedTuple):
    """Ranks of the answers to all queries, and their scores beside those of one wrong answer each.

    Attributes:
        rank: ``[Q]`` float64, from 1: those of tails, then those of heads.
        relation: ``[P]`` int64.
        score: ``[Q]`` float32 of the right answers; empty if none were drawn beside them.
        wrong: ``[Q]`` float32 of a wrong answer to each query; NaN where all nodes are right.
        is_sample: Whether candidates were drawn.
    """

    rank: Tensor
    relation: Tensor
    score: Tensor
    wrong: Tensor
    is_sample: bool = False

    def compute_metrics(self) -> dict[str, float]:
        """Return the values of `LINK_METRICS`; NaN if there are no queries.

        ``auc`` is the probability that a link scores above a wrong answer, equal scores counting half; ``ap`` the
        average precision of links among as many wrong answers, over the scores in descending order. Of drawn candidates
        ``mrr_standard_error`` is that of the mean over links, both ends of each together.
        """
        each = {"mrr": 1 / self.rank} | {f"hits@{k}": (self.rank <= k).double() for k in HITS}
        means = {name: values.mean().item() for name, values in {**each, "mean_rank": self.rank}.items()}
        drawn = ~self.wrong.isnan()
        auc, ap = measure_separation(self.score[drawn], self.wrong[drawn])
        error = {STANDARD_ERROR: self._standard_error()} if self.is_sample else {}
        return {**means, "auc": auc, "ap": ap, **error}

    def _standard_error(self) -> float:
        """Return the standard error of the MRR: links are drawn, and candidates for each of them."""
        count = len(self.relation)
        # Of one end alone each query is a link of its own; both ends of a link have the same rows.
        reciprocal = (1 / self.rank).view(-1, count).mean(0) if count else 1 / self.rank
        return (reciprocal.std() / len(reciprocal) ** 0.5).item() if len(reciprocal) > 1 else float("nan")

    def describe(self, relation_names: Sequence[str]) -> dict[str, Any]:
        """Return metrics of parts: ``by_end`` of ``tail`` and ``head``, ``by_relation`` by name, with ``by_end`` too.

        Args:
            relation_names: Name of each relation; empty if edges have none: there is then no ``by_relation``.
        """
        described = self._describe_ends()
        if relation_names:
            present = torch.unique(self.relation).tolist()
            described["by_relation"] = {
                relation_names[number]: self._select(self.relation == number)._describe_ends() for number in present
            }
        return described

    def _describe_ends(self) -> dict[str, Any]:
        count = len(self.relation)
        halves = (slice(0, count), slice(count, 2 * count))
        by_end = {end: self._select_queries(half) for end, half in zip(ENDS, halves, strict=True)}
        return {
            "links": count,
            **self.compute_metrics(),
            "by_end": {end: ranks.compute_metrics() for end, ranks in by_end.items()},
        }

    def _select(self, links: Tensor) -> LinkRanks:
        return self._select_queries(links.repeat(2))._replace(relation=self.relation[links])

    def _select_queries(self, queries: Tensor | slice) -> LinkRanks:
        return LinkRanks(self.rank[queries], self.relation, self.score[queries], self.wrong[queries], self.is_sample)


def measure_separation(right_N: Tensor, wrong_N: Tensor) -> tuple[float, float]:
    """Return the area under the ROC curve and the average precision of right scores among wrong ones.

    Args:
        right_N: ``[N]`` floating, without NaN.
        wrong_N: ``[N]`` of the same type.

    Returns:
        Two numbers from 0 to 1; NaN for no scores.
    """
    if not len(right_N):
        return float("nan"), float("nan")
    scores = torch.cat([right_N, wrong_N])
    values, place = torch.unique(scores, return_inverse=True)
    right = torch.bincount(place[: len(right_N)], minlength=len(values)).double().flip(0)
    wrong = torch.bincount(place[len(right_N) :], minlength=len(values)).double().flip(0)
    found, passed = right.cumsum(0), wrong.cumsum(0)
    # Of equal scores none comes first: half of their pairs count, and their precision is that of all together.
    auc = (right * (len(wrong_N) - passed + wrong / 2)).sum() / (len(right_N) * len(wrong_N))
    ap = (right * found / (found + passed)).sum() / len(right_N)
    return auc.item(), ap.item()
