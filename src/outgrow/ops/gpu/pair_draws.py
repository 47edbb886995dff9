"""Keyed random numbers of pairs of nodes, the same as on the CPU to the last bit.

Letters: ``E`` edges.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outgrow.ops.pair_draws import PairRange

_GOLDEN, _MUL1, _MUL2 = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def mark_edges_of_pairs(
    indptr: Tensor, indices: Tensor, src_nodes: Tensor, dst_nodes: Tensor, pairs: PairRange
) -> Tensor:
    """Compute `outgrow.ops.pair_draws.mark_edges_of_pairs`; it takes a few numbers of 8 bytes for each edge."""
    dst_E = torch.repeat_interleave(dst_nodes, indptr.diff(), output_size=len(indices))
    src_E = src_nodes[indices]
    low, high = torch.minimum(src_E, dst_E), torch.maximum(src_E, dst_E)
    number = _shift_right(_hash64(_hash64(torch.full_like(low, _as_signed(pairs.key)), low), high), 11)
    # 53 bits, which a double holds.
    drawn = number.double() * 2.0**-53
    return (src_E != dst_E) & (((drawn >= pairs.first) & (drawn < pairs.last)) | (drawn < pairs.last - 1.0))


def _hash64(key: Tensor, value: Tensor) -> Tensor:
    """Return `outgrow.ops.rng.hash64`; int64 wraps around with the bits of uint64."""
    z = key + (value + 1) * _as_signed(_GOLDEN)
    z = (z ^ _shift_right(z, 30)) * _as_signed(_MUL1)
    z = (z ^ _shift_right(z, 27)) * _as_signed(_MUL2)
    return z ^ _shift_right(z, 31)


def _shift_right(value: Tensor, bits: int) -> Tensor:
    """Shift without the sign, as that of uint64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _as_signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
