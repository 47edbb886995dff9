"""Sets of small numbers as bits, in compiled kernels: a set knows what it has already, and gives it back in order.

A set is two arrays: the bits of its numbers, 64 to a word, and a bit for each of these words that is not 0, 64 to a
group. So a set of few numbers is walked in little time, however large they are. It is empty whenever no kernel uses it.

Where all positions in an array are known to be 0 or more, kernels say so with ``uint64``: else each costs a test.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from outgrow.ops.backend import inlined, intrinsic, sequential

Words = NDArray[np.uint64]
Bits = tuple[Words, Words]

WORD_BITS = 64
GROUP_BITS = WORD_BITS * WORD_BITS
ONE = np.uint64(1)
_WORD_SHIFT, _WORD_MASK = np.uint64(6), np.uint64(63)


def new_bits(most: int) -> Bits:
    """An empty set of numbers below ``most``."""
    words = -(-most // WORD_BITS)
    return np.zeros(words, dtype=np.uint64), np.zeros(-(-words // WORD_BITS), dtype=np.uint64)


@intrinsic
def scaled(context: Any, hashed: Any, count: Any) -> Any:
    """A number in ``[0, count)`` from 64 random bits: the upper half of the 128 bits of their product, both uint64."""

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        wide = ir.IntType(2 * WORD_BITS)
        product = builder.mul(*(builder.zext(value, wide) for value in given))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, WORD_BITS)), ir.IntType(WORD_BITS))

    return types.uint64(types.uint64, types.uint64), emit


@intrinsic
def lowest(context: Any, word: Any) -> Any:
    """Position of the lowest bit that is 1, as int64; the word, uint64, must not be 0."""

    def emit(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit


@inlined
def has(words: Words, start: int, number: np.uint64) -> bool:
    """Whether a number is in the set whose words begin at ``start``."""
    return bool((words[np.uint64(start) + (number >> _WORD_SHIFT)] >> (number & _WORD_MASK)) & ONE)


@inlined
def add(words: Words, start: int, number: np.uint64) -> np.uint64:
    """Put a number into the set whose words begin at ``start``; returns the number of its word, from there."""
    place = number >> _WORD_SHIFT
    words[np.uint64(start) + place] |= ONE << (number & _WORD_MASK)
    return place


@inlined
def note(groups: Words, place: np.uint64) -> None:
    """Say that a word is no longer 0."""
    groups[place >> _WORD_SHIFT] |= ONE << (place & _WORD_MASK)


@sequential
def move_out(words: Words, groups: Words, most: int, origin: int, out: NDArray[np.int64], at: int) -> int:
    """Write the numbers of a set, all below ``most``, to ``out`` from ``at``, ascending, and leave the set empty.

    ``origin`` is added to each. Returns the position after the last.
    """
    for g in range((most + GROUP_BITS - 1) // GROUP_BITS):
        group = groups[g]
        groups[g] = 0
        while group:
            place = g * WORD_BITS + lowest(group)
            group &= group - ONE
            word = words[place]
            words[place] = 0
            while word:
                out[at] = origin + place * WORD_BITS + lowest(word)
                word &= word - ONE
                at += 1
    return at
