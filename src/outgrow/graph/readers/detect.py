"""Detection of the reader for a path, and the reader of folders with nodes.npz."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import final

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import check_node_count
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.edge_list import EdgeListSource
from outgrow.graph.readers.npz import NpzSource, parse_node_tables, unread_keys
from outgrow.graph.readers.npz_archive import NpzArchive
from outgrow.graph.readers.npz_origin import describe_keys
from outgrow.graph.readers.ogb import OgbSource
from outgrow.graph.readers.parquet import ParquetSource
from outgrow.graph.readers.planetoid import PlanetoidSource
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.triple_files import find_triple_files
from outgrow.graph.readers.tables.triples import TriplesSource

NODES = "nodes.npz"


@final
class FolderSource(GraphSource):
    """Source with edges from an edge table, and everything else from ``nodes.npz``.

    The keys of ``nodes.npz`` are those of a graph in one file (``npz.py``), without ``edge_index``.

    Args:
        folder: The folder.
        edges: Reader of the edge table.
    """

    def __init__(self, folder: Path, edges: GraphSource) -> None:
        self._folder = Path(folder)
        self._edges = edges

    @property
    def name(self) -> str:
        """Name of the folder."""
        return self._folder.absolute().name

    def read_tables(self) -> NodeTableSource:
        """Return the tables in ``nodes.npz``.

        Raises:
            InputError: The file is broken.
        """
        tables = parse_node_tables(NpzArchive(self._folder / NODES))
        if tables.num_nodes is not None and tables.features is None and tables.labels is None:
            # An edge takes at least one byte, so the size bounds their number without reading them.
            size = sum(path.stat().st_size for path in self._folder.glob("edges.*"))
            check_node_count(tables.num_nodes, size, str(self._folder / NODES))
        return tables

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges of the edge table."""
        return self._edges.read_edges()

    def describe_origin(self) -> GraphOrigin:
        """Return what is read of the edge table and of ``nodes.npz``, and what is not."""
        archive = NpzArchive(self._folder / NODES)
        nodes = describe_keys(archive.keys(), unread_keys(archive, with_edges=False), NODES)
        return GraphOrigin(read=(*self._edges.describe_origin().read, *nodes), unread=self.list_unread())

    def list_unread(self) -> tuple[str, ...]:
        """Return the keys of ``nodes.npz`` and the columns of the edge table that are not read."""
        return (*unread_keys(NpzArchive(self._folder / NODES), with_edges=False), *self._edges.list_unread())


TEXT = (".csv", ".tsv", ".txt", ".edges", ".edgelist", ".el")
KNOWN = (
    f"an edge list ({', '.join(TEXT)}; also with .gz), a .parquet or .npz file, or a folder: of Planetoid files "
    f"(ind.NAME.*), of an OGB data set (raw/, split/), of triples (train, valid and test), or with edges.csv, .tsv, "
    f".parquet and {NODES}"
)


def detect_reader(path: Path, options: TableOptions | None = None) -> GraphSource:
    """Return the reader of a file or folder, chosen by its name.

    Args:
        path: The file or folder.
        options: What tables need to be told; None for the defaults.

    Raises:
        InputError: The path does not exist, its format is unknown, or an option does not apply to its format.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path} does not exist", needed=KNOWN, got="nothing at that path", repair="correct the path")
    if not (path.is_file() or path.is_dir()):
        raise InputError(
            f"{path} is neither a file nor a folder", needed=KNOWN, got="a device or a pipe", repair="correct the path"
        )
    # By name alone: no file is opened before the reader is known.
    options = options or TableOptions()
    source = _edge_table_reader(path, options)
    if source is not None:
        options.refuse_all_but(("num_nodes", "relabel", "columns", "inverse_relations"), str(path))
        source.adds_inverse_relations = options.inverse_relations
        return source
    triples = find_triple_files(path) if path.is_dir() else None
    if triples is not None:
        options.refuse_all_but(("columns", "inverse_relations"), str(path))
        made = TriplesSource(path, triples, options)
        made.adds_inverse_relations = options.inverse_relations
        return made
    options.refuse_all_but(("inverse_relations",), str(path))
    source = _folder_reader(path) if path.is_dir() else (NpzSource(path) if path.suffix == ".npz" else None)
    if source is None:
        got = (
            f"a folder with {', '.join(_first_file_names(path))}"
            if path.is_dir()
            else f"a file that ends in {path.suffix!r}"
        )
        raise InputError(f"{path} is of no known form", needed=KNOWN, got=got, repair="convert or rename it")
    source.adds_inverse_relations = options.inverse_relations
    return source


def _edge_table_reader(path: Path, options: TableOptions) -> GraphSource | None:
    num_nodes, relabel = options.num_nodes, options.relabel
    columns = list(options.columns) or None
    ending = path.suffixes[-2:-1] if path.suffix == ".gz" else [path.suffix]
    if path.is_file() and ending and ending[0].lower() in TEXT:
        return EdgeListSource(path, num_nodes=num_nodes, relabel=relabel, columns=columns)
    if path.is_file() and path.suffix == ".parquet":
        return ParquetSource(path, num_nodes=num_nodes, relabel=relabel, columns=columns)
    return None


def _folder_reader(path: Path) -> GraphSource | None:
    graphs = sorted(path.glob("ind.*.graph"))
    if len(graphs) == 1:
        return PlanetoidSource(path, graphs[0].name.split(".")[1])
    if (path / "raw").is_dir():
        return OgbSource(path)
    tables = [reader for file in sorted(path.glob("edges.*")) if (reader := _edge_table_reader(file, TableOptions()))]
    if len(tables) == 1 and (path / NODES).is_file():
        return FolderSource(path, tables[0])
    return None


def _first_file_names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())[:8] or ["nothing"]
