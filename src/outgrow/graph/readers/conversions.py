"""Conversions of what users give to the types of a graph: one for all readers, and none that loses values.

Labels become integers or, if they are no classes, float32 or float64; masks become node ids, weights float32. What
cannot be converted without losing values is refused.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data

FEW_CLASSES = 1000
"""So many classes may be more than there are nodes."""
_MAX_INT64 = np.iinfo(np.int64).max
# Beyond 2^53 not every whole number is a float64, so that a label of this size would be a rounded one.
_MOST_EXACT_FLOAT = 2.0**53


def as_feature_columns(values: NDArray[Any] | None) -> NDArray[Any] | None:
    """Return features of edges as rows, ``[E, De]``: one number for each edge is a row of one column."""
    return values[:, None] if values is not None and values.ndim == 1 else values


def to_feature_sizes(sizes: NDArray[Any] | None) -> tuple[int, ...]:
    """Return the number of categories of each column of features of edges, 0 for numbers; empty for None.

    Raises:
        InputError: No integers, or another shape than ``[De]``.
    """
    if sizes is None or not sizes.size:
        return ()
    if sizes.ndim != 1 or sizes.dtype.kind not in "iu":
        raise InputError(
            "edge_feature_sizes cannot be read",
            needed="an integer for each column of the features of edges: its number of categories, or 0",
            got=f"{sizes.dtype} of shape {list(sizes.shape)}",
            repair="correct them, or leave them out",
        )
    return tuple(sizes.tolist())


def to_integer_labels(labels: NDArray[Any], *, named: bool, where: str = "labels") -> NDArray[Any]:
    """Return labels as integers that fit int64, with -1 for NaN.

    Args:
        labels: ``[V]`` or ``[V, C]``; integer, boolean, or floating without fractions.
        named: Whether classes have names. If not, 255 of uint8 is taken for unknown, as image formats write it,
            with a warning, unless there is a class 254 too.
        where: Name of the labels in errors.

    Raises:
        InputError: Fractions, values beyond int64, or no numbers.
    """
    if labels.dtype.kind == "f":
        return _whole_floats(labels, where)
    if labels.dtype.kind not in "iub":
        raise _label_error(where, "integers", f"values of type {labels.dtype}", "number the classes from 0")
    if labels.dtype == np.uint64 and labels.max(initial=0) > _MAX_INT64:
        raise _label_error(where, "integers that fit int64", f"{labels.max()}", "number the classes from 0")
    if labels.dtype == np.uint8 and not named and (labels == 255).any() and not (labels == 254).any():
        warn_about_data(
            f"{where} are uint8, and 255 at {int((labels == 255).sum())} nodes is read as unknown, since no node "
            "has 254; if it is a class, give int16"
        )
        return np.where(labels == 255, np.int16(-1), labels.astype(np.int16))
    return labels


def to_labels(labels: NDArray[Any], *, named: bool, where: str = "labels") -> NDArray[Any]:
    """Return labels as integers, or as numbers of a regression: floats that cannot be classes.

    Floats are classes if all that are known are whole, from 0 on (or -1), and classes have names or are fewer than
    nodes or 1000; of several columns, if all are 0 or 1.

    Args:
        labels: ``[V]`` or ``[V, C]``, of any type.
        named: Whether classes have names; floats are then classes.
        where: Name of the labels in errors.

    Returns:
        Integers, see `to_integer_labels`; or float32 or float64, with NaN for unknown.

    Raises:
        InputError: No numbers, or numbers that are infinite.
    """
    if labels.dtype.kind != "f" or named or _are_classes(labels):
        return to_integer_labels(labels, named=named, where=where)
    bad = np.flatnonzero(np.isinf(labels))
    if len(bad):
        columns = max(1, labels.size // max(1, len(labels)))
        raise _label_error(
            where,
            "finite numbers; NaN where a label is unknown",
            f"{len(bad)} others, the first is {labels.reshape(-1)[bad[0]]} at node {int(bad[0]) // columns}",
            "replace infinite labels, for example by NaN",
        )
    # Always a copy: what a graph holds must be writable.
    return labels.astype(labels.dtype if labels.dtype in (np.float32, np.float64) else np.float32)


def _are_classes(labels: NDArray[Any]) -> bool:
    if labels.ndim == 2 and labels.shape[1] > 1:
        return bool(((labels == 0) | (labels == 1)).all())
    known = labels[~np.isnan(labels)]
    # Of nothing known it cannot be told; it is then what it was before there were regressions.
    if not len(known):
        return True
    return bool(known.min() >= -1 and known.max() < max(FEW_CLASSES, len(labels)) and (known == np.rint(known)).all())


def to_node_ids(nodes: NDArray[Any], num_nodes: int, where: str) -> NDArray[Any]:
    """Return the ids of a mask, and node ids as they are.

    Booleans are a mask. So are int8 and uint8 that hold only 0 and 1, one for each of three nodes or more.

    Args:
        nodes: ``[n]`` integer node ids, or a ``[V]`` mask.
        num_nodes: ``V``.
        where: Name of the nodes in errors, such as ``the split train``.

    Returns:
        ``[n]`` integer node ids, of int64 if a mask was given; neither sorted nor checked otherwise.

    Raises:
        InputError: Neither ids nor a mask, a mask of another length, or a mask of another type.
    """
    if nodes.dtype == bool:
        if nodes.shape != (num_nodes,):
            raise _mask_error(
                f"the mask of {where} has the wrong length" if nodes.ndim == 1 else f"{where} has the wrong form",
                num_nodes,
                nodes,
            )
        return np.flatnonzero(nodes)
    if nodes.ndim != 1 or (nodes.dtype.kind not in "iu" and len(nodes)):
        # `flatnonzero` of a table of masks would number its cells, so one column must be chosen first.
        raise _mask_error(f"{where} has the wrong form", num_nodes, nodes)
    ids = nodes if len(nodes) else nodes.astype(np.int64)
    if len(ids) < 3 or not ((ids == 0) | (ids == 1)).all():
        return ids
    # Three or more ids from {0, 1} name a node twice: this can only be a mask.
    if ids.itemsize == 1 and len(ids) == num_nodes:
        return np.flatnonzero(ids)
    raise _mask_error(f"{where} names a node twice, or is a mask of another type or length", num_nodes, nodes)


def to_weights(weights: NDArray[Any], where: str) -> NDArray[np.float32]:
    """Return weights as float32, rounded to its 24 binary digits.

    Args:
        weights: ``[E]``; floating, integer or boolean.
        where: Name of the weights in errors, such as ``weight of the edges``.

    Raises:
        InputError: No numbers, or numbers that float32 would make infinite or zero.
    """
    if weights.dtype == np.float32:
        return weights
    if weights.dtype.kind not in "fiub":
        raise InputError(
            f"{where} cannot be used",
            needed="real numbers",
            got=f"values of type {weights.dtype}",
            repair="convert the weights to float32",
        )
    with np.errstate(over="ignore", under="ignore"):
        made = weights.astype(np.float32)
    lost = (np.isinf(made) & np.isfinite(weights)) | ((made == 0) & (weights != 0))
    if lost.any():
        at = int(np.argmax(lost))
        raise InputError(
            f"{where} cannot be used",
            needed="numbers that float32 holds: 0, or from 1.5e-45 to 3.4e38 in size",
            got=f"{int(lost.sum())} others, the first is {weights[at]}",
            repair="scale the weights, or replace those that are too large or too small",
        )
    return made


def _whole_floats(labels: NDArray[Any], where: str) -> NDArray[np.int64]:
    known = np.where(np.isnan(labels), -1.0, labels)
    bad = np.flatnonzero((known != np.rint(known)) | (np.abs(known) > _MOST_EXACT_FLOAT))
    if len(bad):
        columns = max(1, labels.size // max(1, len(labels)))
        raise _label_error(
            where,
            "classes, as whole numbers; NaN where a label is unknown",
            f"{len(bad)} others, the first is {known.reshape(-1)[bad[0]]} at node {int(bad[0]) // columns}",
            "number the classes from 0",
        )
    return known.astype(np.int64)


def _label_error(where: str, needed: str, got: str, repair: str) -> InputError:
    return InputError(f"{where} cannot be used", needed=needed, got=got, repair=repair)


def _mask_error(what: str, num_nodes: int, nodes: NDArray[Any]) -> InputError:
    return InputError(
        what,
        needed=f"integer node ids, each once, or a mask of {num_nodes} booleans",
        got=f"{nodes.dtype} of shape {list(nodes.shape)}",
        repair="give node ids or mask.astype(bool); of a table with several splits, choose one column first",
    )
