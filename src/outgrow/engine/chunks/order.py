"""In which order workers run their chunks: the cheapest of the ranges as they are and of two reorganisations."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from outgrow.core.ledger import Kind
from outgrow.engine.share import Share
from outgrow.graph.partition.waves import (
    Throughputs,
    Volumes,
    bits_of,
    cost_seconds,
    reordered,
    reorganised,
    sample_of,
    volumes,
)

_MOST_BYTES = 64 << 20


class Order(NamedTuple):
    """The order of the chunks of all workers.

    Attributes:
        chunks: ``[P, n]`` int64, the chunk that each worker runs in each wave.
        given: What the chunks as ranges would move, in rows of one layer.
        chosen: What they move in this order.
        seconds: What moving rows of one layer takes by the cost model, as ranges and in this order.
    """

    chunks: NDArray[np.int64]
    given: Volumes
    chosen: Volumes
    seconds: tuple[float, float]


def order_of(share: Share, sources: Sequence[Tensor], row_bytes: int, rates: Throughputs, *, reorganise: bool) -> Order:
    """Choose the order; all workers together. On very large graphs volumes are counted on a sample of the nodes.

    Args:
        share: What the worker owns.
        sources: ``[N]`` int64, nodes that each of its chunks reads.
        row_bytes: Of a row of nodes.
        rates: What the machine moves in a second.
        reorganise: Whether to look for another order than that of the ranges.
    """
    comm, num_nodes = share.comm, share.topology.num_nodes
    sample = sample_of(num_nodes, comm.size * len(sources), max(_MOST_BYTES, 8 * comm.size * len(sources)))
    gathered = comm.gather((bits_of(sources, num_nodes, sample), bits_of([share.own], num_nodes, sample)[0]))
    found: Any = None
    if comm.leads:
        bits, owned = (np.stack(parts) for parts in zip(*gathered, strict=True))
        scale = 1.0 if sample is None else num_nodes / len(sample)
        found = cheapest(bits, owned, scale, row_bytes, rates, reorganise=reorganise)
    return Order(*comm.broadcast(found, Kind.TOPOLOGY))


def cheapest(
    bits: NDArray[np.uint64],
    owned: NDArray[np.uint64],
    scale: float,
    row_bytes: int,
    rates: Throughputs,
    *,
    reorganise: bool,
) -> Order:
    """The cheapest order of chunks whose sources are known.

    Args:
        bits: ``[P, n, W]`` nodes that each chunk reads: see `outgrow.graph.partition.waves`.
        owned: ``[P, W]`` nodes of each worker.
        scale: Nodes of the graph for each that has a bit.
        row_bytes: Of a row of nodes.
        rates: What the machine moves in a second.
        reorganise: Whether to look for another order than that of the ranges.
    """
    given = np.tile(np.arange(bits.shape[1]), (len(bits), 1))
    choices = [given, reordered(bits), reorganised(bits)] if reorganise and bits.shape[1] > 1 else [given]
    moved = [_scaled(volumes(bits, owned, order), scale) for order in choices]
    costs = [cost_seconds(each, row_bytes, rates) for each in moved]
    best = int(np.argmin(costs))
    return Order(choices[best], moved[0], moved[best], (costs[0], costs[best]))


def _scaled(counts: Volumes, scale: float) -> Volumes:
    return Volumes(**{name: round(scale * count) for name, count in vars(counts).items()})


def mine(order: Order, share: Share) -> list[int]:
    """The chunks of a worker, wave by wave."""
    chunks: list[int] = order.chunks[share.comm.rank].tolist()
    return chunks
