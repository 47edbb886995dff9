"""Reader of PyG graphs: ``Data`` and ``HeteroData``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from functools import cached_property
from typing import Any, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.readers.conversions import as_feature_columns
from outgrow.graph.readers.given_links import ObjectLinks, find_object_links
from outgrow.graph.readers.node_parts import NodePart, part_error
from outgrow.graph.readers.splits import PARTS
from outgrow.graph.readers.tensors import SparseEdges, is_sparse, sparse_edges, to_matrix, to_numpy
from outgrow.graph.readers.times import to_times
from outgrow.graph.readers.typed_parts import EdgePart, TypedPartsSource, name_relation

_MASKS = tuple(f"{part}_mask" for part in PARTS)
_INDICES = tuple(f"{part}_idx" for part in PARTS)
_LABELS = tuple(f"{part}_y" for part in PARTS)
_NODE_ATTRIBUTES = {"x", "y", "y_index", "num_nodes", *_MASKS, *_INDICES, *_LABELS}
_EDGE_ATTRIBUTES = {"edge_index", "edge_weight", "edge_attr"}


class _EdgeArrays(NamedTuple):
    edge_index: NDArray[Any]
    weight: NDArray[Any] | None
    features: NDArray[Any] | None
    time: NDArray[np.int64] | None = None


@final
class PygSource(TypedPartsSource):
    """A source of a ``Data`` or ``HeteroData`` object. Final.

    Reads ``x``, ``y``, ``edge_index`` or ``adj_t``, ``edge_type``, ``edge_weight``, ``edge_attr``, ``time`` (of
    nodes, or of edges), ``edge_time`` and the three masks, or ``train_idx``, ``val_idx`` and ``test_idx``. Labels may
    be of some nodes only (``y`` with ``y_index``, or ``train_y`` and others with ``train_idx``). ``x``, ``adj_t``
    and, if it tells the direction of the edges, ``edge_index`` may be sparse tensors of any layout or
    ``SparseTensor``; values of the latter two are weights, unless all are 1. An ``edge_attr`` of rows is the features
    of edges, also if a row has one column; of one number for each edge, ``[E]``, it is their weights, with a warning,
    unless there is an ``edge_weight``. Numbers in bfloat16 become float32. Links to validate and to test on are read
    where all parts of a split are in one object (see `outgrow.graph.readers.given_links.find_object_links`), whose
    training links are the edges if there are no others.

    Types of nodes follow one another in the order of ``node_types``, after them those that only edges name; each
    edge type is a relation. Where nothing else tells the number of nodes of a type, the largest id in the edges
    does, with a warning. How features and labels of several types are joined is said in
    `outgrow.graph.readers.node_parts.join_node_parts`.

    Args:
        data: The data object.
        name: Name of the graph.

    Raises:
        InputError: An object that holds another kind of graph.
    """

    def __init__(self, data: Any, name: str = "pyg") -> None:
        from torch_geometric.data import HeteroData  # type: ignore[import-untyped]

        if getattr(data, "edge_attrs", None) is None and not isinstance(data, HeteroData):
            raise InputError(
                f"cannot read a graph from {type(data).__name__}",
                needed="a Data or HeteroData of PyG",
                got=f"{type(data).__module__}.{type(data).__qualname__}",
                repair="make a Data of its edges; times of edges are not read",
            )
        self._hetero = isinstance(data, HeteroData)
        self._data = data
        self._name = name

    @property
    def name(self) -> str:
        """Name as given: data objects have none."""
        return self._name

    def read_node_parts(self) -> list[NodePart]:
        """Return the attributes of the nodes of each type.

        Raises:
            InputError: Attributes of the wrong form.
        """
        if not self._hetero:
            return [_node_part(self._data, "")]
        return [_node_part(self._data[name], name) for name in self._data.node_types]

    def read_edge_parts(self) -> Iterator[EdgePart]:
        """Yield the edges of each type.

        Raises:
            InputError: Attributes of the wrong form.
        """
        if not self._hetero:
            edges, kind = self._edge_names
            relations = to_numpy(self._data.get(kind), kind)
            times = _find_edge_times(self._data, _find_node_times(self._data))
            found = _read_edges(self._data, "", (self._num_nodes("") or -1,) * 2, edges, times)
            yield EdgePart(relations=relations, **found._asdict())
            return
        for link in self._data.edge_types:
            ends = (self._num_nodes(link[0]) or -1, self._num_nodes(link[2]) or -1)
            store = self._data[link]
            found = _read_edges(store, f" of edges {' '.join(link)}", ends, times=_find_edge_times(store))
            yield EdgePart(relation=link, **found._asdict())

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the attributes that are not read."""
        if not self._hetero:
            read = _NODE_ATTRIBUTES | _read_edge_attributes(self._data) | {"edge_type", *self._edge_names}
            times = _find_node_times(self._data)
            read |= {str(times), str(_find_edge_times(self._data, times))}
            return tuple(_unread_names(self._data, read | {*(self._links_given.names if self._links_given else ())}))
        parts = [(name, self._data[name], _NODE_ATTRIBUTES) for name in self._data.node_types]
        parts = [(name, store, read | {str(_find_node_times(store))}) for name, store, read in parts]
        for link in self._data.edge_types:
            store = self._data[link]
            read = _read_edge_attributes(store) | {str(_find_edge_times(store))}
            parts.append((name_relation(link), store, read))
        names = [f"{part}.{name}" for part, store, read in parts for name in _unread_names(store, read)]
        return (*names, *self._data._global_store.keys())

    def warn_of_unread(self) -> None:
        """Warn of what is not read, and of what has a name that does not say how it is read."""
        super().warn_of_unread()
        stores = [self._data[link] for link in self._data.edge_types] if self._hetero else [self._data]
        if any(_edge_values(store, "")[1] is None and "edge_attr" in store for store in stores):
            warn_about_data(
                "edge_attr has one number for each edge, which is read as its weight; name it edge_weight, or give it "
                "one column ([E, 1]) if it is a feature"
            )

    def read_held_out_links(self) -> HeldOutLinks | None:
        """Return the links to validate and to test on, if all parts of a split are there."""
        return None if self._links_given is None else self._links_given.held_out

    @cached_property
    def _links_given(self) -> ObjectLinks | None:
        if self._hetero:
            return None
        names = [
            name
            for name in map(str, self._data.keys())
            if name.startswith(("train_", "val_", "valid_", "test_")) and name.endswith(("_edge_index", "_edge_type"))
        ]
        return find_object_links({name: to_numpy(self._data[name], name) for name in names})

    @property
    def _edge_names(self) -> tuple[str, str]:
        has_edges = self._data.get("edge_index") is not None or self._data.get("adj_t") is not None
        return ("edge_index", "edge_type") if has_edges or self._links_given is None else self._links_given.train

    def _num_nodes(self, kind: str) -> int | None:
        if self._hetero and kind not in self._data.node_types:
            return None
        return _node_count(self._data[kind] if self._hetero else self._data)


