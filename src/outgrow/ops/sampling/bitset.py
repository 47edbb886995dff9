"""Sets of ids as bits.

A set is an array of 64-bit words: number ``i`` is bit ``i % 64`` of word ``i // 64``. The sets of the
sampling kernels (`Bits`) have a second array, with a bit for each word that is not 0, 64 to a group: a set
with few numbers is read quickly, however large they are. Such a set is empty whenever no kernel uses it.

Positions in arrays that cannot be negative are ``uint64``: for signed ones Numba tests each for negative
indexing.

Letters: ``W`` words of a set, ``A`` and ``B`` sets, ``N`` ids.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numpy.typing import NDArray

from outgrow.ops.backend import device_function, intrinsic, num_threads, parallel_kernel, prange, serial_kernel

Array = NDArray[Any]
Words = NDArray[np.uint64]

WORD_BITS = 64
_ONE, _SHIFT, _LOW = np.uint64(1), np.uint64(6), np.uint64(63)
_TILE_WORDS = 64
"""Words that are compared at a time: a tile of all sets should stay in the cache."""


def num_words(count: int) -> int:
    """Return ``W`` of sets of numbers below ``count``."""
    return -(-count // WORD_BITS)


def ranks_before_words(words_W: Words) -> NDArray[np.int64]:
    """Return ``[W]``: how many numbers of a set come before each word."""
    sizes = np.bitwise_count(words_W).astype(np.int64)
    return np.cumsum(sizes) - sizes


@intrinsic
def _count_ones(context: Any, word: Any) -> Any:
    """Return the number of bits of a word that are 1."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.ctpop(given[0])

    return types.uint64(types.uint64), emit_llvm


@serial_kernel
def set_bits(ids_N: Array, words_W: Words) -> None:
    """Add numbers to a set."""
    for i in range(len(ids_N)):
        number = np.uint64(ids_N[i])
        words_W[number >> _SHIFT] |= _ONE << (number & _LOW)


@serial_kernel
def set_rank_bits(ids_N: Array, sample_W: Words, before_W: NDArray[np.int64], words_W: Words) -> None:
    """Add to a set the ranks of those numbers that are in a sample: how many of the sample are smaller.

    Args:
        ids_N: ``[N]`` integer.
        sample_W: The sample, a set.
        before_W: Result of `ranks_before_words` for it.
        words_W: The set, changed.
    """
    for i in range(len(ids_N)):
        number = np.uint64(ids_N[i])
        word, bit = sample_W[number >> _SHIFT], _ONE << (number & _LOW)
        # Rank within the sample: the ones before the word, and those below the bit in it.
        if word & bit:
            rank = np.uint64(before_W[number >> _SHIFT]) + _count_ones(word & (bit - _ONE))
            words_W[rank >> _SHIFT] |= _ONE << (rank & _LOW)


@serial_kernel
def count_bits(words_W: Words) -> int:
    """Return the size of a set."""
    count = np.uint64(0)
    for word in words_W:
        count += _count_ones(word)
    return int(count)


@serial_kernel
def count_difference(words_W: Words, others_W: Words) -> int:
    """Return how many numbers of a set are not in another."""
    count = np.uint64(0)
    for w in range(len(words_W)):
        count += _count_ones(words_W[w] & ~others_W[w])
    return int(count)


