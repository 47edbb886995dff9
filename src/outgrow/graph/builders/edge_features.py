"""Features of edges while they are read: their form, and whether their values can be used.

Columns are numbers or codes of categories. All numbers stay as they are; all codes stay codes, one column a category,
in the narrowest type; of both, each category becomes a column of zeros and ones among the numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.user_warnings import warn_about_data
from outgrow.graph.readers.conversions import FEW_CLASSES

_FLOATS = (np.float16, np.float32, np.float64)
_LARGEST_SIZE = 2**31
"""Most categories of a column, whose codes are int32 at most."""


@dataclass(frozen=True)
class EdgeFeatureForm:
    """How a graph keeps features that are read.

    Attributes:
        sizes: Number of categories of each column that is read; 0 for numbers.
        given_dtype: Type of the features that are read.
    """

    sizes: tuple[int, ...]
    given_dtype: np.dtype[Any]

    @property
    def feature_sizes(self) -> tuple[int, ...]:
        """Number of categories of each column in the graph; empty if these are numbers."""
        return self.sizes if all(self.sizes) else ()

    @property
    def width(self) -> int:
        """``De``, the number of columns in the graph."""
        return len(self.sizes) if all(self.sizes) or not any(self.sizes) else sum(max(1, size) for size in self.sizes)

    @property
    def dtype(self) -> np.dtype[Any]:
        """Type in the graph: that of floating features, float32 of other numbers, the narrowest for codes."""
        if all(self.sizes):
            most = max(self.sizes)
            return np.dtype(np.int8 if most <= 2**7 else np.int16 if most <= 2**15 else np.int32)
        return self.given_dtype if self.given_dtype in _FLOATS else np.dtype(np.float32)

    def encode_rows(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Return ``[n, De]`` features as the graph has them, of ``[n, C]`` as they are read."""
        if all(self.sizes) or not any(self.sizes):
            return rows.astype(self.dtype, copy=False)
        out = np.zeros((len(rows), self.width), self.dtype)
        at = 0
        for column, size in enumerate(self.sizes):
            if size:
                out[np.arange(len(rows)), at + rows[:, column].astype(np.int64)] = 1
            else:
                out[:, at] = rows[:, column]
            at += max(1, size)
        return out


