"""Node tables given as one part for each node type, and how they become the tables of all nodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, vstack

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.graph import NodeType
from outgrow.graph.readers.conversions import to_labels, to_node_ids
from outgrow.graph.readers.matrices import Matrix, block_diagonal_features, type_widths
from outgrow.graph.readers.source import BlockFeatures, NodeTableSource, TypeLabelTable
from outgrow.graph.readers.splits import PARTS, Parts, select_parts, splits_of_masks
from outgrow.graph.readers.times import join_times


@dataclass(frozen=True, kw_only=True, eq=False)
class NodePart:
    """The nodes of one type, numbered from 0.

    Attributes:
        name: Name of the type; empty if the graph has but one.
        count: Their number; None if only the edges tell.
        features: ``[n, D]`` floating, or CSR of that shape; None if they have none.
        labels: ``[n]`` or ``[n, C]``, see `outgrow.graph.readers.source.NodeTableSource`; None if they have none.
        class_names: Name of each class, or empty.
        split: Training, validation and test: each ids, a mask ``[n]``, or several masks ``[n, K]``; or None.
        are_numbers: Whether labels are said to be numbers; heeded where other types have labels too.
        time: ``[n]`` int64; None if they have no times.
    """

    name: str = ""
    count: int | None = None
    features: Matrix | None = None
    labels: NDArray[Any] | None = None
    class_names: tuple[str, ...] = ()
    split: Parts = (None, None, None)
    are_numbers: bool = False
    time: NDArray[np.int64] | None = None


def count_nodes(part: NodePart) -> int | None:
    """Return the number of nodes that the arrays of a part tell; None if they tell none."""
    if part.count is not None:
        return part.count
    masks = [mask for mask in part.split if mask is not None and (mask.dtype == bool or mask.ndim == 2)]
    known = [each for each in (part.features, part.labels, *masks) if each is not None and each.ndim]
    return int(known[0].shape[0]) if known else None


def count_borders(parts: Sequence[NodePart]) -> list[int]:
    """Return ``[T + 1]``: the first node of each type, and ``V``."""
    return [0, *accumulate(part.count or 0 for part in parts)]


def join_node_parts(parts: Sequence[NodePart], split_index: int = 0) -> NodeTableSource:
    """Return the tables of all nodes, without names of relations.

    Types whose features have one width share the columns; if widths differ or some types have none, each type has
    columns of its own: see `outgrow.graph.readers.matrices.block_diagonal_features`.

    Labels of several types are one set of labels if they are classes of the same names; else each type has labels of
    its own.

    Args:
        parts: The node types, with their counts.
        split_index: Which of several splits is chosen.

    Raises:
        InputError: Labels, features or masks that do not fit their type.
    """
    for part in parts:
        _check_lengths(part)
    typed = bool(parts) and bool(parts[0].name)
    borders = count_borders(parts)
    features, widths = _join_features(parts)
    labels, class_names, type_labels = _join_labels(parts, borders)
    splits = _join_splits(parts, borders)
    train, val, test = select_parts(splits, split_index, "the graph")
    ranges = zip(parts, pairwise(borders), widths, strict=True) if typed else ()
    return NodeTableSource(
        num_nodes=None if parts and parts[0].count is None else borders[-1],
        features=features,
        labels=labels,
        train=train,
        val=val,
        test=test,
        class_names=class_names,
        node_types=tuple(
            NodeType(name=part.name, first=first, last=last, num_columns=width) for part, (first, last), width in ranges
        ),
        splits=tuple(splits) if len(splits) > 1 else (),
        type_labels=type_labels,
        node_time=join_times([part.time for part in parts], [part.count or 0 for part in parts]),
    )


def part_error(name: str, needed: str, got: str, repair: str = "") -> InputError:
    """Return the error of a part of a graph that has the wrong form."""
    return InputError(
        f"{name} cannot be used", needed=needed, got=got, repair=repair or f"change or remove {name.split(' of ')[0]}"
    )


def _check_lengths(part: NodePart) -> None:
    of = f" of {part.name}" if part.name else ""
    for name, array in (("features", part.features), ("labels", part.labels), ("times", part.time)):
        if part.count is not None and array is not None and array.shape[:1] != (part.count,):
            one = {"features": "a row", "labels": "one label", "times": "one time"}[name]
            needed = f"{one} for each of {part.count} nodes"
            raise part_error(f"{name}{of}", needed, f"shape {list(array.shape)}")


def _join_features(parts: Sequence[NodePart]) -> tuple[Matrix | BlockFeatures | None, list[int]]:
    """Return the features, and how many columns each type has of its own: 0 where all share them."""
    rows = [part.features for part in parts]
    shared = [0] * len(rows)
    given = [each for each in rows if each is not None]
    if not given:
        return None, shared
    if len(rows) == 1:
        return rows[0], shared
    if len(given) < len(rows) or len({each.shape[1] for each in given}) > 1:
        return block_diagonal_features([part.count or 0 for part in parts], rows), type_widths(rows)
    if any(isinstance(each, csr_array) for each in given):
        return csr_array(vstack([csr_array(each) for each in given], format="csr")), shared
    return np.concatenate([np.asarray(each) for each in given]), shared


def _join_labels(
    parts: Sequence[NodePart], borders: Sequence[int]
) -> tuple[NDArray[Any] | None, tuple[str, ...], tuple[TypeLabelTable, ...]]:
    """Return the labels of all nodes and the names of their classes; or the labels of each type that has some."""
    if len(parts) == 1:
        return parts[0].labels, parts[0].class_names, ()
    known: list[tuple[NodePart, int, NDArray[Any]]] = []
    for part, first in zip(parts, borders, strict=False):
        if part.labels is not None and part.count:
            made = to_labels(part.labels, named=bool(part.class_names), where=f"labels of {part.name}")
            known.append((part, first, made.reshape(-1) if made.ndim == 2 and made.shape[1] == 1 else made))
    # Labels of which none is known are no target beside others.
    known = [each for each in known if _are_known(each[2])] or known
    if not known:
        return None, (), ()
    if len(known) > 1:
        known = [(part, first, _to_numbers(made) if part.are_numbers else made) for part, first, made in known]
    # Classes of several types are the same if their names are: numbers alone do not tell that they mean the same.
    names = {part.class_names if labels.ndim == 1 and labels.dtype.kind != "f" else () for part, _, labels in known}
    if len(known) > 1 and (len(names) > 1 or () in names):
        tables = tuple(
            TypeLabelTable(part.name, labels, part.class_names, labels.dtype.kind == "f") for part, _, labels in known
        )
        return None, (), tables
    if len(known) > 1:
        types, classes = ", ".join(part.name for part, _, _ in known), ", ".join(known[0][0].class_names)
        warn_about_data(
            f"labels of {types} are read as one set of labels: the classes {classes}; targets (--target) that "
            "name these types give each outputs of its own"
        )
    # Nodes of all other types are unlabelled; of several labels a node, they have none.
    first_labels = known[0][2]
    is_number = first_labels.dtype.kind == "f"
    empty: Any = np.nan if is_number else -1 if first_labels.ndim == 1 else 0
    dtype = np.result_type(*(labels.dtype for _, _, labels in known)) if is_number else np.int64
    joined = np.full(
        (borders[-1], *first_labels.shape[1:]), empty, dtype if first_labels.ndim == 1 or is_number else np.uint8
    )
    for _, first, labels in known:
        joined[first : first + len(labels)] = labels
    return joined, known[0][0].class_names, ()


def _to_numbers(labels: NDArray[Any]) -> NDArray[Any]:
    """Return labels as numbers, NaN where they are unknown."""
    return labels if labels.dtype.kind == "f" else np.where(labels == -1, np.nan, labels).astype(np.float32)


def _are_known(labels: NDArray[Any]) -> bool:
    return bool((~np.isnan(labels)).any() if labels.dtype.kind == "f" else labels.ndim == 2 or (labels >= 0).any())


def _join_splits(parts: Sequence[NodePart], borders: Sequence[int]) -> list[Parts]:
    """Return all splits: as many as there are columns of masks."""
    known: list[tuple[int, NodePart, tuple[Parts, ...]]] = []
    for part, first in zip(parts, borders, strict=False):
        masks = {name: mask for name, mask in zip(PARTS, part.split, strict=True) if mask is not None}
        if masks and part.count is None:
            return [part.split]
        if masks:
            known.append((first, part, splits_of_masks(masks, part.count or 0, part.name or "the graph")))
    counts = {len(splits) for _, _, splits in known}
    if len(counts) > 1:
        got = ", ".join(f"{len(splits)} of {part.name}" for _, part, splits in known)
        raise part_error("the masks", "the same number of splits of all types", got)
    made: list[Parts] = []
    for column in range(max(counts, default=0)):
        train, val, test = (
            _join_nodes([(first, part, splits[column][at]) for first, part, splits in known], name)
            for at, name in enumerate(PARTS)
        )
        made.append((train, val, test))
    return made


def _join_nodes(known: Sequence[tuple[int, NodePart, NDArray[Any] | None]], name: str) -> NDArray[np.int64] | None:
    found = []
    for first, part, nodes in known:
        if nodes is None:
            continue
        where = f"the split {name}{f' of {part.name}' if part.name else ''}"
        ids = to_node_ids(nodes, part.count or 0, where)
        outside = ids[(ids < 0) | (ids >= (part.count or 0))]
        if len(outside):
            got = f"{len(outside)} others, the first is {outside[0]}"
            raise part_error(where, f"nodes from 0 to {(part.count or 0) - 1}", got, "correct the split")
        found.append(ids.astype(np.int64) + first)
    return np.concatenate(found) if found else None
