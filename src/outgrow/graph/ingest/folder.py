"""A folder with an edge table and what is known of its nodes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import final

from outgrow.graph.ingest.archive import Archive
from outgrow.graph.ingest.gaps import check_gaps
from outgrow.graph.ingest.npz import node_tables
from outgrow.graph.ingest.source import EdgeChunk, Source, Tables

NODES = "nodes.npz"


@final
class FolderSource(Source):
    """Edges from one source, everything else from ``nodes.npz``.

    Its keys are those of a graph in one file (``npz.py``), without ``edge_index``.

    Args:
        folder: The folder.
        edges: Reads the edge table.
    """

    def __init__(self, folder: Path, edges: Source) -> None:
        self._folder, self._edges = Path(folder), edges

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._folder.absolute().name

    def tables(self) -> Tables:
        """What ``nodes.npz`` holds.

        Raises:
            InputError: The file is broken.
        """
        tables = node_tables(Archive(self._folder / NODES))
        if tables.num_nodes is not None and tables.features is None and tables.labels is None:
            size = sum(path.stat().st_size for path in self._folder.glob("edges.*"))  # an edge takes at least a byte
            check_gaps(tables.num_nodes, size, str(self._folder / NODES))
        return tables

    def edges(self) -> Iterator[EdgeChunk]:
        """All edges of the edge table."""
        return self._edges.edges()
