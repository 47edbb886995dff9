"""The graph that a run of the command line trains on, and which of its splits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from outgrow.graph import datasets
from outgrow.graph.graph import Graph
from outgrow.graph.readers.tables.options import TableOptions


@dataclass(frozen=True, kw_only=True, eq=False)
class GraphChoice:
    """Graph by its name, and a split of it.

    Attributes:
        name: Data set, store directory or graph file.
        data_dir: Folder to look in first for the files of a named data set.
        split: Number of the split among `Graph.splits`; None for the one that the graph comes with.
        loaded: The graph, if it is loaded already.
        options: How it is read.
    """

    name: str
    data_dir: Path | None = None
    split: int | None = None
    loaded: Graph | None = None
    options: TableOptions = field(default_factory=TableOptions)

    def load(self) -> Graph:
        """Return the graph with this split.

        Raises:
            InputError: There is no such graph or split, or it is broken.
        """
        graph = self.loaded or datasets.load_graph(self.name, data_dir=self.data_dir, options=self.options)
        return graph if self.split is None else graph.select_split(self.split)
