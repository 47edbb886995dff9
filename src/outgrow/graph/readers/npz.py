"""Graphs in one ``.npz`` file.

Keys: ``edge_index`` (``[2, E]``, sources then destinations), ``edge_type``, ``edge_weight``; ``edge_features`` or
``edge_attr`` (``[E, De]`` or ``[E]``, floating or integer codes), ``edge_feature_sizes``; ``num_nodes``;
``label``; ``features`` (dense) or ``feat_data``, ``feat_indices``, ``feat_indptr``, ``feat_shape`` (CSR; a
``feat_data`` of length 1 stands for that value everywhere); ``train_idx``, ``val_idx``, ``test_idx``;
``class_names``, ``rel_names``. All but ``edge_index`` are optional; others are not read, with a warning. Nothing
is ever unpickled.

As the heterophilous benchmark of Platonov et al. (ICLR 2023) has it: ``edges`` (``[E, 2]``), ``node_features``,
``node_labels``; ``train_masks``, ``val_masks``, ``test_masks`` (``[K, V]`` or ``[V, K]``: several splits).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from outgrow.core.errors import InputError
from outgrow.graph.builders.edge_checks import check_node_count
from outgrow.graph.builders.edge_features import require_edge_feature_form
from outgrow.graph.graph import GraphOrigin
from outgrow.graph.readers.conversions import as_feature_columns, to_feature_sizes, to_weights
from outgrow.graph.readers.matrices import csr_from_arrays
from outgrow.graph.readers.npz_archive import NpzArchive
from outgrow.graph.readers.npz_origin import describe_keys
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.split_source import with_mask_tables
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.times import validate_times

CHUNK_EDGES = 1 << 18
_SPARSE = ("feat_data", "feat_indices", "feat_indptr", "feat_shape")
_TABLES = ("num_nodes", "features", "label", "train_idx", "val_idx", "test_idx", "class_names", "rel_names")
_EDGES = ("edge_index", "edge_type", "edge_weight", "edge_features", "edge_feature_sizes")
_SYNONYMS = {
    "edge_index": ("edges",),
    "edge_features": ("edge_attr",),
    "features": ("node_features",),
    "label": ("node_labels", "labels"),
}
_SYNONYMS |= {f"{part}_idx": (f"{part}_mask", f"{part}_masks") for part in ("train", "val", "test")}
Arrays = NpzArchive | Mapping[str, NDArray[Any]]


class NpzSource(GraphSource):
    """Source of one such file. Final.

    Large arrays are mapped, not read: straight from the file where it is not compressed, else from a
    temporary file.

    Args:
        path: The file.
        name: Name of the graph; the name of the file by default.
        annotations: Keys of texts about the graph, such as names of its nodes: passed over without a warning.
    """

    def __init__(self, path: Path, name: str | None = None, *, annotations: Collection[str] = ()) -> None:
        self._name = name or Path(path).stem
        self._annotations = frozenset(annotations)
        self._archive = NpzArchive(Path(path))

    @property
    def name(self) -> str:
        """Name as given, or that of the file."""
        return self._name

    def read_tables(self) -> NodeTableSource:
        """Return the features, labels, split and names that the file has.

        Raises:
            InputError: The file is broken, or keys do not fit one another.
        """
        tables = parse_node_tables(self._archive, str(self._archive.path))
        # Nothing in the file is as long as the claimed number of nodes, which could be any.
        if tables.num_nodes is not None and tables.features is None and tables.labels is None:
            check_node_count(tables.num_nodes, _find_edge_index(self._archive).size, str(self._archive.path))
        return replace(tables, edge_feature_sizes=to_feature_sizes(self._archive.get("edge_feature_sizes")))

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges.

        Raises:
            InputError: No ``edge_index``, or one of the wrong form.
        """
        return iter_array_edges(
            _find_edge_index(self._archive),
            self._archive.get("edge_type"),
            self._archive.get("edge_weight"),
            str(self._archive.path),
            features=as_feature_columns(_find_array(self._archive, "edge_features")),
        )

    def describe_origin(self) -> GraphOrigin:
        """Return the keys that are read, and those that are not."""
        unread = unread_keys(self._archive, with_edges=True)
        read = describe_keys(self._archive.keys(), unread, self._archive.path.name)
        return GraphOrigin(read=read, unread=self.list_unread())

    def list_unread(self) -> tuple[str, ...]:
        """Return the keys that are not read and are no annotations."""
        return tuple(key for key in unread_keys(self._archive, with_edges=True) if key not in self._annotations)


def unread_keys(archive: NpzArchive, *, with_edges: bool) -> tuple[str, ...]:
    """Return the keys of a file that are not read.

    Args:
        archive: The file.
        with_edges: Whether its edges are read.
    """
    keys = archive.keys()
    # Dense features are passed over where there are sparse ones.
    dense = _TABLES if "feat_indptr" not in keys else (*(key for key in _TABLES if key != "features"), *_SPARSE)
    read = {_find_key(key, keys) for key in (*dense, *(_EDGES if with_edges else ()))}
    return tuple(shorten_name(key) for key in keys if key not in read)