def _node_part(store: Any, name: str) -> NodePart:
    of = f" of {name}" if name else ""
    count = _node_count(store)
    labels = to_numpy(store.get("y"), f"y{of}")
    index = to_numpy(store.get("y_index"), f"y_index{of}")
    if index is not None and labels is not None:
        labels = _spread_labels([index], [labels], count, f"y{of}")
    given = [(f"{part}_idx", f"{part}_y") for part in PARTS]
    known = [(to_numpy(store.get(at), at), to_numpy(store.get(y), y)) for at, y in given]
    pairs = [(at, y) for at, y in known if at is not None and y is not None]
    if labels is None and pairs:
        labels = _spread_labels([at for at, _ in pairs], [y for _, y in pairs], count, f"train_y{of}")
    train, val, test = (
        to_numpy(store.get(mask if mask in store else f"{part}_idx"), mask + of)
        for mask, part in zip(_MASKS, PARTS, strict=True)
    )
    return NodePart(
        name=name,
        count=count,
        features=to_matrix(store.get("x"), f"x{of}"),
        labels=labels,
        split=(train, val, test),
        time=_read_times(store, _find_node_times(store), of),
    )


def _find_node_times(store: Any) -> str | None:
    """Return the name of the attribute with the times of the nodes of a store; None if there is none."""
    return next((name for name in ("node_time", "time") if _has_rows(store, name, _node_count(store))), None)


def _find_edge_times(store: Any, taken: str | None = None) -> str | None:
    """Return the name of the attribute with the times of the edges of a store; None if there is none.

    Args:
        store: The edges.
        taken: Attribute with the times of nodes: of a graph of one type, ``time`` may be of either.
    """
    index = store.get("edge_index")
    count = None if index is None or is_sparse(index) or index.ndim != 2 else index.shape[1]
    names = [name for name in ("edge_time", "time") if name != taken]
    return next((name for name in names if _has_rows(store, name, count)), None)


def _has_rows(store: Any, name: str, count: int | None) -> bool:
    values = store.get(name)
    return values is not None and getattr(values, "ndim", 0) > 0 and count is not None and len(values) == count


def _read_times(store: Any, name: str | None, of: str) -> NDArray[np.int64] | None:
    values = None if name is None else to_numpy(store.get(name), f"{name}{of}")
    return None if values is None else to_times(values, f"{name}{of}")


