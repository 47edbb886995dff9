"""Random tables become the graph that they were made of, whatever form they have."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import ipc, parquet

from graph.readers.test_forms_tables import edges_of
from outgrow.core.errors import InputError
from outgrow.graph.builders.in_memory import assemble_graph
from outgrow.graph.readers.tables import text_blocks
from outgrow.graph.readers.tables.edge_table import EdgeTableSource
from outgrow.graph.readers.tables.options import TableOptions

# What begins as a number could be one, of which 1.0 is 1.
NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\0"), min_size=1, max_size=12).filter(
    lambda name: name.strip() == name and name[0] not in "+-.0123456789"
)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
WEIGHTS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@st.composite
def edge_tables(draw: st.DrawFn) -> dict[str, list[Any]]:
    """Columns of a table; ids and relations are names or integers, and occur more than once."""
    count = draw(st.integers(1, 20))
    pool = draw(st.lists(draw(st.sampled_from([NAMES, INTEGERS])), min_size=1, max_size=8, unique=True))
    columns: dict[str, list[Any]] = {
        name: draw(st.lists(st.sampled_from(pool), min_size=count, max_size=count)) for name in ("src", "dst")
    }
    if draw(st.booleans()):
        known = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
        columns["relation"] = draw(st.lists(st.sampled_from(known), min_size=count, max_size=count))
    if draw(st.booleans()):
        columns["weight"] = draw(st.lists(WEIGHTS, min_size=count, max_size=count))
    order = draw(st.permutations([*columns]))
    return {name: columns[name] for name in order}


def rows_of(columns: dict[str, list[Any]]) -> list[tuple[Any, ...]]:
    """Edges as `edges_of` has them."""
    names = [name for name in ("src", "dst", "relation", "weight") if name in columns]
    return sorted(zip(*(columns[name] for name in names), strict=True))


def as_text(columns: dict[str, list[Any]], mark: str, end: str, *, quoted: bool) -> str:
    """Rows of text, in quotes as RFC 4180 has them."""

    def cell(value: Any) -> str:
        text = repr(value) if isinstance(value, float) else str(value)
        return '"' + text.replace('"', '""') + '"' if quoted and isinstance(value, str) else text

    rows = [mark.join(columns), *(mark.join(map(cell, row)) for row in zip(*columns.values(), strict=True))]
    return "".join(row + end for row in rows)


def read(path: Path, block: int = 1 << 21) -> list[tuple[Any, ...]]:
    """The edges of a table whose ids are kept."""
    with mock.patch.object(text_blocks, "BLOCK_BYTES", block):
        return edges_of(assemble_graph(EdgeTableSource(path, TableOptions(relabel=True))))


@given(
    columns=edge_tables(),
    mark=st.sampled_from(",;\t| "),
    end=st.sampled_from(["\n", "\r\n"]),
    packing=st.sampled_from(["", ".gz", ".zst"]),
    marked=st.booleans(),
    block=st.sampled_from([7, 64, 1 << 21]),
)
@settings(deadline=None, max_examples=1500)
def test_text(
    tmp_path_factory: pytest.TempPathFactory,
    columns: dict[str, list[Any]],
    mark: str,
    end: str,
    packing: str,
    marked: bool,
    block: int,
) -> None:
    data = as_text(columns, mark, end, quoted=True).encode("utf-8-sig" if marked else "utf-8")
    path = tmp_path_factory.mktemp("text") / f"e.csv{packing}"
    path.write_bytes(
        gzip.compress(data) if packing == ".gz" else pa.compress(data, "zstd", asbytes=True) if packing else data
    )
    assert read(path, block) == rows_of(columns)


@given(
    columns=edge_tables(),
    form=st.sampled_from(["parquet", "arrow", "arrows"]),
    kinds=st.data(),
    rows=st.integers(1, 9),
)
@settings(deadline=None, max_examples=1500)
def test_types(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[Any]], form: str, kinds: st.DataObject, rows: int
) -> None:
    arrays = {}
    for name, values in columns.items():
        array = pa.array(values)
        if pa.types.is_string(array.type):
            array = array.cast(kinds.draw(st.sampled_from([pa.string(), pa.large_string(), pa.binary()])))
        elif pa.types.is_integer(array.type) and name != "weight":
            fitting = [kind for kind in (pa.int8(), pa.int32(), pa.uint16(), pa.uint64()) if fits(values, kind)]
            array = array.cast(kinds.draw(st.sampled_from([pa.int64(), *fitting])))
        arrays[name] = array.dictionary_encode() if kinds.draw(st.booleans()) and name != "weight" else array
    made, path = pa.table(arrays), tmp_path_factory.mktemp("types") / f"e.{form}"
    if form == "parquet":
        parquet.write_table(made, path, row_group_size=rows)
    else:
        with (ipc.new_file if form == "arrow" else ipc.new_stream)(path, made.schema) as file:
            file.write_table(made.unify_dictionaries(), max_chunksize=rows)
    assert read(path) == rows_of(columns)


def fits(values: list[int], kind: Any) -> bool:
    """Whether integers fit a type."""
    info = np.iinfo(kind.to_pandas_dtype())
    return info.min <= min(values) and max(values) <= info.max


@given(columns=edge_tables(), encoding=st.sampled_from(["utf-16", "utf-16-le", "latin-1", "cp1252"]))
@settings(deadline=None, max_examples=1500)
def test_other_encodings_are_refused_or_make_no_difference(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[Any]], encoding: str
) -> None:
    try:
        data = as_text(columns, ",", "\n", quoted=True).encode(encoding)
    except UnicodeEncodeError:
        return
    path = tmp_path_factory.mktemp("encoding") / "e.csv"
    path.write_bytes(data)
    if data == as_text(columns, ",", "\n", quoted=True).encode():
        assert read(path) == rows_of(columns)
        return
    try:
        data.decode()
    except UnicodeDecodeError:
        refused = True
    else:
        refused = encoding.startswith("utf-16")
    # By chance, bytes of one encoding may be right in another.
    if refused:
        with pytest.raises(InputError, match="not UTF-8"):
            read(path)


@given(columns=edge_tables(), block=st.integers(1, 40))
@settings(deadline=None, max_examples=1500)
def test_nodes_are_numbered_the_same_in_every_form(
    tmp_path_factory: pytest.TempPathFactory, columns: dict[str, list[Any]], block: int
) -> None:
    folder = tmp_path_factory.mktemp("order")
    (folder / "e.csv").write_text(as_text(columns, ",", "\n", quoted=True), newline="")
    parquet.write_table(pa.table(columns), folder / "e.parquet", row_group_size=3)
    with mock.patch.object(text_blocks, "BLOCK_BYTES", block):
        graphs = [
            assemble_graph(EdgeTableSource(folder / name, TableOptions(relabel=True)))
            for name in ("e.csv", "e.parquet")
        ]
    ends = [value for row in zip(columns["src"], columns["dst"], strict=True) for value in row]
    order = list(dict.fromkeys(ends)) if isinstance(ends[0], str) else sorted({*ends})
    assert [list(graph.ids or ()) for graph in graphs] == [order, order]