def iter_array_edges(
    edge_index: NDArray[Any],
    relation: NDArray[Any] | None,
    weight: NDArray[Any] | None,
    where: str,
    *,
    features: NDArray[Any] | None = None,
    time: NDArray[np.int64] | None = None,
) -> Iterator[EdgeChunk]:
    """Yield edges in arrays, in chunks.

    Args:
        edge_index: ``[2, E]`` integer.
        relation: ``[E]`` integer, or None.
        weight: ``[E]`` real, or None.
        where: Name of the arrays in errors.
        features: ``[E, De]`` floating or integer codes, or None; chunks have views of it.
        time: ``[E]`` int64, or None.

    Raises:
        InputError: Arrays of the wrong form.
    """
    if edge_index.ndim != 2 or edge_index.shape[0] != 2 or edge_index.dtype.kind not in "iu":
        raise _edge_arrays_error(where, "edge_index of integers and shape [2, E]", edge_index)
    num_edges = edge_index.shape[1]
    if relation is not None and (relation.shape != (num_edges,) or relation.dtype.kind not in "iu"):
        raise _edge_arrays_error(where, f"edge types that are integers of shape [{num_edges}]", relation)
    if weight is not None and (weight.shape != (num_edges,) or weight.dtype.kind not in "fiub"):
        raise _edge_arrays_error(where, f"edge weights that are numbers of shape [{num_edges}]", weight)
    if features is not None:
        require_edge_feature_form(features, num_edges, f"features of edges of {where}")
    if time is not None:
        validate_times(time, num_edges, "edge")
    for first in range(0, num_edges, CHUNK_EDGES):
        part = slice(first, first + CHUNK_EDGES)
        yield EdgeChunk(
            # Copies of a slice: a view would keep the mapping, and torch needs writable arrays.
            src=np.array(edge_index[0, part], dtype=np.int64),
            dst=np.array(edge_index[1, part], dtype=np.int64),
            relation=None if relation is None else np.array(relation[part]),
            weight=None if weight is None else np.array(to_weights(weight[part], f"edge_weight of {where}")),
            features=None if features is None else features[part],
            time=None if time is None else time[part],
        )


def parse_node_tables(arrays: Arrays, where: str = "the arrays") -> NodeTableSource:
    """Return the tables under the keys that the module docstring lists.

    Args:
        arrays: Arrays by key.
        where: Their name in errors.

    Raises:
        InputError: A key is missing, or has the wrong form.
    """
    tables = NodeTableSource(
        num_nodes=_parse_count(arrays.get("num_nodes")),
        features=_parse_features(arrays),
        labels=_find_array(arrays, "label"),
        class_names=_parse_names(arrays.get("class_names")),
        relation_names=_parse_names(arrays.get("rel_names")),
    )
    masks = {part: _find_array(arrays, f"{part}_idx") for part in ("train", "val", "test")}
    return with_mask_tables(tables, masks, where)


def _find_key(key: str, keys: Collection[str]) -> str:
    """Return the key, or the first of its synonyms if there is one and not itself."""
    return next((name for name in (key, *_SYNONYMS.get(key, ())) if name in keys), key)


def _find_array(arrays: Arrays, key: str) -> NDArray[Any] | None:
    return arrays.get(_find_key(key, arrays.keys()))


def _find_edge_index(archive: NpzArchive) -> NDArray[Any]:
    key = _find_key("edge_index", archive.keys())
    edges = archive[key]
    # Pairs of nodes below each other, which a mapped file may hold: a view.
    return edges.T if key == "edges" and edges.ndim == 2 and edges.shape[1] == 2 else edges


def _parse_features(arrays: Arrays) -> NDArray[Any] | csr_array | None:
    if arrays.get("feat_indptr") is None:
        return _find_array(arrays, "features")
    data, indices, indptr, shape = (arrays[key] for key in _SPARSE)
    try:
        if shape.ndim != 1 or shape.dtype.kind not in "iu":
            raise ValueError(f"a shape of {shape.dtype} and shape {list(shape.shape)}")
        if data.shape == (1,) and indices.ndim == 1:
            # A view of one value: no memory until something copies it.
            data = np.broadcast_to(data, len(indices))
        return csr_from_arrays(data, indices, indptr, shape.tolist())
    except ValueError as error:
        raise InputError(
            "sparse features cannot be read",
            needed="feat_data, feat_indices, feat_indptr and feat_shape of one CSR matrix",
            got=str(error),
            repair="write them again from a SciPy CSR matrix",
        ) from error


def _parse_count(given: NDArray[Any] | None) -> int | None:
    if given is None:
        return None
    if given.size != 1 or given.dtype.kind not in "iu":
        raise InputError(
            "num_nodes cannot be read",
            needed="one integer",
            got=f"{given.dtype} of shape {list(given.shape)}",
            repair="write the number of nodes again, or leave it out",
        )
    return int(given.reshape(())[()])


def _parse_names(names: NDArray[Any] | None) -> tuple[str, ...]:
    try:
        made = () if names is None else tuple(str(name) for name in names.reshape(-1))
        # NumPy's text may hold code points beyond Unicode or lone surrogates, which fail only when written.
        "".join(made).encode("utf-8").decode("utf-8")
    except (ValueError, SystemError) as error:
        raise InputError(
            "names of classes or relations cannot be read",
            needed="text",
            got=str(error),
            repair="write the names again",
        ) from error
    return made


def _edge_arrays_error(where: str, needed: str, got: NDArray[Any]) -> InputError:
    return InputError(
        f"edges of {where} have the wrong form",
        needed=needed,
        got=f"{got.dtype} of shape {list(got.shape)}",
        repair="write the arrays again, sources in the first row of edge_index and destinations in the second",
    )
