"""Readers of tables that are broken on purpose: what silently loses or changes ids, rows or columns."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest import mock

from outgrow.graph.readers.tables import (
    edge_batches,
    edge_roles,
    id_columns,
    matrix_market,
    text_layout,
    text_table,
)
from outgrow.graph.readers.tables.id_encoder import IdEncoder
from outgrow.graph.readers.tables.text_table import TextTable


@contextmanager
def leading_zeros_are_lost() -> Iterator[None]:
    """Ids such as 007 are read as the integer 7."""
    with (
        mock.patch.object(id_columns, "_LEADING_ZERO", re.compile("never")),
        mock.patch.object(TextTable, "_check_leading_zeros"),
    ):
        yield


@contextmanager
def hashtags_are_comments() -> Iterator[None]:
    """Rows whose first id begins with a mark of comments are dropped."""
    with mock.patch.object(text_table, "_CLEAR_COMMENT", text_table._COMMENT):
        yield


@contextmanager
def first_row_is_a_header() -> Iterator[None]:
    """The first edge of a file without header is taken for names of columns."""

    def detect(*given: Any, **options: Any) -> Any:
        made = text_layout.detect_layout(*given, **options)
        return made and made._replace(header=made.header or 1)

    with mock.patch.object(text_table, "detect_layout", detect):
        yield


@contextmanager
def ratings_are_weights() -> Iterator[None]:
    """A column that may be a weight is read as one."""
    roles = edge_roles.assign_column_roles

    def assign(names: Any) -> Any:
        found = roles(names)
        return {**found, "weight": [*found["weight"], *(name for name in names if name.endswith("score"))]}

    with mock.patch.object(edge_roles, "assign_column_roles", assign):
        yield


@contextmanager
def fractions_are_cut_off() -> Iterator[None]:
    """Ids such as 1.5 are read as 1."""

    whole = id_columns.to_integer_ids

    def cut(values: Any) -> tuple[Any, int]:
        made, bad = whole(values)
        return (made, -1) if bad >= 0 and "." in str(values[bad]) else (made, bad)

    with mock.patch.object(edge_batches, "to_integer_ids", cut):
        yield


@contextmanager
def one_half_of_a_matrix() -> Iterator[None]:
    """Of a symmetric matrix only the entries in the file are edges."""
    with mock.patch.object(matrix_market, "_mirror", lambda arrays: arrays):
        yield


@contextmanager
def missing_values_are_zero() -> Iterator[None]:
    """A row without a weight has the weight 0."""

    def fill(values: Any, where: Any) -> Any:
        return values.fill_null(0).to_numpy(zero_copy_only=False).astype("float32")

    with mock.patch.object(edge_batches, "_to_numbers", fill):
        yield


@contextmanager
def new_ids_by_column() -> Iterator[None]:
    """New ids get numbers column by column, so that these depend on how rows come in batches."""

    right = IdEncoder.encode_columns

    def encode(encoder: IdEncoder, columns: Any) -> Any:
        return [numbers for column in columns for numbers in right(encoder, [column])]

    with mock.patch.object(IdEncoder, "encode_columns", encode):
        yield


MUTANTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    each.__name__: each
    for each in (
        leading_zeros_are_lost,
        hashtags_are_comments,
        first_row_is_a_header,
        ratings_are_weights,
        fractions_are_cut_off,
        one_half_of_a_matrix,
        missing_values_are_zero,
        new_ids_by_column,
    )
}
