"""Reader of the ``.npz`` files of Shchur et al.: Pitfalls of graph neural network evaluation, 2018.

Adjacency and attributes are CSR matrices under ``adj_*`` and ``attr_*``, classes are under ``labels``.
"""

from __future__ import annotations

import zipfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.matrices import csr_from_arrays
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource

_KEYS = ("adj_data", "adj_indices", "adj_indptr", "adj_shape", "labels")
_ATTRIBUTES = ("attr_data", "attr_indices", "attr_indptr", "attr_shape")


class GnnBenchmarkSource(GraphSource):
    """Source of one such file, with a fixed split of 60/20/20: the files have none.

    The split is that of ``numpy.random.default_rng(0).permutation(V)``, cut at 60 and 80 percent.

    Args:
        path: The file.
        name: Name of the graph.
    """

    def __init__(self, path: Path, name: str) -> None:
        self._path = path
        self._name = name

    @property
    def name(self) -> str:
        """Name as given."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Sparse features, labels and the split.

        Raises:
            InputError: The file is not of this form.
        """
        arrays = self._npz_arrays
        num_nodes = len(arrays["labels"])
        # A fixed seed: the split is part of the data set, not of a run.
        order = np.random.default_rng(0).permutation(num_nodes)
        train, val, test = np.split(order, [int(0.6 * num_nodes), int(0.8 * num_nodes)])
        return NodeTableSource(
            num_nodes=num_nodes,
            features=self._read_features(),
            labels=arrays["labels"].astype(np.int64),
            train=np.sort(train),
            val=np.sort(val),
            test=np.sort(test),
        )

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges at once: the files are small."""
        arrays = self._npz_arrays
        degrees = np.diff(arrays["adj_indptr"])
        src = np.repeat(np.arange(len(degrees), dtype=np.int64), degrees)
        yield EdgeChunk(src=src, dst=arrays["adj_indices"].astype(np.int64))

    def describe_origin(self) -> GraphOrigin:
        """Return the keys that are read."""
        dense = "attr_matrix" in self._npz_arrays
        read = [("edges", "keys adj_*"), ("labels", "key labels"), ("split", "drawn: 60/20/20 of seed 0")]
        if dense or all(key in self._npz_arrays for key in _ATTRIBUTES):
            read.insert(1, ("features", "key attr_matrix" if dense else "keys attr_*"))
        return GraphOrigin(read=tuple((what, f"{self._path.name}, {where}") for what, where in read))

    def _read_features(self) -> csr_array | NDArray[Any] | None:
        arrays = self._npz_arrays
        if all(key in arrays for key in _ATTRIBUTES):
            data, indices, indptr, shape = (arrays[key] for key in _ATTRIBUTES)
            try:
                return csr_from_arrays(data.astype(np.float32), indices, indptr, shape.reshape(-1).tolist())
            except ValueError as error:
                raise self._broken_file_error(f"attributes that are no matrix: {error}") from error
        return arrays.get("attr_matrix")

    @cached_property
    def _npz_arrays(self) -> dict[str, NDArray[Any]]:
        wanted = {*_KEYS, *_ATTRIBUTES, "attr_matrix"}
        try:
            with np.load(self._path) as file:
                arrays = {key: file[key] for key in file.files if key in wanted}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise self._broken_file_error(f"{type(error).__name__}: {error}") from error
        missing = [key for key in _KEYS if key not in arrays]
        if missing:
            raise self._broken_file_error(f"no {', '.join(missing)}")
        return arrays

    def _broken_file_error(self, got: str) -> InputError:
        return InputError(
            f"{self._path} cannot be read as a file of gnn-benchmark",
            needed=f"an .npz file with the keys {', '.join(_KEYS)}",
            got=got,
            repair="delete the file, so that it is downloaded again",
        )
