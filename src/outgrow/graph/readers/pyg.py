"""Reader of PyG graphs: ``Data`` and ``HeteroData``."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from outgrow.core.errors import InputError
from outgrow.graph.graph import NodeType
from outgrow.graph.readers.conversions import to_labels, to_node_ids
from outgrow.graph.readers.matrices import block_diagonal_features, csr_from_arrays, type_widths
from outgrow.graph.readers.npz import iter_array_edges
from outgrow.graph.readers.source import EdgeChunk, GraphSource, NodeTableSource
from outgrow.graph.readers.split_source import with_mask_tables

_MASKS = ("train_mask", "val_mask", "test_mask")
_NODE_ATTRIBUTES = {"x", "y", "num_nodes", *_MASKS}
_EDGE_ATTRIBUTES = {"edge_index", "edge_weight"}


@final
class PygSource(GraphSource):
    """A source of a ``Data`` or ``HeteroData`` object. Final.

    Reads ``x``, ``y``, ``edge_index``, ``edge_type``, ``edge_weight`` (or an ``edge_attr`` of one column) and the three
    masks, ``[V, K]`` of ``K`` splits. Types of nodes follow one another in the order of ``node_types``; each edge type
    is a relation. Types whose features have one width share the columns; if widths differ, each type has columns of
    its own, and features are sparse. A type without features gets random vectors, the same in every run (see
    `outgrow.graph.readers.matrices.block_diagonal_features`). Numbers in bfloat16 become float32.

    Args:
        data: The data object.

    Raises:
        InputError: A type whose number of nodes nothing tells.
    """

    def __init__(self, data: Any) -> None:
        from torch_geometric.data import HeteroData  # type: ignore[import-untyped]

        self._hetero = isinstance(data, HeteroData)
        self._stores: list[Any] = [data[name] for name in data.node_types] if self._hetero else [data]
        self._links: list[tuple[str, str, str]] = list(data.edge_types) if self._hetero else []
        self._names = list(data.node_types) if self._hetero else []
        self._data = data
        self._borders = np.cumsum([0, *self._count_nodes()]).tolist()

    @property
    def name(self) -> str:
        """``pyg``: data objects have no name."""
        return "pyg"

    def read_tables(self) -> NodeTableSource:
        """Return the attributes of the nodes.

        Raises:
            InputError: Attributes of the wrong form, or labels of more than one type of nodes.
        """
        masks = {mask.removesuffix("_mask"): self._nodes_of_masks(mask) for mask in _MASKS}
        features, widths = self._collect_features()
        types = zip(self._names, pairwise(self._borders), widths, strict=True) if self._hetero else ()
        tables = NodeTableSource(
            num_nodes=self._borders[-1],
            features=features,
            labels=self._collect_labels(),
            relation_names=tuple("__".join(link) for link in self._links),
            node_types=tuple(
                NodeType(name=name, first=first, last=last, num_columns=width) for name, (first, last), width in types
            ),
        )
        return with_mask_tables(tables, masks, "the data object")

    def read_edges(self) -> Iterator[EdgeChunk]:
        """Yield all edges, type after type.

        Raises:
            InputError: Attributes of the wrong form, or weights that only some types of edges have.
        """
        # Types are offset into one range of ids, and the number of the edge type is the relation.
        if not self._hetero:
            relation = _to_numpy(self._data.get("edge_type"), "edge_type")
            yield from iter_array_edges(_edge_index(self._data), relation, _edge_weight(self._data), "the data object")
            return
        weights = [_edge_weight(self._data[link]) for link in self._links]
        if any(w is None for w in weights) and any(w is not None for w in weights):
            raise _attribute_error("edge_weight", "weights for all types of edges or for none", "some types without")
        first = dict(zip(self._names, self._borders, strict=False))
        for number, (link, weight) in enumerate(zip(self._links, weights, strict=True)):
            src, dst = _edge_index(self._data[link])
            self._check_endpoints(link, src, dst)
            index = np.stack([src + first[link[0]], dst + first[link[2]]])
            yield from iter_array_edges(index, np.full(len(src), number, np.int32), weight, f"edges {' '.join(link)}")

    def list_unread(self) -> tuple[str, ...]:
        """Return the names of the attributes that are not read."""
        if not self._hetero:
            return tuple(_unread_names(self._data, _NODE_ATTRIBUTES | _EDGE_ATTRIBUTES | {"edge_type"}))
        parts = [(name, self._data[name], _NODE_ATTRIBUTES) for name in self._names]
        parts += [("__".join(link), self._data[link], _EDGE_ATTRIBUTES) for link in self._links]
        names = [f"{part}.{name}" for part, store, read in parts for name in _unread_names(store, read)]
        return (*names, *self._data._global_store.keys())

    def _count_nodes(self) -> list[int]:
        if not self._hetero:
            return [_node_count(self._data, "the data object")]
        # PyG lists types that only edges name among neither its stores nor its counts.
        named = dict.fromkeys(end for link in self._links for end in (link[0], link[2]))
        if missing := [name for name in named if name not in self._names]:
            raise _unknown_count_error(missing[0], f'data["{missing[0]}"].num_nodes')
        return [_node_count(self._data[name], name) for name in self._names]

    def _check_endpoints(self, link: tuple[str, str, str], src: NDArray[Any], dst: NDArray[Any]) -> None:
        """Check that ids are in the range of their type."""
        # An id too large for its type would silently be a node of the next type.
        for ids, name in ((src, link[0]), (dst, link[2])):
            at = self._names.index(name)
            count = self._borders[at + 1] - self._borders[at]
            bad = ids[(ids < 0) | (ids >= count)]
            if len(bad):
                got = f"{len(bad)} others, the first is {bad[0]}"
                raise _attribute_error(f"edge_index of {' '.join(link)}", f"ids of {name} from 0 to {count - 1}", got)

    def _collect_features(self) -> tuple[NDArray[Any] | csr_array | None, list[int]]:
        """Return the features, and how many columns each type has of its own: 0 where all share them."""
        parts = [_to_matrix(store.get("x")) for store in self._stores]
        shared = [0] * len(parts)
        if all(part is None for part in parts):
            return None, shared
        if len(parts) == 1:
            return parts[0], shared
        counts = [last - first for first, last in pairwise(self._borders)]
        given = [part for part in parts if part is not None]
        if len(given) < len(parts) or len({part.shape[1] for part in given}) > 1:
            return block_diagonal_features(self._names, counts, parts), type_widths(parts)
        if any(isinstance(part, csr_array) for part in given):
            return csr_array(vstack([csr_array(part) for part in given], format="csr")), shared
        return np.concatenate([np.asarray(part) for part in given]), shared

    def _collect_labels(self) -> NDArray[Any] | None:
        given = [_to_numpy(store.get("y"), "y") for store in self._stores]
        known = [(first, y) for first, y in zip(self._borders, given, strict=False) if y is not None]
        if not known:
            return None
        if len(known) > 1:
            raise _attribute_error("y", "labels of one type of nodes", f"labels of {len(known)} types")
        first, labels = known[0]
        if len(self._stores) == 1:
            return labels
        count = self._borders[self._borders.index(first) + 1] - first
        if labels.shape not in ((count,), (count, 1)):
            raise _attribute_error("y", f"one label for each of {count} nodes", f"shape {list(labels.shape)}")
        # Nodes of all other types are unlabelled.
        given_labels = to_labels(labels, named=False, where="y").reshape(-1)
        is_number = given_labels.dtype.kind == "f"
        all_labels = np.full(
            self._borders[-1], np.nan if is_number else -1, given_labels.dtype if is_number else np.int64
        )
        all_labels[first : first + count] = given_labels
        return all_labels

    def _nodes_of_masks(self, mask: str) -> NDArray[Any] | None:
        """Return ids ``[n]`` of one mask, or masks ``[V, K]`` of several splits; None if no type has such a mask."""
        given = [_to_numpy(store.get(mask), mask) for store in self._stores]
        several = {values.shape[1:] for values in given if values is not None and values.ndim == 2}
        parts = []
        for first, last, values in zip(self._borders, self._borders[1:], given, strict=False):
            if values is not None and (len(values) != last - first or values.ndim > 2):
                needed = f"booleans of shape [{last - first}], or [{last - first}, splits]"
                raise _attribute_error(mask, needed, f"{values.dtype} of shape {list(values.shape)}")
            if len(several) > 1:
                raise _attribute_error(mask, "as many splits of each type", f"tables of {len(several)} widths")
            if several:
                shape = (last - first, *next(iter(several)))
                parts.append(np.zeros(shape, bool) if values is None else np.broadcast_to(values.T, shape[::-1]).T)
            elif values is not None:
                parts.append(to_node_ids(values, last - first, mask) + first)
        return np.concatenate(parts) if any(values is not None for values in given) else None


def _edge_index(store: Any) -> NDArray[Any]:
    index = _to_numpy(store.get("edge_index"), "edge_index")
    if index is None:
        raise _attribute_error("edge_index", "edges in edge_index", "none (adj_t is not read)")
    return index


def _edge_weight(store: Any) -> NDArray[Any] | None:
    weight = _to_numpy(store.get("edge_weight"), "edge_weight")
    if weight is not None:
        return weight
    attributes = _to_numpy(store.get("edge_attr"), "edge_attr")
    if attributes is None or attributes.ndim == 1:
        return attributes
    if attributes.shape[1] != 1:
        raise _attribute_error("edge_attr", "one weight for each edge", f"shape {list(attributes.shape)}")
    return attributes[:, 0]


def _to_matrix(x: Any) -> NDArray[Any] | csr_array | None:
    import torch

    if x is None or x.layout not in (torch.sparse_csr, torch.sparse_coo):
        return _to_numpy(x, "x")
    if x.layout is torch.sparse_coo:
        if x.ndim != 2 or x.dense_dim():
            raise _attribute_error("x", "a matrix", f"{x.ndim} dimensions, {x.dense_dim()} of them dense")
        whole = x.detach().cpu().coalesce()
        return csr_array((whole.values().numpy(), tuple(whole.indices().numpy())), shape=tuple(x.shape))
    values, columns, ends = (
        np.asarray(part.detach().cpu()) for part in (x.values(), x.col_indices(), x.crow_indices())
    )
    try:
        return csr_from_arrays(values, columns, ends, [int(n) for n in x.shape])
    except ValueError as error:
        raise _attribute_error("x", "a well-formed CSR matrix", str(error)) from error


def _to_numpy(values: Any, name: str) -> NDArray[Any] | None:
    if values is None:
        return None
    import torch

    if isinstance(values, np.ndarray):
        return values
    if not isinstance(values, torch.Tensor) or values.layout is not torch.strided:
        got = f"a tensor of layout {values.layout}" if isinstance(values, torch.Tensor) else type(values).__name__
        raise _attribute_error(name, "a dense tensor", got)
    # NumPy has no bfloat16.
    here = values.detach().cpu()
    return np.asarray(here.float() if here.dtype == torch.bfloat16 else here)


def _node_count(store: Any, name: str) -> int:
    with warnings.catch_warnings():
        # PyG warns where it takes the largest id of an edge for the number of nodes.
        warnings.simplefilter("ignore")
        count = store.num_nodes
    if count is None:
        raise _unknown_count_error(name, f'data["{name}"].num_nodes')
    return int(count)


def _unknown_count_error(name: str, attribute: str) -> InputError:
    return InputError(
        f"the number of nodes of {name} is unknown",
        needed="features or num_nodes for each type of nodes",
        got="neither",
        repair=f"set {attribute}",
    )


def _unread_names(store: Any, read: set[str]) -> list[str]:
    # Sorted: PyG lists attributes in an order that differs from process to process.
    names = sorted(name for name in map(str, store.keys()) if name not in read)
    # `edge_attr` stands for the weights where there is no `edge_weight`.
    return names if "edge_weight" in store else [name for name in names if name != "edge_attr"]


def _attribute_error(name: str, needed: str, got: str) -> InputError:
    return InputError(f"{name} cannot be used", needed=needed, got=got, repair=f"change or remove {name}")
