"""Detection of the reader for a path, and the reader of folders with nodes.npz."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import final

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.builders.edge_checks import check_node_count
from outgrow.graph.builders.node_tables import infer_num_nodes
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.node_ids import NodeIds
from outgrow.graph.readers.dgl_file import DGL_SUFFIXES, read_dgl_file
from outgrow.graph.readers.npz import NpzSource, parse_node_tables, unread_keys
from outgrow.graph.readers.npz_archive import NpzArchive
from outgrow.graph.readers.npz_origin import describe_keys
from outgrow.graph.readers.ogb import OgbSource
from outgrow.graph.readers.on_disk_dataset import METADATA, read_on_disk_dataset
from outgrow.graph.readers.planetoid import PlanetoidSource
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.split_source import SPLIT_OPTIONS, apply_split_options
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.forms import FORMS, is_table
from outgrow.graph.readers.tables.numbered_triples import find_numbered_files
from outgrow.graph.readers.tables.options import TableOptions
from outgrow.graph.readers.tables.table_graph import TABLE_GRAPH_OPTIONS, TableGraphSource, find_table_pair
from outgrow.graph.readers.tables.triple_files import find_triple_files
from outgrow.graph.readers.tables.triples import TriplesSource
from outgrow.graph.readers.tables.typed_folder import find_typed_source

NODES = "nodes.npz"


@final
class FolderSource(GraphSource):
    """Source with edges from an edge table, and everything else from ``nodes.npz``.

    The keys of ``nodes.npz`` are those of a graph in one file (``npz.py``), without ``edge_index``. Its rows are those
    of the nodes by number; if the edge table's ids are relabelled, of the ids in ascending order.

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

    def read_relation_names(self) -> tuple[str, ...]:
        """Return the name of each relation that the edge table has as text."""
        return self._edges.read_relation_names()

    def read_edge_feature_sizes(self) -> tuple[int, ...]:
        """Return what the edge table says of the features of edges."""
        return self._edges.read_edge_feature_sizes()

    def read_edge_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns of features of edges and of their categories."""
        return self._edges.read_edge_columns()

    def has_dates(self) -> bool:
        """Return what the edge table says of times."""
        return self._edges.has_dates()

    def read_ids(self) -> NodeIds | None:
        """Return the id of each node, if the edge table is relabelled.

        Raises:
            InputError: Ids that are texts, in no order that ``nodes.npz`` could have; or more or fewer ids than rows.
        """
        ids = self._edges.read_ids()
        rows = infer_num_nodes(self.read_tables())
        if ids is not None and (ids.are_text or len(ids) != rows):
            raise InputError(
                f"the ids of the edges do not fit {self._folder / NODES}",
                needed="numbers of its rows; or with --relabel as many integer ids as rows, which are in their order",
                got="texts" if ids.are_text else f"{len(ids):,} ids and {rows or 0:,} rows",
                repair="give a node table with a column of ids instead, such as nodes.parquet",
            )
        return ids

    def read_progress(self) -> tuple[int, int] | None:
        """Return how much of the edge table was read."""
        return self._edges.read_progress()

    def describe_origin(self) -> GraphOrigin:
        """Return what was read of both."""
        archive = NpzArchive(self._folder / NODES)
        nodes = describe_keys(archive.keys(), unread_keys(archive, with_edges=False), NODES)
        return GraphOrigin(read=(*self._edges.describe_origin().read, *nodes), unread=self.list_unread())

    def set_scratch(self, folder: Path, memory_bytes: int) -> None:
        """Say where temporary files of the edge table may lie."""
        self._edges.set_scratch(folder, memory_bytes)

    def list_unread(self) -> tuple[str, ...]:
        """Return the keys of ``nodes.npz`` and the columns of the edge table that are not read."""
        return (*unread_keys(NpzArchive(self._folder / NODES), with_edges=False), *self._edges.list_unread())


KNOWN = (
    f"an edge table ({FORMS}; or a folder of its parts), an .npz file, graph.yaml or graph.json, a file of "
    "dgl.save_graphs (.bin, .dgl), or a folder: with tables nodes.* and edges.*, with a table for each type "
    "(nodes/TYPE.csv, edges/SRC__RELATION__DST.csv), of triples (train, valid and test), with an edge table named "
    f"edges and {NODES}, of Planetoid files (ind.NAME.*), of an OGB data set (raw/, split/), or of GraphBolt "
    f"({METADATA})"
)
_EDGE_OPTIONS = ("num_nodes", "relabel", "columns", "edge_features", "time_column")


def detect_reader(path: Path, options: TableOptions | None = None) -> GraphSource:
    """Return the reader of a file or folder, chosen by its name.

    Args:
        path: The file or folder.
        options: What tables need to be told; None for the defaults.

    Raises:
        InputError: The path does not exist, its format is unknown, or an option does not apply to its format.
    """
    options = options or TableOptions()
    source = _detect_form(Path(path), options.without_build_options())
    options.apply_build_options(source)
    return source


def _detect_form(path: Path, options: TableOptions) -> GraphSource:
    if not path.exists():
        raise InputError(f"{path} does not exist", needed=KNOWN, got="nothing at that path", repair="correct the path")
    if not (path.is_file() or path.is_dir()):
        raise InputError(
            f"{path} is neither a file nor a folder", needed=KNOWN, got="a device or a pipe", repair="correct the path"
        )
    # By names alone: no file is opened before the reader is known.
    source = find_typed_source(path, options) or _find_tables(path, options) or _find_arrays(path, options)
    if source is None:
        got = (
            f"a folder with {', '.join(_first_file_names(path))}"
            if path.is_dir()
            else f"a file that ends in {path.suffix!r}"
        )
        raise InputError(f"{path} is of no known form", needed=KNOWN, got=got, repair="convert or rename it")
    return source


def _find_tables(path: Path, options: TableOptions) -> GraphSource | None:
    if path.is_dir() and (triples := find_triple_files(path) or find_numbered_files(path)):
        options.refuse_all_but(("columns",), str(path))
        return TriplesSource(path, triples, options)
    if path.is_dir() and (pair := find_table_pair(path)):
        options.refuse_all_but(TABLE_GRAPH_OPTIONS, str(path))
        return TableGraphSource(path, *pair, options)
    if is_table(path):
        options.refuse_all_but(_EDGE_OPTIONS, str(path))
        return EdgeTableSource(path, options)
    return None


def _find_arrays(path: Path, options: TableOptions) -> GraphSource | None:
    """Return the reader of arrays: files of NumPy and DGL, folders of data sets or beside a table of edges."""
    tables = [file for file in sorted(path.glob("edges.*")) if is_table(file)] if (path / NODES).is_file() else []
    if len(tables) == 1:
        options.refuse_all_but(("columns", "edge_features", "relabel", *SPLIT_OPTIONS), str(path))
        return apply_split_options(FolderSource(path, EdgeTableSource(tables[0], options)), options)
    options.refuse_all_but(SPLIT_OPTIONS, str(path))
    graphs = sorted(path.glob("ind.*.graph"))
    source: GraphSource | None = None
    if path.suffix == ".npz":
        source = NpzSource(path)
    elif path.suffix in DGL_SUFFIXES:
        source = read_dgl_file(path)
    elif (path / METADATA).is_file():
        source = read_on_disk_dataset(path)
    elif len(graphs) == 1:
        source = PlanetoidSource(path, graphs[0].name.split(".")[1])
    elif (path / "raw").is_dir():
        source = OgbSource(path)
    return None if source is None else apply_split_options(source, options)


def _first_file_names(path: Path) -> list[str]:
    return sorted(file.name for file in path.iterdir())[:8] or ["nothing"]
