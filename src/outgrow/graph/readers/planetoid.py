"""Citation graphs in the format of Planetoid (Yang, Cohen, Salakhutdinov, ICML 2016).

Eight files ``ind.NAME.{x,y,tx,ty,allx,ally,graph,test.index}``, seven of them pickles of Python 2. They are
read without trust (``safe_pickle.py``): only arrays, sparse matrices, lists and dictionaries are made of
them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import check_node_count
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.safe_pickle import load_plain_pickle
from outgrow.graph.readers.source import EdgeChunk, GraphSource, Ids, NodeTableSource

T = TypeVar("T")
_NUM_VAL = 500


class PlanetoidSource(GraphSource):
    """Source of one such graph. Final.

    Test rows are put at the ids that ``test.index`` names. Nodes without a row (15 in citeseer) have no
    features and the label -1. Edges go both ways, once each; self-loops are dropped. The split is the
    published one: as many training nodes as ``y`` has rows, the next 500 to validate, and ``test.index`` to
    test. Features are not normalised.

    Args:
        folder: Folder with the files.
        dataset: Their name, such as ``cora``.
    """

    def __init__(self, folder: Path, dataset: str) -> None:
        self._folder = Path(folder)
        self._dataset = dataset

    @property
    def name(self) -> str:
        """Name of the data set."""
        return self._dataset

    def read_tables(self) -> NodeTableSource:
        """Return sparse features, labels and the published split.

        Raises:
            InputError: A file is missing, broken, or would run code.
        """
        allx = self._read_matrix("allx")
        tx = self._read_matrix("tx")
        num_known = allx.shape[0]
        num_nodes = self._num_nodes
        self._require_shape("tx", list(tx.shape), [len(self._test_ids), allx.shape[1]])
        ally = self._read_labels("ally")
        ty = self._read_labels("ty")
        num_train = len(self._read_labels("y"))
        self._require_shape("ally", [len(ally)], [num_known])
        self._require_shape("ty", [len(ty)], [len(self._test_ids)])
        # One empty row at the end, for the nodes that the files leave out.
        rows = csr_array(vstack([allx, tx, csr_array((1, allx.shape[1]), dtype=allx.dtype)]))
        place = np.full(num_nodes, rows.shape[0] - 1)
        place[:num_known] = np.arange(num_known)
        place[self._test_ids] = num_known + np.arange(len(self._test_ids))
        labels = np.full(num_nodes, -1, dtype=np.int64)
        labels[:num_known] = ally
        labels[self._test_ids] = ty
        return NodeTableSource(
            num_nodes=num_nodes,
            features=csr_array(rows[place]),
            labels=labels,
            train=np.arange(num_train),
            val=np.arange(num_train, num_train + _NUM_VAL),
            test=np.sort(self._test_ids),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, in both directions, in one chunk."""
        one, other = self._read_part("graph", self._read_pairs)
        both = np.stack([np.concatenate([one, other]), np.concatenate([other, one])])
        # The dictionary lists some edges more than once, and in one direction or in both.
        src, dst = np.unique(both[:, both[0] != both[1]], axis=1)
        yield EdgeChunk(np.ascontiguousarray(src), np.ascontiguousarray(dst))

    def describe_origin(self) -> GraphOrigin:
        """Return the files that each array is made of."""
        parts = {"edges": "graph", "features": "allx and tx", "labels": "ally and ty", "split": "y and test.index"}
        read = tuple((what, f"ind.{self._dataset}, parts {names}") for what, names in parts.items())
        return GraphOrigin(read=read, unread=self.list_unread())

    @cached_property
    def _num_nodes(self) -> int:
        num_known = self._read_matrix("allx").shape[0]
        num_nodes = max(int(self._test_ids.max(initial=-1)) + 1, num_known)
        check_node_count(num_nodes, num_known + len(self._test_ids), str(self._part_path("test.index")))
        return num_nodes

    @cached_property
    def _test_ids(self) -> Ids:
        return self._read_part("test.index", self._read_test_ids)

    def _read_test_ids(self) -> Ids:
        path = self._part_path("test.index")
        if not path.is_file():
            raise FileNotFoundError("there is no such file")
        ids = np.array(path.read_text(encoding="ascii").split(), dtype=np.int64)
        if ids.min(initial=0) < 0:
            raise ValueError(f"node {ids.min()}")
        return ids

    def _read_pairs(self) -> tuple[Ids, Ids]:
        """Return both ends of each edge of the file."""
        graph = load_plain_pickle(self._part_path("graph"))
        room = self._part_path("graph").stat().st_size
        if not isinstance(graph, dict) or not all(isinstance(others, list) for others in graph.values()):
            raise TypeError("an object that is no dictionary of lists")
        degrees = [len(others) for others in graph.values()]
        # A pickle can name one list many times, and so claim far more edges than its bytes could hold.
        if sum(degrees) > room:
            raise ValueError(f"{sum(degrees):,} neighbours in {room:,} bytes: lists that are one and the same")
        one = np.repeat(_as_integers(list(graph)), degrees)
        return one, _as_integers([v for others in graph.values() for v in others])

    def _read_matrix(self, part: str) -> csr_array:
        return self._read_part(part, lambda: _as_matrix(load_plain_pickle(self._part_path(part))))

    def _read_labels(self, part: str) -> NDArray[np.int64]:
        return self._read_part(part, lambda: _as_labels(load_plain_pickle(self._part_path(part))))

    def _require_shape(self, part: str, got: list[int], needed: list[int]) -> None:
        if got != needed:
            raise _broken_file_error(self._part_path(part), f"rows and columns {got} instead of {needed}")

    def _read_part(self, part: str, read: Callable[[], T]) -> T:
        """Return the content of a part; all errors are reported in one way."""
        if part not in self._part_cache:
            try:
                self._part_cache[part] = read()
            except InputError:
                raise
            # A broken pickle can raise nearly anything.
            except Exception as error:
                raise _broken_file_error(
                    self._part_path(part), f"{type(error).__name__}: {str(error)[:200]}"
                ) from error
        held: T = self._part_cache[part]
        return held

    @cached_property
    def _part_cache(self) -> dict[str, Any]:
        return {}

    def _part_path(self, part: str) -> Path:
        return self._folder / f"ind.{self._dataset}.{part}"


def _as_matrix(loaded: object) -> csr_array:
    if not isinstance(loaded, csr_array):
        raise TypeError(f"an object of type {type(loaded).__name__}")
    return loaded


def _as_labels(loaded: object) -> NDArray[np.int64]:
    if not isinstance(loaded, np.ndarray) or loaded.ndim != 2 or loaded.shape[1] == 0:
        raise TypeError(f"an object of type {type(loaded).__name__}")
    return np.asarray(loaded.argmax(axis=1), dtype=np.int64)


def _as_integers(values: list[object]) -> Ids:
    # Not `isinstance`, for which True and False are integers.
    if not all(type(value) is int for value in values):
        raise TypeError("nodes that are no integers")
    return np.array(values, dtype=np.int64)


def _broken_file_error(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} cannot be read",
        needed="a file of the Planetoid form: CSR features, one-hot labels, a dictionary of neighbours, a list of ids",
        got=got,
        repair="take the file from its publisher again",
    )
