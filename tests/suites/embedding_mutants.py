"""Mutants of node embeddings: rows and gradients that do not come from, or go to, the owner of a node once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import PropertyMock, patch

import torch
from torch import Tensor

from outgrow.engine.embeddings.row_optimizers import RowOptimizer
from outgrow.engine.embeddings.table import EmbeddingTable
from suites.hits import Hits


@contextmanager
def moments_of_untouched_rows() -> Iterator[Hits]:
    """Moments of rows that a batch does not touch decay too, and move these rows."""
    hits, update = Hits(), RowOptimizer.update_rows

    def update_rows(optimizer: RowOptimizer, values: Tensor, grad: Tensor, *rest: Any) -> None:
        hits.note(bool((grad == 0).all(1).any()))
        update(optimizer, values, grad, *rest)

    with (
        patch.object(RowOptimizer, "updates_all_rows", PropertyMock(return_value=True)),
        patch.object(RowOptimizer, "update_rows", update_rows),
    ):
        yield hits


@contextmanager
def stale_remote_rows() -> Iterator[Hits]:
    """Rows of other workers are those that came with the first batch that needed them."""
    hits, fetch = Hits(), EmbeddingTable.fetch_rows

    def fetch_once(table: Any, nodes_N: Tensor) -> None:
        fetch(table, nodes_N)
        batch = table._batch
        kept = table.__dict__.setdefault("kept_rows", {})
        owned = {*table.nodes.tolist()}
        for at, node in enumerate(batch.nodes.tolist()):
            if node not in owned:
                before = kept.setdefault(node, batch.values[at].clone())
                hits.note(not torch.equal(before, batch.values[at]))
                batch.values[at] = before

    with patch.object(EmbeddingTable, "fetch_rows", fetch_once):
        yield hits


@contextmanager
def gradients_from_every_worker() -> Iterator[Hits]:
    """Gradients are summed over all workers, as those of parameters are: each owner adds them once for each."""
    hits, complete = Hits(), EmbeddingTable.complete_gradients

    def complete_often(table: EmbeddingTable) -> None:
        complete(table)
        hits.note(table.comm.size > 1)
        table.gradients.scale_new(table.comm.size)

    with patch.object(EmbeddingTable, "complete_gradients", complete_often):
        yield hits


@contextmanager
def rows_drawn_by_place() -> Iterator[Hits]:
    """First rows are drawn by the place of a node among those of its worker."""
    hits = Hits()

    def draw(table: EmbeddingTable) -> None:
        hits.note(bool((table.nodes != torch.arange(len(table.nodes))).any()))
        table.values.write_range(0, table.embedding.draw_rows(torch.arange(len(table.nodes))))

    with patch.object(EmbeddingTable, "draw_rows", draw):
        yield hits


MUTANTS: Mapping[str, Callable[[], AbstractContextManager[Hits]]] = {
    "moments_of_untouched_rows": moments_of_untouched_rows,
    "stale_remote_rows": stale_remote_rows,
    "gradients_from_every_worker": gradients_from_every_worker,
    "rows_drawn_by_place": rows_drawn_by_place,
}
