"""Seconds of pieces of work on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outgrow.core.ledger import Kind, Link
from outgrow.planning.hardware.profile import FAR_BYTES, NEAR_BYTES, ByWidth, Profile
from outgrow.planning.sizes import LayerSizes, Sizes
from outgrow.planning.traffic import Place
from outgrow.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class Pace:
    """Seconds of one worker, while all others do as much.

    Attributes:
        profile: Of the machine.
        place: Where the workers are.
        number_bytes: Of a number that is computed with.
        memory: The most bytes that the DEVICE tier of a worker may hold.
    """

    profile: Profile
    place: Place
    number_bytes: int
    memory: int

    @staticmethod
    def of(profile: Profile, place: Place, number_bytes: int, limit: int | None = None) -> Pace:
        """Of workers at a place, each with its share of the memory, or with less."""
        memory = profile.device.memory_bytes // (place.per_host if profile.device.shared else 1)
        return Pace(profile=profile, place=place, number_bytes=number_bytes, memory=min(memory, limit or memory))

    @property
    def shared(self) -> bool:
        """Whether workers of a host share what they compute on."""
        return self.profile.device.shared

    @property
    def cores(self) -> float:
        """Of the host, for each worker."""
        return max(1.0, self.profile.host.cores / self.place.per_host)

    def products(self, rows: float, weights: float, width: float) -> float:
        """Of rows multiplied by matrices of so many numbers in all, whose narrower side is ``width``."""
        return 2 * rows * weights / (self._share * self.profile.device.product.at(max(1.0, width)))

    def sums(self, edges: float, columns: float, sources: float) -> float:
        """Of rows summed over edges in one direction, from a table of so many rows."""
        if not columns:
            return 0.0
        device, table_bytes = self.profile.device, sources * columns * self.number_bytes
        near, far = device.near.at(columns), device.far.at(columns)
        rate = ByWidth({NEAR_BYTES: near, FAR_BYTES: far}).at(max(1.0, table_bytes))
        return edges * columns * self.number_bytes / (self._share * rate)

    def finished(self, numbers: float) -> float:
        """Of numbers of outputs of layers: bias, activation, dropout, and their gradients."""
        return numbers / (self._share * self.profile.device.finish)

    def scored(self, scores: float) -> float:
        """Of scores of edges, forward and backward."""
        return scores / (self._share * self.profile.device.score)

    def made_ready(self, edges: float) -> float:
        """Of edges that are seen for the first time."""
        return edges / (self._share * self.profile.device.fresh)

    def passes(self, numbers: float) -> float:
        """Of numbers read or written in order."""
        return numbers * self.number_bytes / (self._share * self.profile.device.copy)

    def layers(self, count: float) -> float:
        """Of so many layers, however little they compute."""
        return count * self.profile.device.layer_seconds / self.profile.device.efficiency

    def gathered(self, rows: float, row_bytes: float, threads: int | None = None) -> float:
        """Of rows taken from memory by so many threads of the host."""
        columns = row_bytes / self.number_bytes
        return rows * row_bytes / (self.profile.host.gather.at(max(1.0, columns)) * self.ahead(threads))

    def drawn(self, edges: float, threads: int | None = None) -> float:
        """Of edges of sampled blocks, by so many threads of the host."""
        return edges / (self.profile.host.sampled_edges * self.ahead(threads))

    def ahead(self, threads: int | None) -> int:
        """Threads of a worker that make batches ready: half of its cores if it is not said."""
        return threads or max(1, int(self.cores) // 2)

    def crossing(self, moved: Mapping[tuple[Link, Kind], int], messages: float) -> dict[Link, float]:
        """Of bytes of all workers on each link, those between workers in so many messages of each.

        Raises:
            KeyError: Nothing is known of a link that is crossed.
        """
        found = {}
        for link in sorted({link for link, _ in moved}):
            rate = self.profile.links[link]
            num_bytes = sum(count for (over, _), count in moved.items() if over == link)
            between = link in (Link.PEER, Link.NETWORK)
            found[link] = rate.seconds(num_bytes / self.place.workers, messages if between else 0.0)
        return found

    @property
    def _share(self) -> float:
        """Of the device's rates that a worker has when it trains."""
        device = self.profile.device
        return device.efficiency / (self.place.per_host if self.shared else 1)


_COLUMNS_OF_SCORE = 8
"""The gradient of a score is a product of so many columns where the rate of scores is measured."""
_MESSAGE_PASSES = 8
"""How often a number of the message of an edge is made, read or summed in a step, where messages are held."""


class LayerWork(NamedTuple):
    """What one worker computes of a layer.

    Attributes:
        sources: Rows that sources give.
        destinations: Rows that are computed.
        edges: Edges between them.
        attended: Share of these whose attention it computes.
    """

    sources: float
    destinations: float
    edges: float
    attended: float = 1.0


class LayerSeconds(NamedTuple):
    """How long that takes, forward and backward."""

    products: float
    sums: float
    scores: float
    other: float


def step_seconds(
    work: Workload, pace: Pace, layers: Sequence[LayerWork], *, kept: bool, slices: int = 1
) -> list[LayerSeconds]:
    """Of each layer of a step, forward and backward.

    Rows are multiplied by each matrix once, and twice in the backward pass; of the first layer only the gradient of the
    matrix is wanted. A sum is done once in each direction, but not for the gradient of raw features.

    Args:
        work: What is trained.
        pace: How fast.
        layers: What is computed, from the bottom up.
        kept: Whether a constant aggregate is.
        slices: Into how many slices the columns of sums are dealt out.
    """
    found = [
        _seconds(layer, work.graph, pace, done, first=index == 0, kept=kept, slices=slices)
        for index, (layer, done) in enumerate(zip(work.model.layers, layers, strict=True))
    ]
    encoder = 2 * _multiplied(work.graph, pace, layers[0].sources, work.model.encoder, work.model.layers[0], raw=True)
    return [found[0]._replace(products=found[0].products + encoder), *found[1:]]


def _seconds(
    layer: LayerSizes, graph: Sizes, pace: Pace, work: LayerWork, *, first: bool, kept: bool, slices: int
) -> LayerSeconds:
    widths = layer.widths
    turns = 2 if first else 3
    products = turns * sum(
        _multiplied(graph, pace, rows, weights, layer, raw=first)
        for rows, weights in zip((work.sources, work.destinations), layer.weights, strict=True)
    )
    directions = 0 if kept and layer.constant else 1 if first and widths.raw_source else 2
    other = pace.finished(work.destinations * widths.out_features) + pace.layers(1)
    columns = widths.source[0] * widths.source[1] / slices
    sums = directions * pace.sums(work.edges, columns, work.sources * slices)
    scores = 0 if layer.fixed else max(widths.score * work.attended, columns / _COLUMNS_OF_SCORE)
    other += pace.finished(_MESSAGE_PASSES * work.edges * layer.edge_numbers)
    return LayerSeconds(products, sums, pace.scored(work.edges * scores), other)


def _multiplied(graph: Sizes, pace: Pace, rows: float, weights: int, layer: LayerSizes, *, raw: bool) -> float:
    """Rows by matrices; sparse ones as sums of the matrix's rows."""
    if not weights:
        return 0.0
    if raw and graph.sparse:
        return pace.sums(rows * graph.row_entries, weights / graph.features, graph.features)
    return pace.products(rows, weights, min(layer.widths.in_features, layer.widths.out_features))