def count_intersections(sets_AW: Words, others_BW: Words) -> NDArray[np.int64]:
    """Return ``[A, B]``: how many numbers each of some sets shares with each of some others.

    Words of 0 among ``sets_AW`` are skipped: pass the sparser sets there.
    """
    # Each thread counts its tiles in a table of its own; sums of integers do not depend on how tiles were
    # assigned.
    tiles = -(-sets_AW.shape[1] // _TILE_WORDS)
    lanes = max(1, min(num_threads(), tiles))
    counts = np.zeros((lanes, len(sets_AW), len(others_BW)), dtype=np.int64)
    _count_intersections(sets_AW, others_BW, tiles, counts)
    total: NDArray[np.int64] = counts.sum(axis=0)
    return total


@parallel_kernel
def _count_intersections(sets: Words, others: Words, tiles: int, counts: Array) -> None:
    lanes = len(counts)
    for lane in prange(lanes):
        # A transposed tile: the innermost loop runs over consecutive words, so it is vectorised.
        transposed = np.empty((_TILE_WORDS, len(others)), dtype=np.uint64)
        for tile in range(tiles * lane // lanes, tiles * (lane + 1) // lanes):
            first = tile * _TILE_WORDS
            width = min(_TILE_WORDS, sets.shape[1] - first)
            for b in range(len(others)):
                for w in range(width):
                    transposed[w, b] = others[b, first + w]
            for a in range(len(sets)):
                for w in range(width):
                    word = sets[a, first + w]
                    if word:
                        for b in range(len(others)):
                            counts[lane, a, b] += np.int64(_count_ones(word & transposed[w, b]))


Bits = tuple[Words, Words]
GROUP_BITS = WORD_BITS * WORD_BITS
ONE = np.uint64(1)
_WORD_SHIFT, _WORD_MASK = np.uint64(6), np.uint64(63)


def empty_bitset(most: int) -> Bits:
    """Return an empty set of numbers below ``most``."""
    words = -(-most // WORD_BITS)
    return np.zeros(words, dtype=np.uint64), np.zeros(-(-words // WORD_BITS), dtype=np.uint64)


@intrinsic
def scale_to_range(context: Any, hashed: Any, count: Any) -> Any:
    """Return a number in ``[0, count)`` from 64 random bits: the upper half of their 128-bit product."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        # Multiply and shift (Lemire, 2019): the modulo of a 64-bit number takes many times longer.
        wide = ir.IntType(2 * WORD_BITS)
        product = builder.mul(*(builder.zext(value, wide) for value in given))
        return builder.trunc(builder.lshr(product, ir.Constant(wide, WORD_BITS)), ir.IntType(WORD_BITS))

    return types.uint64(types.uint64, types.uint64), emit_llvm


@intrinsic
def lowest_bit(context: Any, word: Any) -> Any:
    """Return the position of the lowest bit that is 1, as int64; the word, uint64, must not be 0."""

    def emit_llvm(context: Any, builder: Any, signature: Any, given: Any) -> Any:
        return builder.cttz(given[0], ir.Constant(ir.IntType(1), 1))

    return types.int64(types.uint64), emit_llvm


@device_function
def has_bit(words: Words, start: int, number: np.uint64) -> bool:
    """Whether a number is in the set whose words begin at ``start``."""
    return bool((words[np.uint64(start) + (number >> _WORD_SHIFT)] >> (number & _WORD_MASK)) & ONE)


@device_function
def add_bit(words: Words, start: int, number: np.uint64) -> np.uint64:
    """Add a number to the set whose words begin at ``start``; return its word, counted from there."""
    place = number >> _WORD_SHIFT
    words[np.uint64(start) + place] |= ONE << (number & _WORD_MASK)
    return place


@device_function
def mark_word(groups: Words, place: np.uint64) -> None:
    """Record that a word is no longer 0."""
    groups[place >> _WORD_SHIFT] |= ONE << (place & _WORD_MASK)


@serial_kernel
def drain_bitset(words: Words, groups: Words, most: int, origin: int, out: NDArray[np.int64], at: int) -> int:
    """Write the numbers of a set, all below ``most``, to ``out[at:]`` in ascending order and empty the set.

    ``origin`` is added to each number. Returns the position after the last.
    """
    for g in range((most + GROUP_BITS - 1) // GROUP_BITS):
        group = groups[g]
        # Emptied while it is read: clearing all words would take time in proportion to the largest degree.
        groups[g] = 0
        while group:
            place = g * WORD_BITS + lowest_bit(group)
            # Clears the lowest bit that is 1.
            group &= group - ONE
            word = words[place]
            words[place] = 0
            while word:
                out[at] = origin + place * WORD_BITS + lowest_bit(word)
                word &= word - ONE
                at += 1
    return at
