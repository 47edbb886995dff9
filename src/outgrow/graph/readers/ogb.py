"""Node- and link-property data sets of the Open Graph Benchmark, as they lie on disk (Hu et al., NeurIPS 2020)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.readers.conversions import to_labels
from outgrow.graph.readers.given_links import LinkFiles, is_link_split, read_link_files
from outgrow.graph.readers.npz import iter_array_edges
from outgrow.graph.readers.npz_archive import NpzArchive
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.numbers import read_numbers

_TABLES = ("num-node-list", "num-edge-list", "edge", "node-feat", "node-label")
# The number of edges is known from the edges themselves.
_EDGE_FEATURES = "edge-feat.csv.gz"
_READ = {"data.npz", "node-label.npz", _EDGE_FEATURES, *(f"{name}.csv.gz" for name in _TABLES)}


@final
class OgbSource(GraphSource):
    """Source of an unpacked data set of a single node type.

    Edges, features and labels are in ``raw/`` (``edge.csv.gz``, ``num-node-list.csv.gz``,
    ``node-feat.csv.gz``, ``node-label.csv.gz``; of the largest data set ``data.npz`` and ``node-label.npz``),
    the split in ``split/NAME/{train,valid,test}.csv.gz``, or of links in ``.pt`` files; relations of the edges of
    such a data set in ``edge_reltype.csv.gz``, features of edges in ``edge-feat.csv.gz`` or ``data.npz``. Edges are
    taken as they are; other files of ``raw/`` are not read, with a warning. Labels that are missing become -1.

    Args:
        folder: The unpacked data set, such as ``ogbn_arxiv``.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = Path(folder)
        self._raw = self._folder / "raw"
        if (self._raw / "relations").exists():
            raise InputError(
                f"{folder} has several types of nodes",
                needed="a data set of one node type",
                got="raw/relations",
                repair="read it with PyG, and give its HeteroData to Outgrow",
            )

    @property
    def name(self) -> str:
        """Name of the folder, in the spelling of OGB."""
        return self._folder.name.replace("_", "-")

    def read_tables(self) -> NodeTableSource:
        """Return the features, labels and split that the data set has.

        Raises:
            InputError: A file is broken, or there is more than one split.
        """
        train, val, test = self._read_split() if self._link_folder is None else (None, None, None)
        return NodeTableSource(
            num_nodes=self._num_nodes(),
            features=self._read_features(),
            labels=self._read_labels(),
            train=train,
            val=val,
            test=test,
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges.

        Raises:
            InputError: A file is missing or broken.
        """
        if self._npz_archive is not None:
            archive = self._npz_archive
            features = archive.get("edge_feat")
            return iter_array_edges(archive["edge_index"], None, None, str(archive.path), features=features)
        edges = EdgeTableSource(self._raw / "edge.csv.gz").read_edges()
        if self._relation_file is not None:
            relation = read_numbers(self._relation_file, np.int64)[:, 0]
            edges = _with_column(edges, "relation", relation, self._relation_file)
        path = self._raw / _EDGE_FEATURES
        return _with_column(edges, "features", read_numbers(path, np.float32), path) if path.exists() else edges

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return the links to validate and to test on, if the data set is one of links."""
        return None if self._link_files is None else self._link_files.links

    def describe_origin(self) -> GraphOrigin:
        """Return the files that are read, and those of ``raw/`` that are not."""
        large = self._npz_archive is not None
        found = {
            "edges": "raw/data.npz, key edge_index" if large else "raw/edge.csv.gz",
            "edge features": "raw/data.npz, key edge_feat" if large else f"raw/{_EDGE_FEATURES}",
            "features": "raw/data.npz, key node_feat" if large else "raw/node-feat.csv.gz",
            "labels": "raw/node-label.npz" if (self._raw / "node-label.npz").exists() else "raw/node-label.csv.gz",
        }
        read = [(what, where) for what, where in found.items() if (self._folder / where.split(",")[0]).exists()]
        keys = {} if self._npz_archive is None else self._npz_archive.keys()
        for what, key in (("features", "node_feat"), ("edge features", "edge_feat")):
            if large and key not in keys:
                read.remove((what, found[what]))
        folders = sorted(path.name for path in (self._folder / "split").glob("*") if path.is_dir())
        read += [("split", f"split/{name}") for name in folders]
        return GraphOrigin(read=tuple(read), unread=self.list_unread())

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the files in ``raw/`` that are not read, and what else the files of links have."""
        read = _READ if self._relation_file is None else _READ | {self._relation_file.name}
        names = sorted(path.name for path in self._raw.iterdir() if path.name not in read)
        return (*names, *(() if self._link_files is None else self._link_files.unread))

    @cached_property
    def _link_folder(self) -> Path | None:
        folders = [path for path in (self._folder / "split").glob("*") if is_link_split(path)]
        # Of several the error is that of nodes.
        return folders[0] if len(folders) == 1 else None

    @cached_property
    def _link_files(self) -> LinkFiles | None:
        return None if self._link_folder is None else read_link_files(self._link_folder)

    @property
    def _relation_file(self) -> Path | None:
        path = self._raw / "edge_reltype.csv.gz"
        return path if self._link_folder is not None and path.exists() else None

    @cached_property
    def _npz_archive(self) -> NpzArchive | None:
        path = self._raw / "data.npz"
        return NpzArchive(path) if path.exists() else None

    def _num_nodes(self) -> int:
        if self._npz_archive is not None:
            counts = self._npz_archive["num_nodes_list"].reshape(-1)
        else:
            counts = read_numbers(self._raw / "num-node-list.csv.gz", np.int64).reshape(-1)
        if len(counts) != 1:
            raise InputError(
                f"{self._folder} is not one graph",
                needed="a data set for predicting properties of nodes or links",
                got=f"{len(counts)} graphs",
                repair="choose an ogbn or ogbl data set",
            )
        return int(counts[0])

    def _read_features(self) -> NDArray[Any] | None:
        if self._npz_archive is not None:
            return self._npz_archive.get("node_feat")
        path = self._raw / "node-feat.csv.gz"
        return read_numbers(path, np.float32) if path.exists() else None

    def _read_labels(self) -> NDArray[Any] | None:
        archive = self._raw / "node-label.npz"
        table = self._raw / "node-label.csv.gz"
        if archive.exists():
            labels = NpzArchive(archive)["node_label"]
        elif table.exists():
            labels = read_numbers(table, np.float32)
        else:
            return None
        # The format writes classes as floats, whose NaN are unknown: nothing to warn about.
        return to_labels(labels, named=False, where=f"the labels of {self._folder}")

    def _read_split(self) -> tuple[Ids | None, Ids | None, Ids | None]:
        folders = sorted(path for path in (self._folder / "split").glob("*") if path.is_dir())
        if not folders:
            return None, None, None
        if len(folders) > 1:
            raise InputError(
                f"{self._folder} has several splits",
                needed="one folder in split/",
                got=", ".join(path.name for path in folders),
                repair="move all but one of them away",
            )
        train, val, test = (
            np.array(read_numbers(folders[0] / f"{part}.csv.gz", np.int64)).reshape(-1)
            for part in ("train", "valid", "test")
        )
        return train, val, test


def _with_column(edges: Iterator[EdgeChunk], name: str, values: NDArray[Any], path: Path) -> Iterator[EdgeChunk]:
    """Yield edges with their relations or features, which are in a file of their own.

    Raises:
        InputError: The file has another number of rows.
    """
    first = 0
    for chunk in edges:
        part = np.array(values[first : first + len(chunk.src)])
        first += len(chunk.src)
        if len(part) == len(chunk.src):
            yield chunk._replace(**{name: part})
    if first != len(values):
        raise InputError(
            f"{path} does not fit the edges",
            needed=f"a row for each of {first:,} edges",
            got=f"{len(values):,} rows",
            repair="take the files from their publisher again",
        )
