"""Citation graphs in the form of Planetoid (Yang, Cohen, Salakhutdinov: Revisiting semi-supervised learning, 2016).

Eight files ``ind.NAME.{x,y,tx,ty,allx,ally,graph,test.index}``, seven of them pickles of Python 2. They are read by an
unpickler that makes arrays, sparse matrices, lists and dictionaries, and refuses all else.
"""

from __future__ import annotations

import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from outgrow.core.errors import InputError
from outgrow.graph.ingest.source import EdgeChunk, Ids, Source, Tables

_NUM_VAL = 500


class PlanetoidSource(Source):
    """One such graph. Final.

    Test rows are put at the ids that ``test.index`` names. Nodes without a row (15 in citeseer) have no features and
    the label -1. Edges go both ways, once each; self-loops are dropped. The split is the published one: as many
    training nodes as ``y`` has rows, the next 500 to validate, and ``test.index`` to test. Features are not normalised.

    Args:
        folder: Where the files are.
        dataset: Their name, such as ``cora``.
    """

    def __init__(self, folder: Path, dataset: str) -> None:
        self._folder, self._dataset = Path(folder), dataset

    @property
    def name(self) -> str:
        """The name of the data set."""
        return self._dataset

    def tables(self) -> Tables:
        """Sparse features, labels and the published split.

        Raises:
            InputError: A file is missing, broken, or would run code.
        """
        allx, tx = self._matrix("allx"), self._matrix("tx")
        num_known, num_nodes = allx.shape[0], self._num_nodes
        rows = csr_array(vstack([allx, tx, csr_array((1, allx.shape[1]), dtype=allx.dtype)]))
        place = np.full(num_nodes, rows.shape[0] - 1)
        place[:num_known] = np.arange(num_known)
        place[self._test] = num_known + np.arange(len(self._test))
        labels = np.full(num_nodes, -1, dtype=np.int64)
        labels[:num_known] = self._labels("ally")
        labels[self._test] = self._labels("ty")
        num_train = len(self._labels("y"))
        return Tables(
            num_nodes=num_nodes,
            features=csr_array(rows[place]),
            labels=labels,
            train=np.arange(num_train),
            val=np.arange(num_train, num_train + _NUM_VAL),
            test=np.sort(self._test),
        )

    def edges(self) -> Iterator[EdgeChunk]:
        """All edges, both ways, in one chunk."""
        degrees = [len(others) for others in self._graph.values()]
        one = np.repeat(np.fromiter(self._graph, dtype=np.int64), degrees)
        other = np.fromiter((v for others in self._graph.values() for v in others), dtype=np.int64, count=sum(degrees))
        both = np.stack([np.concatenate([one, other]), np.concatenate([other, one])])
        src, dst = np.unique(both[:, both[0] != both[1]], axis=1)
        yield EdgeChunk(np.ascontiguousarray(src), np.ascontiguousarray(dst))

    @property
    def _num_nodes(self) -> int:
        return max(int(self._test.max()) + 1, self._matrix("allx").shape[0])

    @cached_property
    def _test(self) -> Ids:
        path = self._path("test.index")
        try:
            return np.array(path.read_text().split(), dtype=np.int64)
        except (OSError, ValueError) as error:
            raise _broken(path, f"{type(error).__name__}: {error}") from error

    @cached_property
    def _graph(self) -> dict[int, list[int]]:
        graph = self._load("graph")
        if not isinstance(graph, dict):
            raise _broken(self._path("graph"), f"an object of type {type(graph).__name__}")
        return graph

    def _matrix(self, part: str) -> csr_array:
        loaded = self._load(part)
        if not isinstance(loaded, _Csr):
            raise _broken(self._path(part), f"an object of type {type(loaded).__name__}")
        return loaded.array()

    def _labels(self, part: str) -> NDArray[np.int64]:
        loaded = self._load(part)
        if not isinstance(loaded, np.ndarray) or loaded.ndim != 2:
            raise _broken(self._path(part), f"an object of type {type(loaded).__name__}")
        return np.asarray(loaded.argmax(axis=1), dtype=np.int64)

    def _load(self, part: str) -> Any:
        if part not in self._loaded:
            path = self._path(part)
            try:
                with path.open("rb") as file:
                    self._loaded[part] = _Unpickler(file, encoding="latin1").load()
            except InputError:
                raise
            except Exception as error:  # a broken pickle can raise nearly anything
                raise _broken(path, f"{type(error).__name__}: {error}") from error
        return self._loaded[part]

    @cached_property
    def _loaded(self) -> dict[str, Any]:
        return {}

    def _path(self, part: str) -> Path:
        return self._folder / f"ind.{self._dataset}.{part}"


class _Csr:
    """The state of a SciPy matrix as it was pickled, in any version of SciPy."""

    def array(self) -> csr_array:
        state = vars(self)
        shape = state.get("_shape") or state["shape"]
        return csr_array((state["data"], state["indices"], state["indptr"]), shape=shape)


def _new(kind: type, base: type, state: None) -> _Csr:
    if (kind, base, state) != (_Csr, object, None):
        raise pickle.UnpicklingError("an object that is not a sparse matrix")
    return _Csr()


def _dtype(code: str, align: int, copy: int) -> np.dtype[Any]:
    return np.dtype(code, copy=True)


def _bytes(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into a pickle of Python 2."""
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"bytes as {encoding}")
    return text.encode("latin1")


# NumPy's own way to start an array; its name differs between versions.
_reconstruct: Callable[..., Any] = np.empty(0).__reduce__()[0]  # type: ignore[assignment]

_ALLOWED: dict[str, Any] = {
    "numpy.core.multiarray._reconstruct": _reconstruct,
    "numpy._core.multiarray._reconstruct": _reconstruct,
    "_codecs.encode": _bytes,
    "numpy.ndarray": np.ndarray,
    "numpy.dtype": _dtype,
    "scipy.sparse.csr.csr_matrix": _Csr,
    "scipy.sparse._csr.csr_matrix": _Csr,
    "copy_reg._reconstructor": _new,
    "copyreg._reconstructor": _new,
    "__builtin__.object": object,
    "builtins.object": object,
    "collections.defaultdict": defaultdict,
    "__builtin__.list": list,
    "builtins.list": list,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        full = f"{module}.{name}"
        if full not in _ALLOWED:
            raise InputError(
                "a pickle holds what no graph needs, and is not opened",
                needed="arrays, CSR matrices, lists and dictionaries",
                got=full,
                repair="do not trust this file; take it from its publisher",
            )
        return _ALLOWED[full]


def _broken(path: Path, got: str) -> InputError:
    return InputError(
        f"{path} cannot be read",
        needed="a file of the Planetoid form: CSR features, one-hot labels, a dictionary of neighbours, a list of ids",
        got=got,
        repair="take the file from its publisher again",
    )