class EdgeFeatureCheck:
    """Check of features of edges as they pass. Final.

    Args:
        sizes: Number of categories of each column, 0 for numbers; empty if all floating columns are numbers, and codes
            go up to the largest one.
    """

    def __init__(self, sizes: tuple[int, ...]) -> None:
        self._sizes = sizes
        self._first: NDArray[Any] | None = None
        self._num_edges = 0
        self._largest: NDArray[np.int64] = np.empty(0, np.int64)
        self._bad_numbers = self._bad_codes = 0
        self._first_bad = ""

    @property
    def is_bad(self) -> bool:
        """Whether a value was wrong."""
        return bool(self._bad_numbers or self._bad_codes)

    def check_rows(self, rows: NDArray[Any] | None, first_edge: int, num_edges: int) -> None:
        """Check the features of some edges.

        Args:
            rows: ``[num_edges, C]`` floating, or integer codes; None if edges have none.
            first_edge: Number of the first of these edges in the input.
            num_edges: Number of these edges.

        Raises:
            InputError: Another form, or another one than that of the edges before.
        """
        if rows is not None:
            require_edge_feature_form(rows, num_edges)
        before = self._first
        if first_edge and (before is None) != (rows is None):
            raise _form_error("features of all edges, or of none", f"none of edge {first_edge if rows is None else 0}")
        if rows is None:
            return
        if before is None:
            self._first = rows[:0]
            self._largest = np.full(rows.shape[1], -1, np.int64)
            if self._sizes and (
                len(self._sizes) != rows.shape[1] or not 0 <= min(self._sizes) <= max(self._sizes) <= _LARGEST_SIZE
            ):
                got = f"{rows.shape[1]} columns and the sizes {', '.join(map(str, self._sizes[:8]))}"
                raise _form_error(f"a number of categories up to {_LARGEST_SIZE}, or 0, for each column", got)
        elif before.shape[1] != rows.shape[1] or before.dtype != rows.dtype:
            got = f"{rows.shape[1]} columns of {rows.dtype} from edge {first_edge}"
            raise _form_error(f"{before.shape[1]} columns of {before.dtype}, as of the edges before", got)
        if rows.dtype.kind == "f":
            self._check_numbers(rows, first_edge)
        if rows.dtype.kind in "iu" or any(self._sizes):
            self._check_codes(rows, first_edge)
        self._num_edges = first_edge + num_edges

    def finish(self, sizes: tuple[int, ...]) -> EdgeFeatureForm | None:
        """Return the form of the features, once all edges are read; None if edges have none.

        Args:
            sizes: Number of categories of each column, where that is known only now; empty otherwise.

        Raises:
            InputError: Some values are wrong.
        """
        if self._first is None:
            return None
        self._raise_errors()
        dtype = self._first.dtype
        known = self._sizes or sizes
        if dtype.kind == "f" and not any(known):
            return EdgeFeatureForm((0,) * self._first.shape[1], dtype)
        found = known or tuple(int(code) + 1 for code in self._largest)
        if not self._sizes and max(found) > max(FEW_CLASSES, self._num_edges):
            raise InputError(
                "features of edges are integers that are no codes of categories",
                needed=f"codes from 0 without gaps, below the number of edges ({self._num_edges})",
                got=f"a largest one of {max(found) - 1}",
                repair="make them floating, such as float32, if they are numbers and no categories",
            )
        _require_few_columns(found)
        if not known:
            counts = ", ".join(map(str, found[:8])) + (", ..." if len(found) > 8 else "")
            warn_about_data(
                f"features of edges are {dtype}: they are read as codes of categories, of {counts} categories; make "
                "them floating if they are numbers"
            )
        return EdgeFeatureForm(found, dtype)

    def _check_numbers(self, rows: NDArray[Any], first_edge: int) -> None:
        good = np.isfinite(rows)
        if good.all():
            return
        if not self._bad_numbers:
            row, column = divmod(int(good.argmin()), rows.shape[1])
            self._first_bad = f"{rows[row, column]} at edge {first_edge + row}, column {column}"
        self._bad_numbers += int(good.size - np.count_nonzero(good))

    def _check_codes(self, rows: NDArray[Any], first_edge: int) -> None:
        sizes = np.array(self._sizes or (np.iinfo(np.int32).max,) * rows.shape[1])
        coded = sizes > 0
        bad = coded & ((rows < 0) | (rows >= sizes))
        if rows.dtype.kind == "f":
            bad |= coded & (rows != np.floor(rows))
        if bad.any() and not self._bad_codes:
            row, column = divmod(int(bad.argmax()), rows.shape[1])
            limit = f", of {sizes[column]} categories" if self._sizes else ""
            self._first_bad = f"{rows[row, column]} at edge {first_edge + row}, column {column}{limit}"
        self._bad_codes += int(np.count_nonzero(bad))
        if not self._sizes and len(rows):
            np.maximum(self._largest, rows.max(axis=0).astype(np.int64), out=self._largest)

    def _raise_errors(self) -> None:
        if self._bad_numbers:
            raise InputError(
                "features of edges are not finite",
                needed="finite numbers",
                got=f"{self._bad_numbers} NaN or infinite values, the first is {self._first_bad}",
                repair="replace them, for example by zero or by the mean of the column",
            )
        if self._bad_codes:
            raise InputError(
                "a code among the features of edges is out of range",
                needed="codes from 0, below the number of categories of their column",
                got=f"{self._bad_codes} others, the first is {self._first_bad}",
                repair="number the categories of each column from 0; unknown ones are a category too",
            )


def require_edge_feature_form(rows: NDArray[Any], num_edges: int, name: str = "features of edges") -> None:
    """Refuse features of edges of another form than one row of numbers or codes for each edge.

    Raises:
        InputError: Not two dimensions, no columns, another number of rows than edges, or no numbers.
    """
    if rows.ndim != 2 or not rows.shape[1] or len(rows) != num_edges:
        needed = f"shape [{num_edges}, De], a row for each edge and at least one column"
        raise _form_error(needed, f"shape {list(rows.shape)}", name)
    if rows.dtype.kind not in "fiu":
        raise _form_error("floating numbers, or integers that are codes of categories", f"type {rows.dtype}", name)


def _require_few_columns(sizes: tuple[int, ...]) -> None:
    most = max(sizes)
    if not all(sizes) and most > FEW_CLASSES:
        raise InputError(
            "features of edges are numbers and too many categories",
            needed=f"at most {FEW_CLASSES} categories of a column beside numbers, each of which becomes a column",
            got=f"{most} categories",
            repair="read only the categories, which then are codes, or leave this column out",
        )


def _form_error(needed: str, got: str, name: str = "features of edges") -> InputError:
    return InputError(
        f"{name} have the wrong form",
        needed=needed,
        got=got,
        repair="give one row of floating numbers, or of codes of categories, for each edge",
    )
