"""Quantiles of degrees, in memory that does not grow with the graph."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

PERCENTS = (0, 25, 50, 75, 90, 99, 100)
_BLOCK = 1 << 20
_LARGE = 1 << 16


def find_degree_quantiles(indptr: NDArray[np.int64]) -> dict[str, int]:
    """Return quantiles of the degrees of nodes, by percentage: the least degree that so many of the nodes have at most.

    Args:
        indptr: ``[V + 1]`` int64; the edges of node ``v`` are ``indptr[v]`` to ``indptr[v + 1]``. May be mapped.
    """
    blocks = range(0, len(indptr) - 1, _BLOCK)
    return find_count_quantiles(np.diff(indptr[first : first + _BLOCK + 1]) for first in blocks)


def find_count_quantiles(blocks: Iterator[NDArray[np.int64]]) -> dict[str, int]:
    """Return quantiles of whole numbers of at least 0 that come in blocks; see `find_degree_quantiles`."""
    # Exact: most degrees are counted in a table, and those beyond it are so few that they are kept.
    counts = np.zeros(_LARGE, np.int64)
    large = [np.empty(0, np.int64)]
    for block in blocks:
        counts += np.bincount(block[block < _LARGE], minlength=_LARGE)
        large.append(block[block >= _LARGE])
    beyond = np.sort(np.concatenate(large))
    upto = counts.cumsum()
    total = int(upto[-1]) + len(beyond)
    found = {}
    for percent in PERCENTS if total else ():
        # The first of the sorted numbers that has this share at or before it.
        rank = max(1, math.ceil(percent * total / 100))
        within = rank <= upto[-1]
        found[str(percent)] = int(np.searchsorted(upto, rank)) if within else int(beyond[rank - int(upto[-1]) - 1])
    return found


def split_counts(counts: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
    """Yield counts in blocks, as `find_count_quantiles` takes them."""
    for first in range(0, len(counts), _BLOCK):
        yield counts[first : first + _BLOCK]
