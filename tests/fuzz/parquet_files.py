"""Edge tables in parquet, valid and not."""

from __future__ import annotations

import decimal
import io
from dataclasses import replace
from random import Random
from typing import Any

import pyarrow as pa
from cases import ACCEPTED, REFUSED, Case, Kind
from mutations import changed
from pyarrow import parquet

_SRC, _DST = [0, 1, 2, 2, 4, 3], [1, 2, 0, 1, 4, 0]
_LISTS = [[1], [2, 3], [], [4], [5], [6]]
_TREES = [{"src": 1, "dst": 2}] * 6


def _table(table: Any, **how: Any) -> bytes:
    whole = io.BytesIO()
    parquet.write_table(table if isinstance(table, pa.Table) else pa.table(table), whole, **how)
    return whole.getvalue()


def _plain(**more: Any) -> dict[str, Any]:
    return {"src": _SRC, "dst": _DST, **more}


def seeds() -> list[Case]:
    """Several types of columns, packings, pages and options."""
    small = _plain(src=pa.array(_SRC, pa.uint8()), weight=pa.array([0.5] * 6, pa.float16()))
    repeated = pa.array(_SRC).dictionary_encode()
    forms: dict[str, tuple[bytes, dict[str, Any]]] = {
        "plain": (_table(_plain()), {}),
        "not packed": (_table(_plain(), compression="none", use_dictionary=False), {"num_nodes": 7}),
        "small types": (_table(small, compression="gzip"), {}),
        "weight and type": (_table(_plain(weight=[1, 2, 3, 4, 5, 6], type=pa.array([0, 1] * 3, pa.int8()))), {}),
        "other columns": (_table(_plain(note=list("abcdef"), lists=_LISTS, tree=_TREES), compression="zstd"), {}),
        "any ids": (_table(_plain(src=[-(2**63), 2**63 - 1, 7, 7, 0, 9])), {"relabel": True}),
        "columns by name": (_table({"a": _SRC, "b": _DST}), {"columns": {"src": "a", "dst": "b"}}),
        "groups of rows": (_table({"src": _SRC * 50, "dst": _DST * 50}, row_group_size=64, version="1.0"), {}),
        "pages of version 2": (_table(_plain(), data_page_version="2.0", compression="lz4", write_page_index=True), {}),
        "delta": (_table(_plain(), use_dictionary=False, column_encoding="DELTA_BINARY_PACKED"), {}),
        "dictionary": (_table(pa.table({"src": repeated, "dst": _DST})), {}),
        "names": (_table({"src": list("abcdea"), "dst": _DST, "type": list("xyxyxy")}), {}),
        "checksums": (_table(_plain(), write_page_checksum=True, compression="brotli"), {}),
    }
    return [
        Case(main="e.parquet", files={"e.parquet": data}, options=options, expected=ACCEPTED, note=note, unpacked=9000)
        for note, (data, options) in forms.items()
    ]


def _odd_columns() -> dict[str, Any]:
    return {
        "words": list("abcdef"),
        "bytes": [b"\xff"] * 6,
        "booleans": [True, False] * 3,
        "lists": _LISTS,
        "trees": _TREES,
        "days": pa.array([1] * 6, pa.date32()),
        "times": pa.array([1] * 6, pa.timestamp("ns", "UTC")),
        "decimals": [decimal.Decimal("1.5")] * 6,
        "decimals without fraction": pa.array([decimal.Decimal(1)] * 6, pa.decimal128(38, 0)),
        "nothing": pa.nulls(6),
        "some nothing": [None, 1, 2, None, 3, 4],
        "floats": [0.0, 1.0, 2.0, float("nan"), 1e30, 0.5],
        "words again and again": pa.array(["x" * 1000] * 6).dictionary_encode(),
        "ids of the dictionary": pa.array([None, 1, 2, None, 3, 4]).dictionary_encode(),
        "fixed bytes": pa.array([b"12345678"] * 6, pa.binary(8)),
        "maps": pa.array([[("a", 1)]] * 6, pa.map_(pa.string(), pa.int64())),
        "uint64": pa.array([2**64 - 1] * 6, pa.uint64()),
        "lengths of time": pa.array([1] * 6, pa.duration("s")),
    }


def hostile() -> list[Case]:
    """Tables that somebody has thought of."""
    tables = {f"a column of {note}": _plain(src=values) for note, values in _odd_columns().items()}
    tables |= {f"weights that are {note}": _plain(weight=values) for note, values in _odd_columns().items()}
    tables["the largest id"] = {"src": [0], "dst": [2**32 - 2]}
    tables["the largest relation"] = {"src": [0], "dst": [1], "type": [2**30 - 1]}
    made = [Case(main="e.parquet", files={"e.parquet": _table(table)}, note=note) for note, table in tables.items()]
    big = pa.DictionaryArray.from_arrays(pa.array([0] * 120_000, pa.int32()), pa.array(["x" * 100_000]))
    twice = pa.table([_SRC, _DST, _SRC], names=["a", "b", "a"])
    dots = pa.table([_SRC, _DST, _TREES], names=["tree.src", "dst", "tree"])
    files = {
        "12 GB of one word": _table(pa.table({"src": big, "dst": [0] * 120_000})),
        "one name twice": _table(twice),
        "names with dots": _table(dots),
        "no rows": _table(pa.table({"src": pa.array([], pa.int64()), "dst": pa.array([], pa.int64())})),
        "no columns": _table(pa.table({})),
        "a long name": _table(_plain(**{"x" * 1_000_000: _SRC})),
        "2,000 columns": _table(_plain(**{f"column {at}": _SRC[:6] for at in range(2000)})),
        "nothing": b"",
        "its first letters": b"PAR1" * 2,
        "a footer of 2^31": b"PAR1" + b"\xff\xff\xff\x7fPAR1",
        "a secret footer": b"PARE" + b"\0" * 20 + b"\x10\0\0\0PARE",
    }
    made += [Case(main="e.parquet", files={"e.parquet": data}, note=note) for note, data in files.items()]
    named = {"columns": {"src": "0", "dst": "1", "weight": "2"}}
    made += [replace(case, options=named, note=f"{case.note}, by name") for case in made[-11:-7]]
    for value, note in (({"src": "a"}, "no such name"), ({"src": "9"}, "no such number"), ({"u": "src"}, "no role")):
        made.append(replace(seeds()[0], options={"columns": value}, expected=REFUSED, note=note))
    return made


def mutated(draw: Random, case: Case, others: list[Case]) -> Case:
    """Bytes, more often of the footer and of the heads of pages; and options of another input."""
    data = case.files[case.main]
    if len(data) > 1 << 16:
        case = draw.choice(others)
        data = case.files[case.main]
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little") if len(data) > 12 else 0
    first, last = draw.choice(((0, len(data)), (max(0, footer), max(0, len(data) - 8)), (4, 60), (4, max(5, footer))))
    new = data[:first] + changed(draw, data[first:last], [draw.choice(others).files[case.main]]) + data[last:]
    if draw.random() < 0.3 and len(new) != len(data) and len(new) > 12:  # the footer is found again
        length = len(new) - 8 - max(0, footer + (len(new) - len(data) if last <= footer else 0))
        new = new[:-8] + max(0, length).to_bytes(4, "little") + b"PAR1"
    options = draw.choice(others).options if draw.random() < 0.1 else case.options
    return replace(case.with_file(case.main, new, "bytes"), options=options)


KIND = Kind(seeds, hostile, mutated)
