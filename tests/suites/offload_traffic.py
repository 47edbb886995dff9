"""The bytes that `offload` must move, from the partition, the order of the chunks and the widths of rows alone.

Letters, as in Wang et al.: HongTu, SIGMOD 2023: worker ``i`` owns the nodes ``V_i``; its chunk in wave ``j`` reads the
nodes ``N_ij``; ``U_j`` is their union over the workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from outgrow.core.ledger import Kind, Link
from outgrow.graph.topology import Topology

Bytes = Counter[tuple[Link, Kind]]
Ranges = Sequence[tuple[int, int]]
Sets = list[list[set[int]]]


class LayerRows(NamedTuple):
    """Numbers in the rows of a layer.

    Attributes:
        source: Of a source: columns and scores.
        aggregate: Of an aggregate.
        target: Of the input that destinations read; 0 if they do not.
        raw: Whether sources pass on their input as it is.
        fixed: Whether the aggregation has no parameters.
        used: Of a source of each node type; empty if all sources use the whole row. No more cross between workers.
    """

    source: int
    aggregate: int
    target: int = 0
    raw: bool = False
    fixed: bool = True
    used: tuple[int, ...] = ()


class Volumes(NamedTuple):
    """Rows of one layer that move in one pass: from HOST, to HOST, and between workers on both ways."""

    loaded: int
    stored: int
    sent: int
    sent_back: int


def nodes_read(topology: Topology, own: Sequence[Sequence[int]], chunks: Sequence[Ranges], *, loops: bool) -> Sets:
    """``N_ij`` by worker and wave.

    Args:
        topology: The graph.
        own: The nodes of each worker, ascending.
        chunks: First and last own row (plus 1) of the chunk of each worker and wave.
        loops: Whether every node reads itself.
    """
    ends, indices = topology.indptr.tolist(), topology.indices.tolist()
    heard = [{*indices[first:last]} | ({node} if loops else set()) for node, (first, last) in enumerate(pairwise(ends))]
    return [
        [set[int]().union(*(heard[node] for node in nodes[first:last])) for first, last in ranges]
        for nodes, ranges in zip(own, chunks, strict=True)
    ]


def volumes_of(reads: Sets, own: Sequence[Sequence[int]], *, sharing: bool, reuse: bool) -> Volumes:
    r"""Rows that move: of each wave what the one before (for gradients: the next one) does not have.

    With sharing, ``sum_j |U_j \ U_(j-1)|`` come from HOST and ``sum_ij |(N_ij \ V_i) \ N_i(j-1)|`` from other workers;
    else ``sum_ij |N_ij \ N_i(j-1)|`` come from HOST. Without reuse nothing is taken away.
    """
    waves = [set[int]().union(*sets) for sets in zip(*reads, strict=True)]
    remote = [[nodes - {*mine} for nodes in of_worker] for of_worker, mine in zip(reads, own, strict=True)]
    from_host, between = ([waves], remote) if sharing else (reads, [])
    return Volumes(*(_new_rows(sets, reuse, back) for sets in (from_host, between) for back in (False, True)))


def _new_rows(sets: Sets, reuse: bool, back: bool) -> int:
    total = 0
    for given in sets:
        waves = given[::-1] if back else given
        kept = [set[int](), *waves[:-1]] if reuse else [set[int]()] * len(waves)
        total += sum(len(nodes - before) for nodes, before in zip(waves, kept, strict=True))
    return total


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """The bytes of features, activations and gradients that cross links, over all workers.

    Attributes:
        layers: The rows of each layer.
        volumes: Rows that an assembled layer moves.
        nodes: Number of nodes.
        features: Features of a node.
        number: Bytes of an activation or a gradient that crosses between workers.
        feature: Bytes of a feature.
        constant: Whether the first aggregate is computed once.
        cache: Whether other aggregates without parameters are kept.
        by_type: The volumes of the rows of each node type; empty if there are no types.
        storage: How activations and gradients are stored in HOST.
    """

    layers: tuple[LayerRows, ...]
    volumes: Volumes
    nodes: int
    features: int
    number: int
    feature: int
    constant: bool
    cache: bool
    by_type: tuple[Volumes, ...] = ()
    storage: str = "full"

    def row(self, width: int) -> int:
        """Bytes of a row of activations or gradients in HOST: of int8 whole words, and a scale."""
        in_words = -(-width // 4) * 4
        return {"full": width * self.number, "bfloat16": width * 2, "int8": in_words + 4 * (width > 0)}[self.storage]

    def prepared(self) -> Bytes:
        """A constant aggregate is computed and written."""
        if not self.constant:
            return Bytes()
        return self._assembled(0) + self._inputs(0) + self._written(self.layers[0].aggregate)

    def forward(self, *, training: bool) -> Bytes:
        """All layers but the last: each writes the source rows of the next, and what its destinations read."""
        moved = Bytes() if self.layers[0].raw else self._features() + self._written(self.layers[0].source)
        for index, following in enumerate(self.layers[1:]):
            moved += self._aggregate_read(index) if index == 0 and self.constant else self._assembled(index)
            moved += self._inputs(index) + self._written(following.source)
            moved += Bytes() if following.raw else self._written(following.target)
            if training and self._cached(index):
                moved += self._written(self.layers[index].aggregate)
        return moved

    def epoch(self) -> Bytes:
        """Forward; the last layer both ways at once, its rows assembled once; the other layers backward."""
        moved = self.forward(training=True)
        for index, layer in enumerate(self.layers):
            known = self._cached(index) or (index == 0 and self.constant)
            moved += self._aggregate_read(index) if known else self._assembled(index)
            moved += self._inputs(index)
            if index > 0:
                moved += self._gradients(Link.DEVICE_TO_HOST, self.nodes * self.row(layer.target))
                moved += self._gradients(
                    Link.HOST_TO_DEVICE, self.nodes * (self.row(layer.source) + self.row(layer.target))
                )
            if index > 0 or not layer.raw:
                moved += self._gradients(Link.DEVICE_TO_HOST, self.volumes.stored * self.row(layer.source))
                moved += self._gradients(Link.PEER, self._between(layer, back=True) * self.number)
        if not self.layers[0].raw:
            moved += self._features() + self._gradients(
                Link.HOST_TO_DEVICE, self.nodes * self.row(self.layers[0].source)
            )
        return moved

    def inference(self) -> Bytes:
        """Forward, where nothing is kept for a backward pass, and the last layer."""
        last = len(self.layers) - 1
        return self.forward(training=False) + self._assembled(last) + self._inputs(last)

    def _cached(self, index: int) -> bool:
        constant = index == 0 and self.constant
        return self.cache and self.layers[index].fixed and index < len(self.layers) - 1 and not constant

    def _assembled(self, index: int) -> Bytes:
        layer, volumes = self.layers[index], self.volumes
        kind, size = (Kind.FEATURES, self.feature) if index == 0 and layer.raw else (Kind.ACTIVATIONS, self.number)
        row_bytes = layer.source * size if kind is Kind.FEATURES else self.row(layer.source)
        return Bytes({
            (Link.HOST_TO_DEVICE, kind): volumes.loaded * row_bytes,
            (Link.PEER, kind): self._between(layer) * size,
        })  # fmt: skip

    def _between(self, layer: LayerRows, *, back: bool = False) -> int:
        """Numbers that cross between workers: of each type, its rows times what it uses of them."""
        given = [(self.volumes, layer.source)]
        if layer.used:
            given = list(zip(self.by_type, layer.used, strict=True))
        return sum((rows.sent_back if back else rows.sent) * numbers for rows, numbers in given)

    def _inputs(self, index: int) -> Bytes:
        target = self.layers[index].target
        if index == 0:
            return Bytes({(Link.HOST_TO_DEVICE, Kind.FEATURES): self.nodes * target * self.feature})
        return Bytes({(Link.HOST_TO_DEVICE, Kind.ACTIVATIONS): self.nodes * self.row(target)})

    def _features(self) -> Bytes:
        """All features, once."""
        return Bytes({(Link.HOST_TO_DEVICE, Kind.FEATURES): self.nodes * self.features * self.feature})

    def _written(self, width: int) -> Bytes:
        return Bytes({(Link.DEVICE_TO_HOST, Kind.ACTIVATIONS): self.nodes * self.row(width)})

    def _aggregate_read(self, index: int) -> Bytes:
        width = self.layers[index].aggregate
        return Bytes({(Link.HOST_TO_DEVICE, Kind.ACTIVATIONS): self.nodes * self.row(width)})

    @staticmethod
    def _gradients(link: Link, num_bytes: int) -> Bytes:
        return Bytes({(link, Kind.GRADIENTS): num_bytes})
