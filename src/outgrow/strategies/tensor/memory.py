"""How much memory a slice-wise pass takes, and what of it must be in files so that it fits into a budget.

Estimates are upper bounds, made of what a worker is known to hold at the same time; tests hold them against what runs
took.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from outgrow.engine.layer_plan import Traits
from outgrow.engine.memory_model import whole_bytes
from outgrow.engine.shard import Share
from outgrow.nn.layer import Features
from outgrow.strategies.tensor.all_to_all import cut_of

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


class Held(NamedTuple):
    """What a worker holds of a graph, all edges of which it holds.

    Attributes:
        nodes: Of the graph.
        edges: Of the graph.
        own: Nodes of the worker.
        workers: How many there are.
        given: Bytes of the features of its own nodes, as they are held.
    """

    nodes: int
    edges: int
    own: int
    workers: int
    given: int


def held_by(share: Share, features: Features, number_bytes: int) -> Held:
    """What a worker will hold.

    Args:
        share: The nodes that it owns.
        features: ``[V, D]``, as the graph has them.
        number_bytes: Of a number of a row.
    """
    topology, own = share.topology, len(share.own)
    if isinstance(features, Tensor):
        given = own * features.shape[1] * number_bytes
    else:
        given = (features.values.nbytes + features.indices.nbytes) * own // max(1, topology.num_nodes) * 2
    return Held(topology.num_nodes, topology.num_edges, own, share.comm.size, given)


def needs_of(held: Held, traits: Sequence[Traits], *, base: int, number_bytes: int, chunks: int) -> Needs:
    """What a worker needs.

    Args:
        held: What it holds of the graph.
        traits: The layers.
        base: Bytes that it has now.
        number_bytes: Of a number of a row.
        chunks: How many chunks edges are brought in.
    """
    num_nodes, own, workers = held.nodes, held.own, held.workers
    num_edges = held.edges + num_nodes
    widest = max(_slice_width(*each.layer.widths.source, workers) for each in traits)
    slices = _SLICES * num_nodes * widest * number_bytes
    first = traits[0]
    raw = _slice_width(*first.layer.widths.source, workers) * num_nodes if first.from_features else 0
    whole_width = max(channels * columns for channels, columns in (each.layer.widths.source for each in traits))
    under_way = _UNDER_WAY * (num_nodes * widest + own * whole_width)
    nodes = base + _PER_NODE * num_nodes + held.given + (2 * raw + under_way) * number_bytes
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
