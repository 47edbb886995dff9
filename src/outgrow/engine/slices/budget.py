"""How much memory a slice-wise pass takes, and what of it must be in files so that it fits into a budget.

Estimates are upper bounds, made of what a worker is known to hold at the same time; tests hold them against what runs
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.chunks.budget import whole_bytes
from outgrow.engine.chunks.layers import Traits
from outgrow.engine.share import Share
from outgrow.engine.slices.deal import cut_of
from outgrow.nn.layer import Features

_PER_NODE = 160
"""Bytes of a node on every worker: ends of its edges both ways, its degrees, owner, and places in chunks both ways."""
PER_EDGE = 40
"""Bytes of an edge while its chunk is brought into memory."""
_SLICES = 3
"""Slices there are at once: those of a round, those that it makes, and those of their gradient."""
_UNDER_WAY = 2
"""Times that all rows are under way: what comes and what goes."""


class Needs(NamedTuple):
    """Memory that a worker needs, in bytes.

    Attributes:
        whole: With everything in memory.
        edges_in_files: With edges and their weights in files.
        spilled: With slices in files too.
    """

    whole: int
    edges_in_files: int
    spilled: int


def needs_of(
    share: Share, traits: Sequence[Traits], features: Features, *, base: int, number_bytes: int, chunks: int
) -> Needs:
    """What a worker needs.

    Args:
        share: The nodes that it owns, in a graph of which it holds all edges.
        traits: The layers.
        features: ``[V, D]``, as the graph has them.
        base: Bytes that it has now.
        number_bytes: Of a number of a row.
        chunks: How many chunks edges are brought in.
    """
    num_nodes, own, workers = share.topology.num_nodes, len(share.own), share.comm.size
    num_edges = share.topology.num_edges + num_nodes
    widest = max(_slice_width(*each.layer.widths.source, workers) for each in traits)
    slices = _SLICES * num_nodes * widest * number_bytes
    first = traits[0]
    raw = _slice_width(*first.layer.widths.source, workers) * num_nodes if first.from_features else 0
    whole_width = max(channels * columns for channels, columns in (each.layer.widths.source for each in traits))
    under_way = _UNDER_WAY * (num_nodes * widest + own * whole_width)
    if isinstance(features, Tensor):
        given = own * features.shape[1] * number_bytes
    else:
        given = (features.values.nbytes + features.indices.nbytes) * own // max(1, num_nodes) * 2
    nodes = base + _PER_NODE * num_nodes + given + (2 * raw + under_way) * number_bytes
    rows = whole_bytes(nodes, traits, own, own, 0, number_bytes)
    chunk = PER_EDGE * -(-num_edges // chunks)
    kept = slices if workers == 1 else 0  # one worker aggregates whole rows, where they are
    return Needs(
        whole=whole_bytes(nodes, traits, own, own, num_edges, number_bytes) + slices + 2 * num_edges * number_bytes,
        edges_in_files=rows + slices + chunk,
        spilled=rows + chunk + kept,
    )


def _slice_width(channels: int, columns: int, workers: int) -> int:
    """Numbers of a row in the widest slice."""
    return channels * max(last - first for first, last in cut_of(columns, workers))
