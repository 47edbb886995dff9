"""`TrainedEmbeddings`: vectors of nodes in a training: read from a checkpoint, saved, and those of the best epoch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outgrow.core.errors import InputError
from outgrow.engine.problem import Problem
from outgrow.training.embedding_files import gather_vectors, restore_vectors, write_vectors
from outgrow.training.node_embeddings import NodeEmbeddings


class TrainedEmbeddings:
    """The vectors of the nodes of a model in training; nothing to do for a model without. Final.

    All workers call its methods together.

    Args:
        problem: The problem.
        embeddings: The tables.
        folder: Folder of the checkpoints, on rank 0; None to write none.
    """

    def __init__(self, problem: Problem, embeddings: NodeEmbeddings, folder: Path | None) -> None:
        self.embeddings = embeddings
        self.folder = folder
        self.has_folder = bool(embeddings) and problem.shard.comm.broadcast(folder is not None)
        if embeddings.on_disk and not self.has_folder:
            raise InputError(
                "the vectors of the nodes do not fit into memory",
                needed="a directory of the run, in whose checkpoints they are kept",
                got=f"{problem.run_facts['embedding_bytes']:,} bytes and no directory",
                repair='use og.train with a directory: og.train(..., out="runs/first")',
            )

    def load(self, folder: Path, saved: Mapping[str, Any]) -> None:
        """Go on with the vectors of a checkpoint: see `restore_vectors`."""
        if self.embeddings:
            restore_vectors(folder, saved, self.embeddings)

    def save(self, name: str) -> dict[str, Any] | None:
        """Write the vectors beside a checkpoint; return what it records, or None.

        Args:
            name: Name of the checkpoint, without its suffix.
        """
        return write_vectors(self.folder, name, self.embeddings) if self.has_folder else None

    def require_finite(self, step: str) -> None:
        """Check all vectors: see `NodeEmbeddings.require_finite`."""
        self.embeddings.require_finite(step)

    def keep_best(self) -> None:
        """Keep a copy of the vectors, those of the best epoch so far."""
        for table in self.embeddings.tables:
            table.keep_best()

    def restore_best(self) -> None:
        """Go back to the copy."""
        for table in self.embeddings.tables:
            table.restore_best()

    def give_to_model(self) -> None:
        """Give the model of rank 0 all vectors; those in files are read from the checkpoint."""
        if not self.embeddings.on_disk:
            gather_vectors(self.embeddings)
