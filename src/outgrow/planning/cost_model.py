"""Seconds of pieces of work on a machine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outgrow.core.ledger import Kind, Link
from outgrow.planning.hardware.profile import FAR_BYTES, NEAR_BYTES, MachineProfile, RateByWidth
from outgrow.planning.sizes import DatasetSizes, LayerSizes
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds of one worker, while all others do as much.

    Attributes:
        profile: Of the machine.
        layout: Where the workers are.
        number_bytes: Of a number that is computed with.
        memory: The most bytes that the DEVICE tier of a worker may hold.
    """

    profile: MachineProfile
    layout: WorkerLayout
    number_bytes: int
    memory: int

    @staticmethod
    def from_profile(
        profile: MachineProfile, layout: WorkerLayout, number_bytes: int, limit: int | None = None
    ) -> CostModel:
        """Of workers at a place, each with its share of the memory, or with less."""
        memory = profile.device.memory_bytes // (layout.workers_per_host if profile.device.is_shared else 1)
        return CostModel(profile=profile, layout=layout, number_bytes=number_bytes, memory=min(memory, limit or memory))

    @property
    def shares_device(self) -> bool:
        """Whether workers of a host share what they compute on."""
        return self.profile.device.is_shared

    @property
    def cores_per_worker(self) -> float:
        """Of the host, for each worker."""
        return max(1.0, self.profile.host.cores / self.layout.workers_per_host)

    def matmul_seconds(self, rows: float, weights: float, width: float) -> float:
        """Of rows multiplied by matrices of so many numbers in all, whose narrower side is ``width``."""
        return 2 * rows * weights / (self._rate_share * self.profile.device.product.rate_at(max(1.0, width)))

    def aggregation_seconds(self, edges: float, columns: float, sources: float) -> float:
        """Of rows summed over edges in one direction, from a table of so many rows."""
        if not columns:
            return 0.0
        device, table_bytes = self.profile.device, sources * columns * self.number_bytes
        near, far = device.near.rate_at(columns), device.far.rate_at(columns)
        rate = RateByWidth({NEAR_BYTES: near, FAR_BYTES: far}).rate_at(max(1.0, table_bytes))
        return edges * columns * self.number_bytes / (self._rate_share * rate)

    def epilogue_seconds(self, numbers: float) -> float:
        """Of numbers of outputs of layers: bias, activation, dropout, and their gradients."""
        return numbers / (self._rate_share * self.profile.device.finish)

    def attention_seconds(self, scores: float) -> float:
        """Of scores of edges, forward and backward."""
        return scores / (self._rate_share * self.profile.device.score)

    def new_edge_seconds(self, edges: float) -> float:
        """Of edges that are seen for the first time."""
        return edges / (self._rate_share * self.profile.device.fresh)

    def memory_pass_seconds(self, numbers: float) -> float:
        """Of numbers read or written in order."""
        return numbers * self.number_bytes / (self._rate_share * self.profile.device.copy)

    def layer_overhead_seconds(self, count: float) -> float:
        """Of so many layers, however little they compute."""
        return count * self.profile.device.layer_seconds / self.profile.device.efficiency

    def gather_seconds(self, rows: float, row_bytes: float, threads: int | None = None) -> float:
        """Of rows taken from memory by so many threads of the host."""
        columns = row_bytes / self.number_bytes
        return rows * row_bytes / (self.profile.host.gather.rate_at(max(1.0, columns)) * self.prefetch_threads(threads))

    def sampling_seconds(self, edges: float, threads: int | None = None) -> float:
        """Of edges of sampled blocks, by so many threads of the host."""
        return edges / (self.profile.host.sampled_edges * self.prefetch_threads(threads))

    def prefetch_threads(self, threads: int | None) -> int:
        """Threads of a worker that make batches ready: half of its cores if it is not said."""
        return threads or max(1, int(self.cores_per_worker) // 2)

    def transfer_seconds(self, moved: Mapping[tuple[Link, Kind], int], messages: float) -> dict[Link, float]:
        """Of bytes of all workers on each link, those between workers in so many messages of each.

        Raises:
            KeyError: Nothing is known of a link that is crossed.
        """
        found = {}
        for link in sorted({link for link, _ in moved}):
            rate = self.profile.links[link]
            num_bytes = sum(count for (over, _), count in moved.items() if over == link)
            between = link in (Link.PEER, Link.NETWORK)
            found[link] = rate.transfer_seconds(num_bytes / self.layout.workers, messages if between else 0.0)
        return found

    @property
    def _rate_share(self) -> float:
        """Of the device's rates that a worker has when it trains."""
        device = self.profile.device
        return device.efficiency / (self.layout.workers_per_host if self.shares_device else 1)


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
        attention_share: Share of these whose attention it computes.
    """

    sources: float
    destinations: float
    edges: float
    attention_share: float = 1.0


class LayerSeconds(NamedTuple):
    """How long that takes, forward and backward."""

    products: float
    sums: float
    scores: float
    other: float


def step_seconds(
    work: Workload, costs: CostModel, layers: Sequence[LayerWork], *, cached_aggregate: bool, slices: int = 1
) -> list[LayerSeconds]:
    """Of each layer of a step, forward and backward.

    Rows are multiplied by each matrix once, and twice in the backward pass; of the first layer only the gradient of the
    matrix is wanted. A sum is done once in each direction, but not for the gradient of raw features.

    Args:
        work: What is trained.
        costs: How fast.
        layers: What is computed, from the bottom up.
        cached_aggregate: Whether a constant aggregate is.
        slices: Into how many slices the columns of sums are dealt out.
    """
    found = [
        _layer_seconds(
            layer, work.graph, costs, done, first=index == 0, cached_aggregate=cached_aggregate, slices=slices
        )
        for index, (layer, done) in enumerate(zip(work.model.layers, layers, strict=True))
    ]
    encoder = 2 * _matmul_seconds(
        work.graph, costs, layers[0].sources, work.model.encoder_numbers, work.model.layers[0], raw=True
    )
    return [found[0]._replace(products=found[0].products + encoder), *found[1:]]


def _layer_seconds(
    layer: LayerSizes,
    graph: DatasetSizes,
    costs: CostModel,
    work: LayerWork,
    *,
    first: bool,
    cached_aggregate: bool,
    slices: int,
) -> LayerSeconds:
    widths = layer.spec
    turns = 2 if first else 3
    products = turns * sum(
        _matmul_seconds(graph, costs, rows, weights, layer, raw=first)
        for rows, weights in zip((work.sources, work.destinations), layer.weights, strict=True)
    )
    directions = 0 if cached_aggregate and layer.has_static_aggregate else 1 if first and widths.source_is_input else 2
    other = costs.epilogue_seconds(work.destinations * widths.out_features) + costs.layer_overhead_seconds(1)
    columns = widths.source[0] * widths.source[1] / slices
    sums = directions * costs.aggregation_seconds(work.edges, columns, work.sources * slices)
    scores = 0 if layer.is_parameter_free else max(widths.score * work.attention_share, columns / _COLUMNS_OF_SCORE)
    other += costs.epilogue_seconds(_MESSAGE_PASSES * work.edges * layer.edge_numbers)
    return LayerSeconds(products, sums, costs.attention_seconds(work.edges * scores), other)


def _matmul_seconds(
    graph: DatasetSizes, costs: CostModel, rows: float, weights: int, layer: LayerSizes, *, raw: bool
) -> float:
    """Rows by matrices; sparse ones as sums of the matrix's rows."""
    if not weights:
        return 0.0
    if raw and graph.sparse:
        return costs.aggregation_seconds(rows * graph.row_entries, weights / graph.features, graph.features)
    return costs.matmul_seconds(rows, weights, min(layer.spec.in_features, layer.spec.out_features))
