"""Hashes of texts, and the search of texts by their hashes and of integers.

Texts lie one after the other in an array of bytes, UTF-8; text ``i`` is ``data[offsets[i]:offsets[i + 1]]``, as in
Apache Arrow's large strings. The hash folds words of eight bytes by `hash64`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from outgrow.ops.backend import parallel_kernel, prange, serial_kernel
from outgrow.ops.kernels.numerics import load_word
from outgrow.ops.rng import hash64

Offsets = NDArray[np.int64]
Bytes = NDArray[np.uint8]
Hashes = NDArray[np.uint64]

_BYTE_BITS = np.uint64(8)
_WORD = 8


@serial_kernel
def hash_bytes(data: Bytes, first: int, last: int) -> np.uint64:
    """Return the hash of the bytes ``first`` to ``last - 1``."""
    hashed = hash64(np.uint64(last - first), np.uint64(0))
    at = first
    while last - at >= _WORD:
        hashed = hash64(hashed, load_word(data, at))
        at += _WORD
    if at == last:
        return hashed
    word = np.uint64(0)
    if last - first >= _WORD:
        # The last word without the bytes that have been hashed: those that are left, and zeros above them.
        word = load_word(data, last - _WORD) >> (np.uint64(_WORD - (last - at)) * _BYTE_BITS)
    else:
        for place in range(last - at):
            word |= np.uint64(data[at + place]) << (np.uint64(place) * _BYTE_BITS)
    return hash64(hashed, word)


@parallel_kernel
def hash_texts(offsets: Offsets, data: Bytes, out: Hashes) -> None:
    """Write the hash of each text to ``out``, ``[n]``."""
    for i in prange(len(out)):
        out[i] = hash_bytes(data, offsets[i], offsets[i + 1])


@serial_kernel
def equal_bytes(a: Bytes, first_a: int, b: Bytes, first_b: int, length: int) -> bool:
    """Whether two ranges of bytes of one length are equal."""
    if length < _WORD:
        for i in range(length):  # noqa: SIM110
            if a[first_a + i] != b[first_b + i]:
                return False
        return True
    for i in range(0, length - _WORD, _WORD):
        if load_word(a, first_a + i) != load_word(b, first_b + i):
            return False
    end = length - _WORD
    return bool(load_word(a, first_a + end) == load_word(b, first_b + end))


@parallel_kernel
def find_texts(
    offsets: Offsets,
    data: Bytes,
    hashes: Hashes,
    known_offsets: Offsets,
    known_data: Bytes,
    order: NDArray[Any],
    sorted_hashes: Hashes,
    out: NDArray[np.int64],
) -> None:
    """Write to ``out`` which known text equals each text, -1 for none.

    Args:
        offsets: ``[n + 1]``, of the texts to find.
        data: Their bytes.
        hashes: ``[n]``, their hashes.
        known_offsets: ``[V + 1]``, of the known texts.
        known_data: Their bytes.
        order: ``[m]``, numbers of the known texts to search, ascending by hash.
        sorted_hashes: ``[m]``, their hashes.
        out: ``[n]``.
    """
    for i in prange(len(out)):
        out[i] = -1
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if sorted_hashes[middle] < hashes[i]:
                low = middle + 1
            else:
                high = middle
        length = offsets[i + 1] - offsets[i]
        while low < len(order) and sorted_hashes[low] == hashes[i]:
            known = order[low]
            first = known_offsets[known]
            if known_offsets[known + 1] - first == length and equal_bytes(known_data, first, data, offsets[i], length):
                out[i] = known
                break
            low += 1


@parallel_kernel
def find_integers(
    wanted: NDArray[np.int64], values: NDArray[np.int64], order: NDArray[Any], out: NDArray[np.int64]
) -> None:
    """Write to ``out`` which of some values equals each number, -1 for none.

    Args:
        wanted: ``[n]``.
        values: ``[V]``.
        order: ``[m]``, positions of the values to search, ascending by value.
        out: ``[n]``.
    """
    for i in prange(len(out)):
        out[i] = -1
        low, high = 0, len(order)
        while low < high:
            middle = (low + high) // 2
            if values[order[middle]] < wanted[i]:
                low = middle + 1
            else:
                high = middle
        if low < len(order) and values[order[low]] == wanted[i]:
            out[i] = order[low]
