"""Columns of edge tables that are features of edges: numbers, lists of numbers, and categories as codes."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from outgrow.core.errors import InputError
from outgrow.core.graph_schema import EdgeFeatureColumn
from outgrow.graph.node_ids import ArrowArray
from outgrow.graph.readers.tables.column_types import shorten_name
from outgrow.graph.readers.tables.id_columns import missing_value_error
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.node_features import FeatureColumn, list_widths, read_number_rows
from outgrow.graph.readers.tables.node_roles import expand_patterns, has_number_lists, has_texts, mark_numbers
from outgrow.graph.readers.tables.table import DataType, RecordBatch, Table

_CATEGORY = ":category"
_SHOWN_CATEGORIES = 20
_MOST_NAMES = 1 << 16
# Whole numbers up to this one are exact in float32, in which codes stand beside numbers.
_LARGEST_CODE = 2**24


def find_edge_features(table: Table, wanted: Sequence[str]) -> dict[str, bool]:
    """Return the columns of features, and of each whether the user says that it is one of categories.

    Args:
        table: The edge table.
        wanted: Names of columns, patterns such as ``f_*``, or numbers of columns without names; ``kind:category`` says
            that the numbers of ``kind`` are categories.

    Raises:
        InputError: There is no such column.
    """
    found: dict[str, bool] = {}
    for each in wanted:
        name = each.strip()
        told = name not in table.names and name.endswith(_CATEGORY)
        name = name.removesuffix(_CATEGORY) if told else name
        found |= dict.fromkeys(expand_patterns(table, [name], "--edge-features"), told)
    return found


def has_feature_column(table: Table, wanted: str) -> bool:
    """Whether a table has a column that is named, or one that fits a pattern, as `find_edge_features` takes it."""
    name = wanted.strip()
    plain = name.removesuffix(_CATEGORY)
    return name in table.names or any(fnmatchcase(each, plain) for each in table.names)


@final
class EdgeFeatureReader:
    """Reader of the columns of features of one edge table.

    Texts are categories, whose codes are numbers from 0 in the order in which they first occur; a row without one has
    the category of the empty text. Integers that are told to be categories are codes as they are. Numbers are float32
    and must be finite.

    Args:
        table: The edge table; its first rows tell the types of columns.
        columns: The columns, and whether each is told to be one of categories.
        encoders: Encoder of the categories of each column, to which those of new columns are added: tables of one
            graph share them.
    """

    def __init__(
        self, table: Table, columns: Mapping[str, bool], encoders: MutableMapping[str, IdEncoder] | None = None
    ) -> None:
        self._table = table
        self._told = dict(columns)
        self._encoders = {} if encoders is None else encoders
        self._largest: dict[str, int] = {}

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(self._told)

    @property
    def has_categories(self) -> bool:
        """Whether any column is one of categories."""
        return bool(self._texts or self._codes)

    @property
    def all_types(self) -> dict[str, DataType | None]:
        """Arrow type that each column is read as; None for its own."""
        import pyarrow as pa

        # A column that begins with whole numbers may go on with others.
        open_numbers = (pa.int64(), pa.float64(), pa.null())
        chosen: dict[str, DataType | None] = dict.fromkeys(self.names)
        chosen |= {name: pa.float64() for name, kind in self._types.items() if kind in open_numbers}
        chosen |= dict.fromkeys(self._codes, pa.int64())
        return chosen | dict.fromkeys(self._texts, pa.large_string())

    @property
    def sizes(self) -> tuple[int, ...]:
        """Number of categories of each column of `encode_rows`, 0 for numbers; known once all rows are read."""
        return tuple(
            size
            for name in self.names
            for size in (
                self._count_categories(name) if name in self._texts | self._codes else (0,) * self._width(name)
            )
        )

    def _count_categories(self, name: str) -> tuple[int, ...]:
        return (len(self._encoders[name]) if name in self._texts else self._largest.get(name, -1) + 1,)

    def list_columns(self) -> tuple[EdgeFeatureColumn, ...]:
        """Return the names of the columns and categories, once all rows are read; nothing if these are too many."""
        sizes = [self._count_categories(name)[0] for name in (*self._texts, *self._codes)]
        if sum(sizes) > _MOST_NAMES:
            return ()
        return tuple(column for name in self.names for column in self._name_columns(name))

    def _name_columns(self, name: str) -> list[EdgeFeatureColumn]:
        if name in self._texts:
            return [EdgeFeatureColumn(name, tuple(str(word) for word in self._encoders[name].finish()))]
        if name in self._codes:
            return [EdgeFeatureColumn(name, tuple(map(str, range(self._count_categories(name)[0]))))]
        if name in self._widths:
            return [EdgeFeatureColumn(f"{name}[{at}]") for at in range(self._widths[name])]
        return [EdgeFeatureColumn(name)]

    def encode_rows(self, batch: RecordBatch, row: int) -> NDArray[Any]:
        """Return ``[n, C]`` features: int32 if all columns are categories, else float32.

        Args:
            batch: The rows, these columns among theirs.
            row: Number of the first one in the table.

        Raises:
            InputError: A value that is missing, not finite or of another type, with its row and column.
        """
        parts: list[NDArray[Any]] = []
        for name in self.names:
            if name in self._texts:
                parts.append(self._encode_texts(name, batch.column(name))[:, None])
            elif name in self._codes:
                parts.append(self._take_codes(name, batch.column(name), row)[:, None])
            else:
                column = FeatureColumn(name=name, first=0, width=self._width(name))
                parts.append(read_number_rows(self._table, column, batch.column(name), row, np.dtype(np.float32)))
        coded = len(self._texts | self._codes) == len(self._told)
        return np.concatenate(parts, axis=1, dtype=np.int32 if coded else np.float32, casting="unsafe")

    def describe_columns(self) -> str:
        """Return the names of the columns and, of few categories, what each code stands for."""
        shown = []
        for name in self.names:
            encoder = self._encoders.get(name) if name in self._texts else None
            words = "" if encoder is None or len(encoder) > _SHOWN_CATEGORIES else _list_codes(encoder)
            shown.append(f"{shorten_name(name)}{words}")
        return ", ".join(shown)

    @cached_property
    def _types(self) -> dict[str, DataType]:
        import pyarrow as pa

        for batch in self._table.read_batches(self.names):
            return {field.name: field.type for field in batch.schema}
        return dict.fromkeys(self.names, pa.float64())

    @cached_property
    def _texts(self) -> frozenset[str]:
        """The columns of texts."""
        from pyarrow import types

        kinds = self._types.items()
        found = [
            name for name, kind in kinds if has_texts(kind) or types.is_binary(kind) or types.is_large_binary(kind)
        ]
        self._refuse_mixed([name for name in found if not self._told[name]])
        for name in found:
            self._encoders.setdefault(name, IdEncoder())
        return frozenset(found)

    def _refuse_mixed(self, names: Sequence[str]) -> None:
        """Refuse columns of texts most of which are numbers: one wrong row would make categories of them."""
        for batch in self._table.read_batches(names) if names else ():
            for name in names:
                numbers, empty = mark_numbers(batch.column(name))
                others = np.flatnonzero(~numbers & ~empty)
                if len(others) and 2 * int(numbers.sum()) > len(batch):
                    raise InputError(
                        f"{self._table.locate_row(int(others[0]))}: the column {shorten_name(name)} has a text among "
                        "numbers",
                        needed="numbers in every row, or texts of which most are no numbers",
                        got=f"numbers in {int(numbers.sum()):,} of the first {len(batch):,} rows",
                        repair=f"correct the row; or take its values as texts: --edge-features {name}{_CATEGORY}",
                    )
            # The rows that told the types.
            return

    @cached_property
    def _codes(self) -> frozenset[str]:
        """The columns of integers that are codes."""
        from pyarrow import types

        found = frozenset(name for name, told in self._told.items() if told and name not in self._texts)
        for name in found:
            kind = self._types[name]
            if not (types.is_integer(kind) or types.is_boolean(kind) or types.is_null(kind)):
                raise InputError(
                    f"{self._table.path}: the column {shorten_name(name)} cannot have categories",
                    needed=f"texts or integers, for {shorten_name(name)}{_CATEGORY}",
                    got=f"values of type {str(kind)[:80]}",
                    repair="read it as numbers, or write the categories as texts",
                )
        return found

    @cached_property
    def _widths(self) -> dict[str, int]:
        return list_widths(self._table, [name for name, kind in self._types.items() if has_number_lists(kind)])

    def _width(self, name: str) -> int:
        return self._widths.get(name, 1)

    def _encode_texts(self, name: str, column: ArrowArray) -> NDArray[np.int64]:
        import pyarrow as pa

        return self._encoders[name].encode(column.cast(pa.large_string()).fill_null(""))

    def _take_codes(self, name: str, column: ArrowArray, row: int) -> NDArray[np.int64]:
        if column.null_count:
            at = int(np.argmin(np.asarray(column.is_valid())))
            raise missing_value_error(self._table.locate_row(row + at), name)
        codes: NDArray[np.int64] = column.to_numpy(zero_copy_only=False)
        bad = np.flatnonzero((codes < 0) | (codes > _LARGEST_CODE))
        if len(bad):
            raise InputError(
                f"{self._table.locate_row(row + int(bad[0]))}: the column {shorten_name(name)} has no code",
                needed=f"integers from 0 to {_LARGEST_CODE} without gaps",
                got=f"{codes[bad[0]]}",
                repair="number the categories from 0, or write them as texts",
            )
        self._largest[name] = max(self._largest.get(name, -1), int(codes.max(initial=-1)))
        return codes


def _list_codes(encoder: IdEncoder) -> str:
    words = (shorten_name(str(word)) for word in encoder.finish())
    return f" ({', '.join(f'{code} {word!r}' for code, word in enumerate(words))})"
