"""Evaluation of models of links: rows that a ranking reads are collected, in a file if they are many, then ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from outgrow.core.validation import replace_non_finite
from outgrow.inference.link_ranking import LinkRanker
from outgrow.training.collected_rows import CollectedRows
from outgrow.training.collecting_evaluation import CollectingEvaluation, CollectingEvaluator
from outgrow.training.evaluation import Evaluator, Metrics
from outgrow.training.monitor import Monitor, choose_link_monitor


class LinkEvaluation(CollectingEvaluation[LinkRanker]):
    """Evaluation by ranking links. Final.

    Args:
        val: Validation links.
        test: Test links.
        monitor: The metric that is monitored; None for the mean reciprocal rank.
        memory_limit: See `CollectingEvaluation`.
    """

    metric = "mrr"

    def __init__(
        self, val: LinkRanker, test: LinkRanker, monitor: Monitor | None = None, *, memory_limit: int | None = None
    ) -> None:
        super().__init__(val, test, monitor or choose_link_monitor(None, None), memory_limit)

    def _make_evaluator(self, scorer: LinkRanker, rows: CollectedRows) -> Evaluator:
        return _LinkEvaluator(scorer, self.monitor.name, rows)


class _LinkEvaluator(CollectingEvaluator[LinkRanker]):
    def __init__(self, ranking: LinkRanker, monitor: str, collected: CollectedRows) -> None:
        super().__init__(ranking, collected)
        self.monitor = monitor

    def compute(self) -> Metrics:
        ranks = self.scorer.rank_links(self.collected.rows)
        self.collected.release()
        figures = ranks.compute_metrics()
        return Metrics(score=figures[self.monitor], loss=0.0, figures=figures, ranks=ranks)


def describe_link_ranks(relation_names: Sequence[str], val: Metrics, test: Metrics) -> dict[str, Any]:
    """Return ``links``, metrics of both parts by end and by relation (`LinkRanks.describe`); nothing without ranks."""
    named = {"val": val.ranks, "test": test.ranks}
    described = {part: ranks.describe(relation_names) for part, ranks in named.items() if ranks is not None}
    return {"links": replace_non_finite(described)} if described else {}
