"""Features of nodes of several types, side by side: what one projection reads is then a projection for each type.

Each type has columns of its own. In the rows of a type those of the others are not stored, so a sparse product with one
weight matrix multiplies them with that type's part of it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import block_diag, csr_array

RANDOM_WIDTH = 64
"""Columns of the vectors of nodes that have no features."""

Matrix = NDArray[Any] | csr_array


def side_by_side(names: Sequence[str], counts: Sequence[int], parts: Sequence[Matrix | None]) -> csr_array:
    """``[V, D]`` features of all types, ``D`` being the sum of their widths.

    Nodes of a type without features get vectors that are drawn once, from a key that is the name of the type: they tell
    the nodes apart, and are not trained.

    Args:
        names: Name of each type.
        counts: Number of its nodes.
        parts: Their features; None for none.
    """
    blocks = [
        random_vectors(name, count) if part is None else part
        for name, count, part in zip(names, counts, parts, strict=True)
    ]
    return csr_array(block_diag([csr_array(block) for block in blocks], format="csr"))


def random_vectors(name: str, count: int) -> NDArray[np.float32]:
    """``[count, RANDOM_WIDTH]``: standard normal over the root of the width; the same in every run."""
    drawn = np.random.Generator(np.random.Philox(key=crc32(name.encode())))
    vectors: NDArray[np.float32] = drawn.standard_normal((count, RANDOM_WIDTH), dtype=np.float32)
    return vectors / np.float32(RANDOM_WIDTH**0.5)
