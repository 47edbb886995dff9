"""Pickles as Python 2 wrote them, with arrays and matrices as NumPy and SciPy of that time did."""

from __future__ import annotations

import struct
from collections import defaultdict
from typing import Any

import numpy as np
from scipy.sparse import csr_matrix


def pickled(value: Any, protocol: int) -> bytes:
    """The pickle of numbers, strings, lists, tuples, dictionaries, arrays and CSR matrices."""
    return (b"\x80\x02" if protocol == 2 else b"") + _value(value, protocol) + b"."


def _value(value: Any, protocol: int) -> bytes:
    if value is None:
        return b"N"
    if isinstance(value, bytes):
        return _bytes(value, protocol)
    if isinstance(value, (bool, int, np.integer)):
        return _integer(int(value), protocol)
    if isinstance(value, tuple):
        return b"(" + b"".join(_value(item, protocol) for item in value) + b"t"
    if isinstance(value, list):
        return b"(l" + b"".join(_value(item, protocol) + b"a" for item in value)
    if isinstance(value, dict):
        grows = isinstance(value, defaultdict)
        start = _reduced("collections", "defaultdict", b"(c__builtin__\nlist\nt") if grows else b"(d"
        return start + b"".join(_value(k, protocol) + _value(v, protocol) + b"s" for k, v in value.items())
    if isinstance(value, csr_matrix):
        return _matrix(value, protocol)
    assert isinstance(value, np.ndarray)
    return _array(value, protocol)


def _integer(value: int, protocol: int) -> bytes:
    if protocol == 0 or not -(2**31) <= value < 2**31:
        return f"L{value}L\n".encode() if abs(value) >= 2**31 else f"I{value}\n".encode()
    return b"K" + bytes([value]) if 0 <= value < 256 else b"J" + struct.pack("<i", value)


def _bytes(value: bytes, protocol: int) -> bytes:
    if protocol == 0:
        return b"S" + repr(value)[1:].encode("latin1") + b"\n"
    return b"U" + bytes([len(value)]) + value if len(value) < 256 else b"T" + struct.pack("<i", len(value)) + value


def _reduced(module: str, name: str, arguments: bytes) -> bytes:
    return f"c{module}\n{name}\n".encode() + arguments + b"R"


def _dtype(dtype: np.dtype[Any], protocol: int) -> bytes:
    made = _reduced("numpy", "dtype", _value((dtype.str[1:].encode(), 0, 1), protocol))
    order = dtype.str[:1].encode()
    return made + _value((3, order, None, None, None, -1, -1, 0), protocol) + b"b"


def _array(value: np.ndarray, protocol: int) -> bytes:
    start = b"(cnumpy\nndarray\n" + _value((0,), protocol) + _value(b"b", protocol) + b"t"
    state = b"(" + _value(1, protocol) + _value(value.shape, protocol) + _dtype(value.dtype, protocol)
    state += _value(0, protocol) + _value(value.tobytes(), protocol) + b"t"
    return _reduced("numpy.core.multiarray", "_reconstruct", start) + state + b"b"


def _matrix(value: csr_matrix, protocol: int) -> bytes:
    start = b"(cscipy.sparse.csr\ncsr_matrix\nc__builtin__\nobject\nNt"
    state = {
        b"_shape": tuple(value.shape),
        b"maxprint": 50,
        b"data": value.data,
        b"indices": value.indices,
        b"indptr": value.indptr,
    }
    return _reduced("copy_reg", "_reconstructor", start) + _value(state, protocol) + b"b"
