"""Evaluation of models of links: rows that a ranking reads are collected, in a file if they are many, then ranked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from outgrow.core.validation import replace_non_finite
from outgrow.inference.link_ranking import LinkRanker
from outgrow.training.collected_rows import CollectedRows, collect_parts
from outgrow.training.evaluation import Evaluator, Metrics
from outgrow.training.monitor import Monitor, choose_link_monitor


class LinkEvaluation:
    """Evaluation by ranking links. Final.

    Args:
        val: Validation links.
        test: Test links.
        monitor: The metric that is monitored; None for the mean reciprocal rank.
        memory_limit: Limit on the bytes in the worker's DEVICE tier, of which rows take a part; None for what there is.
    """

    metric = "mrr"

    def __init__(
        self, val: LinkRanker, test: LinkRanker, monitor: Monitor | None = None, *, memory_limit: int | None = None
    ) -> None:
        self.val, self.test = val, test
        self.monitor = monitor or choose_link_monitor(None, None)
        self.memory_limit = memory_limit
        self._scored_nodes: tuple[Tensor, Tensor] | None = None

    @property
    def scored_nodes(self) -> tuple[Tensor, Tensor]:
        """The own nodes whose rows the rankings read."""
        if self._scored_nodes is None:
            self._scored_nodes = self.val.find_scored_nodes(), self.test.find_scored_nodes()
        return self._scored_nodes

    @property
    def has_validation(self) -> bool:
        """Whether there are validation links."""
        return len(self.val.links) > 0

    def validation_evaluator(self) -> Evaluator:
        """Return an evaluator of the validation links."""
        return _LinkEvaluator(self.val, self.monitor.name, self._collect(self.scored_nodes[0], 1))

    def final_evaluators(self, *, together: bool) -> tuple[Evaluator, Evaluator]:
        """Return evaluators of the validation and test links."""
        collected = collect_parts(self.scored_nodes, self._collect, together=together)
        pairs = zip((self.val, self.test), collected, strict=True)
        one, other = (_LinkEvaluator(ranking, self.monitor.name, rows) for ranking, rows in pairs)
        return one, other

    def _collect(self, nodes: Tensor, readers: int) -> CollectedRows:
        return CollectedRows.of_worker(nodes, self.val.shard.comm, self.memory_limit, readers)


class _LinkEvaluator:
    """Ranks links once the rows of all nodes that it reads were added."""

    def __init__(self, ranking: LinkRanker, monitor: str, collected: CollectedRows) -> None:
        self.ranking = ranking
        self.monitor = monitor
        self.collected = collected

    @property
    def reads_output(self) -> bool:
        """Whether there is a link to rank, for which rows are kept."""
        return len(self.ranking.links) > 0

    def update(self, nodes: Tensor, out: Tensor) -> None:
        if self.reads_output:
            self.collected.add(nodes, out)

    def compute(self) -> Metrics:
        ranks = self.ranking.rank_links(self.collected.rows)
        self.collected.release()
        figures = ranks.compute_metrics()
        return Metrics(score=figures[self.monitor], loss=0.0, figures=figures, ranks=ranks)


def describe_link_ranks(relation_names: Sequence[str], val: Metrics, test: Metrics) -> dict[str, Any]:
    """Return ``links``, metrics of both parts by end and by relation (`LinkRanks.describe`); nothing without ranks."""
    named = {"val": val.ranks, "test": test.ranks}
    described = {part: ranks.describe(relation_names) for part, ranks in named.items() if ranks is not None}
    return {"links": replace_non_finite(described)} if described else {}