def _spread_labels(
    nodes: list[NDArray[Any]], labels: list[NDArray[Any]], count: int | None, name: str
) -> NDArray[np.int64]:
    """Return ``[V]`` labels of some nodes, -1 at the others."""
    at, known = np.concatenate(nodes), np.concatenate([each.reshape(-1) for each in labels])
    if count is None or len(at) != len(known) or known.dtype.kind not in "iu" or (len(at) and at.max() >= count):
        got = f"{len(known)} labels of {known.dtype} for {len(at)} of {count} nodes"
        raise part_error(name, "an integer for each of these nodes", got)
    spread = np.full(count, -1, np.int64)
    spread[at] = known
    return spread


def _read_edges(
    store: Any, of: str, ends: tuple[int, int], name: str = "edge_index", times: str | None = None
) -> _EdgeArrays:
    """Return ``[2, E]`` edges, their weights, features and times, which are in the attribute ``times``."""
    index, transposed = store.get(name), store.get("adj_t")
    if is_sparse(index):
        return _check_order(*_directed_edges(sparse_edges(index, f"edge_index{of}"), of, ends), store)
    if index is None and transposed is not None:
        rows = sparse_edges(transposed, f"adj_t{of}")
        return _check_order(np.stack([rows.columns, rows.rows]), rows.values, store)
    edges = to_numpy(index, f"edge_index{of}")
    if edges is None:
        raise part_error(f"edge_index{of}", "edges in edge_index or adj_t", "none")
    return _EdgeArrays(edges, *_edge_values(store, of), _read_times(store, times, of))


def _check_order(edges: NDArray[Any], weight: NDArray[Any] | None, store: Any) -> _EdgeArrays:
    # A matrix has an order of its own: weights beside it could be those of other edges.
    given = [name for name in ("edge_weight", "edge_time", "edge_attr", "edge_type") if name in store]
    if given and (weight is None or {"edge_attr", "edge_time"} & {*given}):
        needed = "the weights as values of the matrix"
        if {"edge_attr", "edge_time"} & {*given}:
            needed = "edges in edge_index: a matrix does not tell which edge is the first of an array"
        raise part_error(f"{given[-1]} beside a sparse matrix", needed, ", ".join(given))
    return _EdgeArrays(edges, weight, None)


def _directed_edges(matrix: SparseEdges, of: str, ends: tuple[int, int]) -> tuple[NDArray[Any], NDArray[Any] | None]:
    forward, back = np.stack([matrix.rows, matrix.columns]), np.stack([matrix.columns, matrix.rows])
    if matrix.shape[0] != matrix.shape[1]:
        # PyG's layers read a sparse matrix as adj_t; as edge_index it may be either, but for its shape.
        return (back, matrix.values) if matrix.shape[0] == ends[1] else (forward, matrix.values)
    one, other = np.lexsort(forward), np.lexsort(back)
    values = matrix.values
    same_values = values is None or np.array_equal(values[one], values[other])
    if np.array_equal(forward[:, one], back[:, other]) and same_values:
        return forward, values
    raise part_error(
        f"edge_index{of}",
        "integers of shape [2, E], or a sparse matrix that is symmetric",
        "a sparse matrix that does not tell which way edges go",
        "name it adj_t if rows are destinations; else set edge_index to its indices()",
    )


def _edge_values(store: Any, of: str) -> tuple[NDArray[Any] | None, NDArray[Any] | None]:
    """Return ``[E]`` weights and ``[E, De]`` features of edges, as far as there are such."""
    weight = to_numpy(store.get("edge_weight"), f"edge_weight{of}")
    features = to_numpy(store.get("edge_attr"), f"edge_attr{of}")
    if weight is not None and weight.ndim == 2 and weight.shape[1] == 1:
        weight = weight[:, 0]
    if features is None or features.ndim != 1:
        return weight, features
    if weight is not None:
        return weight, as_feature_columns(features)
    return features, None


def _node_count(store: Any) -> int | None:
    with warnings.catch_warnings():
        # PyG warns where it takes the largest id of an edge for the number of nodes.
        warnings.simplefilter("ignore")
        try:
            count = store.num_nodes
        except AttributeError:  # edges of a type
            return None
    return None if count is None else int(count)


def _read_edge_attributes(store: Any) -> set[str]:
    return _EDGE_ATTRIBUTES if "edge_index" in store else _EDGE_ATTRIBUTES | {"adj_t"}


def _unread_names(store: Any, read: set[str]) -> list[str]:
    # Sorted: PyG lists attributes in an order that differs from process to process.
    return sorted(name for name in map(str, store.keys()) if name not in read)
