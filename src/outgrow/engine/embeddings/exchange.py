"""The tables of a model's node embeddings in mini-batches: rows before a batch is computed, gradients after it."""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from outgrow.engine.embeddings.table import EmbeddingTable
from outgrow.nn.model import Model
from outgrow.nn.node_embedding import find_embeddings


def trained_tables(model: Model) -> Iterator[EmbeddingTable]:
    """Yield the tables of a model in training; none of a model that is not trained now, or has no embeddings."""
    for embedding in find_embeddings(model).values():
        if isinstance(embedding.rows, EmbeddingTable):
            yield embedding.rows


def fetch_embedding_rows(model: Model, nodes: Tensor) -> None:
    """Bring the rows of some nodes for the lookups that follow, whoever owns them. All workers together.

    Args:
        model: The model.
        nodes: ``[N]`` int64, in any order; a node may occur several times.
    """
    for table in trained_tables(model):
        table.fetch_rows(nodes)


def complete_embedding_gradients(model: Model) -> None:
    """Return the gradients of fetched rows to their owners. All workers together."""
    for table in trained_tables(model):
        table.complete_gradients()


def drop_embedding_rows(model: Model) -> None:
    """Forget fetched rows, after an inference."""
    for table in trained_tables(model):
        table.drop_batch()
