"""Reader of the ACM graph of HeCo (Wang et al., KDD 2021): papers, their authors and their subjects.

Files: ``p_feat.npz`` and ``a_feat.npz`` (SciPy sparse matrices), ``pa.txt`` and ``ps.txt`` (pairs of ids),
``labels.npy`` of the papers, ``train_60.npy``, ``val_60.npy``, ``test_60.npy``. Nothing is ever unpickled.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from outgrow.core.files import os_errors_as_input_errors
from outgrow.graph.graph import GraphOrigin, NodeType
from outgrow.graph.readers.matrices import block_diagonal_features, csr_from_arrays, type_widths
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

_TYPES = ("paper", "author", "subject")
_LINKS = (("pa.txt", 1), ("ps.txt", 2))


class HecoSource(GraphSource):
    """Source of the ACM graph in a folder. Final.

    Edges go from papers to authors and to subjects. Subjects have no features: see
    `outgrow.graph.readers.matrices`.

    Args:
        folder: Folder with the files.
        name: Name of the graph.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = name

    @property
    def name(self) -> str:
        """Name as given."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Return features of papers and authors, classes of papers, and the split of 60 per class.

        Raises:
            InputError: A file is broken.
        """
        papers = self._read_matrix("p_feat.npz")
        authors = self._read_matrix("a_feat.npz")
        counts = self._count_by_type(papers.shape[0], authors.shape[0])
        parts = (papers, authors, None)
        ends = np.cumsum([0, *counts]).tolist()
        labels = np.full(ends[-1], -1, dtype=np.int64)
        known = self._read_array("labels.npy")
        labels[: len(known)] = known
        train, val, test = (self._read_array(f"{part}_60.npy").astype(np.int64) for part in ("train", "val", "test"))
        return NodeTableSource(
            features=block_diagonal_features(counts, parts),
            labels=labels,
            train=train,
            val=val,
            test=test,
            relation_names=("written by", "about"),
            node_types=tuple(
                NodeType(name=name, first=first, last=last, num_columns=width)
                for name, first, last, width in zip(_TYPES, ends, ends[1:], type_widths(parts), strict=False)
            ),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield edges from papers to authors, then to subjects."""
        # The files number each type from 0; authors follow papers, and subjects authors.
        first = {1: self._read_matrix("p_feat.npz").shape[0]}
        first[2] = first[1] + self._read_matrix("a_feat.npz").shape[0]
        for relation, (file, kind) in enumerate(_LINKS):
            paper, other = self._read_pairs(file).T
            relations = np.full(len(paper), relation, dtype=np.int8)
            yield EdgeChunk(src=paper, dst=other + first[kind], relation=relations)

    def describe_origin(self) -> GraphOrigin:
        """Return the files that are read."""
        read = {
            "edges": ", ".join(file for file, _ in _LINKS),
            "features": "p_feat.npz, a_feat.npz; none for subjects",
            "labels": "labels.npy",
            "split": "train_60.npy, val_60.npy, test_60.npy",
        }
        return GraphOrigin(read=tuple(read.items()))

    def _count_by_type(self, papers: int, authors: int) -> tuple[int, int, int]:
        return papers, authors, int(self._read_pairs("ps.txt")[:, 1].max()) + 1

    def _read_pairs(self, file: str) -> NDArray[np.int64]:
        with self._refuse_format(file, "lines of two ids", ValueError):
            return np.loadtxt(self._folder / file, dtype=np.int64, ndmin=2).reshape(-1, 2)

    def _read_matrix(self, file: str) -> csr_array:
        refused = self._refuse_format(file, "a sparse matrix as SciPy saves it", ValueError, KeyError)
        with refused, np.load(self._folder / file, allow_pickle=False) as parts:
            shape = tuple(parts["shape"].reshape(-1).tolist())
            if "indptr" in parts:
                return csr_from_arrays(parts["data"], parts["indices"], parts["indptr"], shape)
            return csr_array(coo_array((parts["data"], (parts["row"], parts["col"])), shape=shape))

    def _read_array(self, file: str) -> NDArray[Any]:
        with self._refuse_format(file, "an array", ValueError):
            found: NDArray[Any] = np.load(self._folder / file, allow_pickle=False)
            return found

    def _refuse_format(self, file: str, needed: str, *also: type[Exception]) -> AbstractContextManager[None]:
        return os_errors_as_input_errors(
            f"{self._folder / file} cannot be read", needed=needed, repair="get the file again", also=also
        )
