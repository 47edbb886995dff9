"""Zip files and ``.npy`` arrays: taken apart, changed in their structure, and put together again."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np
from mutations import changed, other_number

PACKING = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)


def members(data: bytes) -> dict[str, bytes]:
    """Content of each file of a zip file."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        return {name: file.read(name) for name in file.namelist()}


def zipped(parts: dict[str, bytes], packing: int = zipfile.ZIP_STORED) -> bytes:
    """A zip file of these files."""
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", packing) as file:
        for name, content in parts.items():
            file.writestr(zipfile.ZipInfo(name), content, packing)
    return whole.getvalue()


def changed_zip(draw: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """Bytes of a zip file, more often those that say what is where."""
    at = data.rfind(b"PK\x01\x02") if draw.random() < 0.5 else 0
    start = max(0, data.find(b"PK\x01\x02")) if at else 0
    return data[:start] + changed(draw, data[start:], others)


def npy(values: Any) -> bytes:
    """The bytes of an ``.npy`` file; objects are pickled."""
    whole = io.BytesIO()
    np.save(whole, values, allow_pickle=True)
    return whole.getvalue()


def npy_that_says(shape: object, dtype: object = "<i8", data: bytes = b"", *, version: int = 1) -> bytes:
    """An ``.npy`` file whose header need not be true of what follows."""
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}, }}".encode("latin1")
    width = 2 if version == 1 else 4
    text += b" " * (-(8 + width + len(text) + 1) % 64) + b"\n"
    return b"\x93NUMPY" + bytes([version, 0]) + len(text).to_bytes(width, "little") + text + data


def changed_npy(draw: Random, data: bytes, others: Sequence[bytes]) -> bytes:
    """An ``.npy`` file whose header or data differ, or another array altogether."""
    way = draw.random()
    if way < 0.3:
        return draw.choice(odd_arrays())
    if way < 0.6 and len(data) > 10:
        end = 10 + int.from_bytes(data[8:10], "little")
        header = draw.choice((other_number, _other_type))(draw, data[10:end])
        if draw.random() < 0.5:
            header = header.rstrip() + b" " * (end - 11 - len(header.rstrip())) + b"\n"
        return data[:8] + (len(header) % 2**16).to_bytes(2, "little") + header + data[end:]
    end = min(len(data), 128)
    return data[:end] + changed(draw, data[end:]) if way < 0.8 else changed(draw, data, others)


def _other_type(draw: Random, header: bytes) -> bytes:
    old = header.partition(b"'descr': '")[2].partition(b"'")[0]
    return header.replace(b"'" + old + b"'", draw.choice(_TYPES), 1) if old else header


_TYPES = (b"'<i4'", b"'>i8'", b"'<u8'", b"'|b1'", b"'<f2'", b"'<f8'", b"'<f16'", b"'<c16'", b"'|O'", b"'<U0'", b"'|S0'")
_TYPES += (
    b"'<U9'",
    b"'|V8'",
    b"'<M8[ns]'",
    b"'|u1'",
    b"[('a', '<i8'), ('b', '|O')]",
    b"('<i8', (9,))",
    b"'<U999999999'",
)


def odd_arrays() -> list[bytes]:
    """Arrays that fit nowhere, or that claim more than there is."""
    real = [
        np.array(3),
        np.array(-1),
        np.array(2.5),
        np.array(np.nan),
        np.array("text"),
        np.array([]),
        np.empty((0, 3), np.int64),
        np.empty((3, 0), np.int64),
        np.empty((2, 0), np.int64),
        np.arange(6).reshape(2, 3),
        np.arange(6, dtype=">i4").reshape(2, 3, order="F"),
        np.array([2**64 - 1, 2**63], np.uint64),
        np.array([-(2**63), 2**63 - 1]),
        np.array([[0, 2**31], [2**32 - 2, 1]]),
        np.array([0, 2**30 - 1]),
        np.array([True, False]),
        np.array([np.inf, -np.inf, np.nan], np.float16),
        np.array([1e300, -1e300]),
        np.array([1j]),
        np.array(["a", "b\ud800"]),
        np.array([b"a", b"\xff"]),
        np.array(["2020-01-01"], "M8[D]"),
        np.zeros(2, [("a", "i4"), ("b", "f4")]),
        np.array([None, {}], object),
    ]
    told = [
        npy_that_says((10**11,)),
        npy_that_says((10**9,)),
        npy_that_says((2, 10**9), "<i4"),
        npy_that_says((-1,)),
        npy_that_says((2**62, 4)),
        npy_that_says((2**32, 2**32)),
        npy_that_says((10**12,), "<U0"),
        npy_that_says((10**12, 0), "<f4"),
        npy_that_says((10**12, 0), "<i8"),
        npy_that_says("(True,)", data=b"\0" * 8),
        npy_that_says((1,) * 40, data=b"\0" * 8),
        npy_that_says((1,), "<U2", b"\0\0\x11\0" * 2),
        npy_that_says((1,), "<U500000000"),
        npy_that_says("(" * 500 + ")" * 500),
        npy_that_says("(9**9**9,)"),
        npy_that_says((1,), "<i8", b"\0" * 8, version=2),
        npy_that_says((1,), "<i8", b"\0" * 8, version=3),
        b"\x93NUMPY\x02\x00\xff\xff\xff\xff{'descr'",
    ]
    return [*map(npy, real), *told]
