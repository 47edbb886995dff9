"""Checks of what is known of nodes. Each raises one error that says what is wrong, how often, and where first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.graph import NodeType
from outgrow.graph.link_split import HeldOutLinks
from outgrow.graph.readers.conversions import FEW_CLASSES, to_labels, to_node_ids
from outgrow.graph.readers.source import Ids

if TYPE_CHECKING:
    from torch import Tensor

    from outgrow.graph.graph import Graph


SPLITS = ("train", "val", "test")

LEARNED_VECTORS = "; or train a vector for each node: --model embedding, or --set embedding=64 (og.nn.NodeEmbedding)"
"""What to say where features are missing."""


def require_trainable(graph: Graph, *, needs_features: bool = True) -> None:
    """Refuse a graph that can be looked at, but not trained on.

    Args:
        graph: The graph.
        needs_features: Whether the model reads features, if the graph has none.

    Raises:
        InputError: No features, no labels or an empty training split.
    """
    lacks = [
        what
        for what, missing in (
            ("features", needs_features and graph.features is None),
            ("labels", graph.labels is None and not graph.type_labels),
            ("nodes to train on", len(graph.split.train) == 0),
        )
        if missing
    ]
    if lacks:
        raise InputError(
            f"{graph.name} cannot be trained on",
            needed="features, labels and a training split that is not empty",
            got=f"no {', no '.join(lacks)}",
            repair="give nodes.csv beside the edges, with numbers, labels and a split (--split 0.6,0.2,0.2), or "
            "nodes.npz with features or feat_*, label, train_idx, val_idx and test_idx"
            + (LEARNED_VECTORS if graph.features is None else ""),
        )


class FiniteCheck:
    """Looks for features that are not finite, in blocks of rows."""

    def __init__(self) -> None:
        self._count = 0
        self._first = ""

    def check_dense(self, values: NDArray[Any], first_row: int) -> None:
        """Dense rows ``[n, D]`` that start at ``first_row``."""
        good = np.isfinite(values)
        if good.all():
            return
        if not self._count:
            row, column = np.unravel_index(int(np.argmin(good)), good.shape)
            self._first = f"{values[row, column]} at node {first_row + int(row)}, column {column}"
        self._count += int(good.size - np.count_nonzero(good))

    def check_sparse(self, indptr: Ids, indices: NDArray[Any], values: NDArray[Any], first_row: int) -> None:
        """Sparse rows that start at ``first_row``; ``indptr`` starts at 0."""
        good = np.isfinite(values)
        if good.all():
            return
        if not self._count:
            at = int(np.argmin(good))
            row = int(np.searchsorted(indptr, at, side="right")) - 1
            self._first = f"{values[at]} at node {first_row + row}, column {indices[at]}"
        self._count += int(good.size - np.count_nonzero(good))

    def raise_if_any(self) -> None:
        """After the last block.

        Raises:
            InputError: Some values are not finite.
        """
        if self._count:
            raise InputError(
                "features are not finite",
                needed="finite numbers",
                got=f"{self._count} NaN or infinite values, the first is {self._first}",
                repair="replace them, for example by zero or by the mean of the column",
            )


def validate_labels(labels: NDArray[Any], class_names: tuple[str, ...], num_nodes: int) -> tuple[NDArray[Any], int]:
    """Labels in the narrowest type that a graph has them in, and the number of classes.

    Args:
        labels: ``[V]`` or ``[V, 1]`` integer with -1 for unknown, or ``[V, C]`` zeros and ones; also as
            floats, with NaN for unknown. Floats that are no classes are the targets ``[V]`` or ``[V, K]`` of a
            regression: see `to_labels`.
        class_names: Name of each class; empty if the largest label tells.
        num_nodes: ``V``.

    Returns:
        ``[V]`` int16 or int32, or ``[V, C]`` uint8; or ``[V]`` or ``[V, K]`` floating; and ``C`` or ``K``.

    Raises:
        InputError: A label out of range, of the wrong type, or not one for each node.
    """
    if labels.ndim not in (1, 2) or len(labels) != num_nodes or 0 in labels.shape or labels.dtype.kind not in "iubf":
        raise InputError(
            "labels have the wrong form",
            needed=f"integers of shape [{num_nodes}], zeros and ones of shape [{num_nodes}, classes], or numbers",
            got=f"{labels.dtype} of shape {list(labels.shape)}",
            repair="give one label for each node, -1 where it is unknown",
        )
    given = labels.dtype
    labels = to_labels(labels, named=bool(class_names))
    if labels.dtype.kind == "f":
        return (labels, labels.shape[1]) if labels.ndim == 2 and labels.shape[1] > 1 else (labels.reshape(-1), 1)
    if labels.ndim == 2 and labels.shape[1] > 1:
        return _validate_multi_labels(labels, class_names)
    if given.kind == "f":
        warn_about_data(
            f"labels are {given} without fractions: whole numbers are read as classes, NaN as unknown; "
            "og.NodeRegression (--task regression) predicts them as numbers"
        )
    labels = labels.reshape(-1)
    largest = int(labels.max())
    num_classes = len(class_names) or largest + 1
    if not class_names and num_classes > max(FEW_CLASSES, num_nodes):
        raise InputError(
            "labels are not numbered from 0",
            needed=f"fewer classes than nodes ({num_nodes})",
            got=f"a largest label of {largest}",
            repair="number the classes from 0 without gaps, or name all classes",
        )
    bad = np.flatnonzero((labels < -1) | (labels >= num_classes))
    if len(bad):
        raise InputError(
            "a label is out of range",
            needed=f"labels from 0 to {num_classes - 1}, or -1 for unknown",
            got=f"{len(bad)} others, the first is {labels[bad[0]]} at node {bad[0]}",
            repair="correct the labels, or name all classes",
        )
    return labels.astype(np.int16 if num_classes <= 2**15 else np.int32), num_classes


def _validate_multi_labels(labels: NDArray[Any], class_names: tuple[str, ...]) -> tuple[NDArray[np.uint8], int]:
    bad = np.argwhere((labels != 0) & (labels != 1))
    if len(bad) or (class_names and len(class_names) != labels.shape[1]):
        first = f"the first is {labels[tuple(bad[0])]} at node {bad[0, 0]}" if len(bad) else "no other value"
        raise InputError(
            "multi-label labels are wrong",
            needed=f"zeros and ones, one column for each of {len(class_names) or labels.shape[1]} classes",
            got=f"{labels.shape[1]} columns, {len(bad)} other values, {first}",
            repair="give one column of zeros and ones for each class",
        )
    return labels.astype(np.uint8), labels.shape[1]


def validate_held_out_links(links: HeldOutLinks | None, num_nodes: int, num_relations: int) -> HeldOutLinks | None:
    """Return links to validate and test on as they are, if nodes and relations exist.

    Raises:
        InputError: A link leads to a node that does not exist, or has a relation that the edges do not have; candidates
            are no nodes, or hold the answer twice.
    """
    for part, given in () if links is None else zip(("val", "test"), links, strict=True):
        for what, values, limit in (
            ("node", given.head, num_nodes),
            ("node", given.tail, num_nodes),
            ("relation", given.relation, max(1, num_relations)),
        ):
            bad = (values < 0) | (values >= limit)
            if bool(bad.any()):
                raise InputError(
                    f"a {part} link has a {what} that does not exist",
                    needed=f"{what}s from 0 to {limit - 1}",
                    got=f"{int(bad.sum())} others, the first is {int(values[bad][0])}",
                    repair="correct the links",
                )
    for part, given, candidates in () if links is None else zip(("val", "test"), links, links.candidates, strict=True):
        for end, nodes in {} if candidates is None else candidates._asdict().items():
            if nodes is not None:
                _validate_candidates(f"{end} of {part} links", nodes, getattr(given, end), num_nodes)
    return links


def _validate_candidates(what: str, nodes: Tensor, answers: Tensor, num_nodes: int) -> None:
    bad, num_links = (nodes < 0) | (nodes >= num_nodes), len(answers)
    if nodes.dim() != 2 or len(nodes) != num_links or nodes.is_floating_point() or bool(bad.any()):
        raise InputError(
            f"the candidates for the {what} cannot be used",
            needed=f"node numbers from 0 to {num_nodes - 1}, a row for each of {num_links:,} links",
            got=f"{nodes.dtype} of shape {list(nodes.shape)}, {int(bad.sum())} of them no nodes",
            repair="correct them, or leave them out: links are then ranked among all nodes",
        )
    twice = ((nodes == answers[:, None]).sum(1) > 1).nonzero()[:, 0]
    if len(twice):
        raise InputError(
            f"the candidates for the {what} hold the answer twice",
            needed="wrong answers; the right one is passed over if it is among them once",
            got=f"{len(twice):,} links with their answer more than once, the first is link {int(twice[0])}",
            repair="take the answers out of the candidates",
        )


def validate_split(parts: Iterable[NDArray[Any] | None], num_nodes: int) -> tuple[Ids, Ids, Ids]:
    """The parts of a split (training, validation, test), sorted; ``[n]`` int64 each.

    Args:
        parts: ``[n]`` integer node ids or a ``[V]`` mask each (see `to_node_ids`); None for nothing.
        num_nodes: ``V``.

    Raises:
        InputError: An id outside the graph, twice in a part, or in two parts; or a mask of another length.
    """
    train, val, test = (_validate_split_part(*named, num_nodes) for named in zip(SPLITS, parts, strict=True))
    for (one, a), (other, b) in (
        (("train", train), ("val", val)),
        (("train", train), ("test", test)),
        (("val", val), ("test", test)),
    ):
        both = np.intersect1d(a, b, assume_unique=True)
        if len(both):
            raise InputError(
                f"the splits {one} and {other} overlap",
                needed="every node in one split at most",
                got=f"{len(both)} nodes in both, the first is node {both[0]}",
                repair=f"take them out of {one} or of {other}",
            )
    return train, val, test


def _validate_split_part(name: str, ids: NDArray[Any] | None, num_nodes: int) -> Ids:
    if ids is None:
        return np.empty(0, dtype=np.int64)
    nodes = np.sort(to_node_ids(ids, num_nodes, f"the split {name}"))
    outside = nodes[(nodes < 0) | (nodes >= num_nodes)]
    if len(outside):
        raise InputError(
            f"the split {name} names nodes outside the graph",
            needed=f"node ids from 0 to {num_nodes - 1}",
            got=f"{len(outside)} others, the first is {outside[0]}",
            repair=f"correct the split {name} or the number of nodes",
        )
    again = nodes[1:][nodes[1:] == nodes[:-1]]
    if len(again):
        raise InputError(
            f"the split {name} names a node twice",
            needed="every node at most once",
            got=f"{len(again)} repetitions, the first is node {again[0]}",
            repair=f"drop the duplicates in the split {name}",
        )
    return nodes.astype(np.int64)


def check_split_labels(labels: NDArray[Any] | None, parts: tuple[Ids, Ids, Ids]) -> None:
    """Refuse a split with nodes of unknown label.

    Raises:
        InputError: A node of a split has no label.
    """
    for name, nodes in zip(SPLITS, parts, strict=True):
        # Nodes without a target are left out of a regression.
        if labels is None or labels.ndim == 2 or labels.dtype.kind == "f":
            return
        without = nodes[labels[nodes] < 0]
        if len(without):
            raise InputError(
                f"the split {name} has nodes without a label",
                needed="a label of at least 0 for every node of a split",
                got=f"{len(without)} of {len(nodes)} nodes without, the first is node {without[0]}",
                repair=f"label them, or take them out of the split {name}",
            )


def check_split_type_labels(
    labels: Mapping[str, NDArray[Any]], types: tuple[NodeType, ...], parts: tuple[Ids, Ids, Ids]
) -> None:
    """Refuse a split with nodes of types without labels, or of unknown label, where types have labels of their own.

    Args:
        labels: ``[n]`` or ``[n, C]`` of the nodes of each type with labels; nothing is checked if there is none.
        types: All node types.
        parts: The parts of the split.

    Raises:
        InputError: A node of a split has no label.
    """
    for kind in types if labels else ():
        own = tuple(nodes[(nodes >= kind.first) & (nodes < kind.last)] - kind.first for nodes in parts)
        train, val, test = own
        given = labels.get(kind.name)
        none = np.full(kind.last - kind.first, -1) if given is None else given
        try:
            check_split_labels(none, (train, val, test))
        except InputError as error:
            raise InputError(
                f"{error.what} (type {kind.name})", needed=error.needed, got=error.got, repair=error.repair
            ) from error


def check_node_types(types: tuple[NodeType, ...], num_nodes: int, num_features: int) -> None:
    """Refuse node types that do not cover the nodes, or whose columns do not cover the features.

    Raises:
        InputError: Ranges that leave a gap, overlap, or end elsewhere.
    """
    if sum(kind.num_columns for kind in types) not in (0, num_features):
        raise InputError(
            "node types do not fit the features",
            needed=f"{num_features} feature columns of all types together, or types that share the columns",
            got=", ".join(f"{kind.name} {kind.num_columns}" for kind in types),
            repair="give each type the number of its own columns, or none",
        )
    borders = [0, *(t.last for t in types)]
    follow = all(t.first == end <= t.last for t, end in zip(types, borders, strict=False))
    if types and not (follow and borders[-1] == num_nodes):
        raise InputError(
            "node types do not fit the nodes",
            needed=f"ranges that follow one another from 0 to {num_nodes}",
            got=", ".join(f"{t.name} {t.first} to {t.last}" for t in types),
            repair="give each type the ids between the types before and after it",
        )
