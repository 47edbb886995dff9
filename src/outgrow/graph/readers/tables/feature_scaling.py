"""Scaling of columns of features, as GraphStorm's graph construction has it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, hstack

from outgrow.core.errors import InputError
from outgrow.graph.readers.matrices import Matrix
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.node_features import FeatureColumn


@dataclass(frozen=True, kw_only=True)
class FeatureScaling:
    """How a column of numbers is scaled, each of its entries on its own where it has lists.

    Attributes:
        method: ``"max_min_norm"`` (``(x - min) / (max - min)``) or ``"standard"`` (``x / sum``, as GraphStorm defines
            it: neither the mean nor the deviation).
        lowest: ``min``; None for the smallest value.
        highest: ``max``; None for the largest value.
        least: Smaller values become this one first; None for no bound.
        most: Larger values become this one first; None for no bound.
        total: ``sum``; None for the sum of the values.
    """

    method: str
    lowest: float | None = None
    highest: float | None = None
    least: float | None = None
    most: float | None = None
    total: float | None = None


def scale_features(
    features: Matrix | None, columns: Sequence[FeatureColumn], scaling: Mapping[str, FeatureScaling]
) -> Matrix | None:
    """Return features with some columns scaled.

    Args:
        features: ``[V, D]``; changed in place if they are an array that can be written to.
        columns: Where each column is among them.
        scaling: Scaling of columns by name.

    Raises:
        InputError: A column whose values are all the same, or add up to 0.
    """
    wanted = [column for column in columns if column.name in scaling]
    if features is None or not wanted:
        return features
    if isinstance(features, csr_array):
        blocks = []
        for column in columns:
            block = features[:, column.first : column.first + column.width]
            if column in wanted:
                block = csr_array(_scale(np.asarray(block.toarray()), column.name, scaling[column.name]))
            blocks.append(block)
        return csr_array(hstack(blocks, format="csr"))
    made = features if features.flags.writeable else np.array(features)
    for column in wanted:
        place = slice(column.first, column.first + column.width)
        made[:, place] = _scale(made[:, place], column.name, scaling[column.name])
    return made


def _scale(values: NDArray[Any], name: str, scaling: FeatureScaling) -> NDArray[Any]:
    bounded = np.clip(values.astype(np.float64), scaling.least, scaling.most)
    if scaling.method == "standard":
        total = bounded.sum(axis=0) if scaling.total is None else np.full(bounded.shape[1], scaling.total)
        _require_not_zero(total, name, "values that do not add up to 0")
        return np.asarray(bounded / total, values.dtype)
    lowest = bounded.min(axis=0) if scaling.lowest is None else scaling.lowest
    highest = bounded.max(axis=0) if scaling.highest is None else scaling.highest
    _require_not_zero(np.asarray(highest - lowest), name, "values that are not all the same")
    return np.asarray((bounded - lowest) / (highest - lowest), values.dtype)


def _require_not_zero(divisor: NDArray[Any], name: str, needed: str) -> None:
    if (divisor == 0).any():
        raise InputError(
            f"the column {shorten_name(name)} cannot be scaled",
            needed=needed,
            got="a division by 0",
            repair="leave out the column, or its transform",
        )
