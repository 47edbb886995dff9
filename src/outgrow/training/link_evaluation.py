"""Evaluation of models of links: rows that a ranking reads are collected, in a file if they are many, then ranked."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor

from outgrow.core.validation import replace_non_finite
from outgrow.engine.objective import row_range
from outgrow.inference.chunked import InferenceMemory
from outgrow.inference.link_ranking import LinkRanker
from outgrow.inference.scored_rows import ScoredRows, StorageRows, TensorRows
from outgrow.runtime.storage.row_file import IoPool, RowFile
from outgrow.runtime.storage.row_storage import InMemoryRows, RowStorage
from outgrow.runtime.storage.scratch_dir import scratch_directory
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
        val, test = self.scored_nodes
        if together:
            collected = [self._collect(torch.unique(torch.cat([val, test])), 2)] * 2
        else:
            collected = [self._collect(nodes, 1) for nodes in (val, test)]
        pairs = zip((self.val, self.test), collected, strict=True)
        one, other = (_LinkEvaluator(ranking, self.monitor.name, rows) for ranking, rows in pairs)
        return one, other

    def _collect(self, nodes: Tensor, readers: int) -> _CollectedRows:
        comm = self.val.shard.comm
        return _CollectedRows(nodes, InferenceMemory.of_worker(comm, self.memory_limit).table_bytes, readers)


class _CollectedRows:
    """Output of some nodes, collected piece by piece: in memory, or in a scratch file.

    Args:
        nodes: ``[n]`` int64, ascending.
        memory_bytes: What may be in memory.
        readers: How often `release` is called before rows are dropped.
    """

    def __init__(self, nodes: Tensor, memory_bytes: int, readers: int) -> None:
        self._nodes = nodes
        self._memory_bytes = memory_bytes
        self._readers = readers
        self._last: Tensor | None = None
        self._whole: Tensor | None = None
        self._storage: RowStorage | None = None
        self._stack = ExitStack()

    def add(self, nodes: Tensor, out: Tensor) -> None:
        """Add the output of some nodes, ascending; the same output once more is passed over."""
        if out is self._last:
            return
        self._last = out
        if len(nodes) == len(self._nodes) and torch.equal(nodes, self._nodes):
            self._whole = out
            return
        if self._storage is None:
            self._storage = self._create(out.shape[1], out.dtype)
        if not len(nodes):
            return
        near = row_range(self._nodes, int(nodes[0]), int(nodes[-1]) + 1)
        wanted = self._nodes[near]
        rows = out if len(wanted) == len(nodes) else out[torch.searchsorted(nodes, wanted)]
        self._storage.write_range(near.start, rows)

    def _create(self, width: int, dtype: torch.dtype) -> RowStorage:
        count = len(self._nodes)
        num_bytes = count * width * dtype.itemsize
        if num_bytes <= self._memory_bytes:
            return InMemoryRows(torch.empty(count, width, dtype=dtype))
        folder = self._stack.enter_context(scratch_directory(None, num_bytes))
        io_pool = IoPool()
        self._stack.callback(io_pool.close)
        file = RowFile.create(io_pool, folder / "rows", count, width, dtype)
        self._stack.callback(file.close)
        return file

    @property
    def rows(self) -> ScoredRows:
        """All rows, once they were added."""
        if self._whole is not None:
            return TensorRows(self._nodes, self._whole)
        if self._storage is None:
            return TensorRows(self._nodes[:0], torch.empty(0, 0))
        return StorageRows(self._nodes, self._storage)

    def release(self) -> None:
        """Drop the rows, if no other reader needs them."""
        self._readers -= 1
        if not self._readers:
            self._whole = self._storage = self._last = None
            self._stack.close()


class _LinkEvaluator:
    """Ranks links once the rows of all nodes that it reads were added."""

    def __init__(self, ranking: LinkRanker, monitor: str, collected: _CollectedRows) -> None:
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
