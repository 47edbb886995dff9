"""The cost model: seconds that a worker needs for each piece of work, from the rates of a machine profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from outgrow.core.ledger import Kind, Link
from outgrow.planning.dataset_sizes import DatasetSizes
from outgrow.planning.hardware.corrections import NO_CORRECTIONS, Corrections
from outgrow.planning.hardware.profile import DEGREE, FAR_BYTES, NEAR_BYTES, MachineProfile, RateByWidth
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.traffic import WorkerLayout
from outgrow.planning.workload import Workload


@dataclass(frozen=True, kw_only=True)
class CostModel:
    """Seconds that one worker needs while all others do the same amount of work.

    Attributes:
        profile: The machine's profile.
        layout: The number of workers and hosts.
        number_bytes: Bytes of a parameter, an activation or a gradient.
        memory: Limit on the bytes in the DEVICE tier of a worker.
        corrections: What runs on the machine have taught.
    """

    profile: MachineProfile
    layout: WorkerLayout
    number_bytes: int
    memory: int
    corrections: Corrections = NO_CORRECTIONS

    @staticmethod
    def from_profile(
        profile: MachineProfile, layout: WorkerLayout, number_bytes: int, limit: int | None = None
    ) -> CostModel:
        """Build the model for a layout; each worker has its share of the memory, or ``limit`` if that is less."""
        # The workers of a host divide its memory; a GPU belongs to one worker alone.
        memory = profile.device.memory_bytes // (layout.workers_per_host if profile.device.is_shared else 1)
        return CostModel(profile=profile, layout=layout, number_bytes=number_bytes, memory=min(memory, limit or memory))

    @property
    def shares_device(self) -> bool:
        """Whether the workers of a host compute on the same device, as CPU workers do."""
        return self.profile.device.is_shared

    @property
    def cores_per_worker(self) -> float:
        """Cores of the host that each worker has, at least 1."""
        return max(1.0, self.profile.host.cores / self.layout.workers_per_host)

    def matmul_seconds(self, rows: float, weights: float, width: float) -> float:
        """Return the seconds to multiply rows by matrices of ``weights`` numbers with a narrower side of ``width``."""
        # Two operations for each multiply-add; the rate drops for narrow matrices, hence its lookup by width.
        return 2 * rows * weights / (self._rate_share * self.profile.device.product.rate_at(max(1.0, width)))

    def aggregation_seconds(self, edges: float, columns: float, sources: float, written: float) -> float:
        """Return the seconds to sum rows over edges in one direction.

        Args:
            edges: Rows that are read, one for each edge.
            columns: Numbers of a row.
            sources: Rows of the table that they are read from.
            written: Rows that are written, into new memory.
        """
        if not columns:
            return 0.0
        device = self.profile.device
        table_bytes = sources * columns * self.number_bytes
        near = device.near.rate_at(columns)
        far = device.far.rate_at(columns)
        # Random reads from a table that fits in a cache are several times faster than from memory.
        # The two measured table sizes bound the range; sizes between them are interpolated.
        rate = RateByWidth({NEAR_BYTES: near, FAR_BYTES: far}).rate_at(max(1.0, table_bytes))
        # Rates include the sums that are written at the degree that was measured; at smaller ones these are more.
        more = max(0.0, written - edges / DEGREE) * columns / (_WRITES_OF_FINISH * device.finish)
        return (edges * columns * self.number_bytes / rate + more) / self._rate_share

    def epilogue_seconds(self, numbers: float) -> float:
        """Return the seconds for bias, activation and dropout of layer outputs, gradients included."""
        return numbers / (self._rate_share * self.profile.device.finish)

    def attention_seconds(self, scores: float, degree: float) -> float:
        """Return the seconds for edge scores, forward and backward, at a mean in-degree."""
        return scores / (self._rate_share * self.profile.device.score.rate_at(max(1.0, degree)))

    def new_edge_seconds(self, edges: float) -> float:
        """Return the seconds to prepare edges that the worker sees for the first time."""
        return edges / (self._rate_share * self.profile.device.fresh)

    def memory_pass_seconds(self, numbers: float) -> float:
        """Return the seconds to read or write numbers sequentially."""
        return numbers * self.number_bytes / (self._rate_share * self.profile.device.copy)

    def layer_overhead_seconds(self, count: float) -> float:
        """Return the fixed seconds of ``count`` layers, however small they are."""
        # Launch costs are latency, so sharing the device does not multiply them: no `_rate_share` here.
        return count * self.profile.device.layer_seconds * self._crowding

    def step_overhead_seconds(self, steps: float) -> float:
        """Return the fixed seconds of steps of training beside those of their layers."""
        return steps * self.profile.device.step_overhead_seconds * self._crowding

    def gather_seconds(self, rows: float, row_bytes: float, threads: int | None = None) -> float:
        """Return the seconds to gather rows from host memory with ``threads`` threads."""
        columns = row_bytes / self.number_bytes
        rate = self.profile.host.gather.rate_at(max(1.0, columns)) * self.prefetch_threads(threads)
        return rows * row_bytes * self._crowding / rate

    def sampling_seconds(self, edges: float, threads: int | None = None) -> float:
        """Return the seconds to sample ``edges`` edges with ``threads`` threads of the host."""
        return edges * self._crowding / (self.profile.host.sampled_edges * self.prefetch_threads(threads))

    def prefetch_threads(self, threads: int | None) -> int:
        """Return the number of threads that prepare batches; half of the worker's cores if None."""
        return threads or max(1, int(self.cores_per_worker) // 2)

    def transfer_seconds(self, moved: Mapping[tuple[Link, Kind], int], messages: float) -> dict[Link, float]:
        """Return the seconds on each link.

        Args:
            moved: Bytes of all workers, by link and kind.
            messages: Messages that each worker sends to others; links to a worker's own devices have none.

        Raises:
            KeyError: The profile has no rate of a link in ``moved``.
        """
        found = {}
        for link in sorted({link for link, _ in moved}):
            rate = self.profile.links[link]
            num_bytes = sum(count for (over, _), count in moved.items() if over == link)
            between = link in (Link.PEER, Link.NETWORK)
            # The ledger adds up all workers, which send at the same time: each needs the time of its share.
            each = num_bytes / self.layout.workers
            if link is Link.NETWORK:
                # Workers of a host send through the same interface; the rate is that of each while all send.
                each *= self.layout.workers_per_host / self.profile.workers
            found[link] = rate.transfer_seconds(each, messages if between else 0.0)
        return found

    @property
    def _crowding(self) -> float:
        """How often the cores of a host are shared out: 1 unless it has more workers than cores."""
        return max(1.0, self.layout.workers_per_host / self.profile.host.cores)

    @property
    def _rate_share(self) -> float:
        """Share of the measured rates that a worker reaches in training."""
        # Whole epochs are slower than their pieces measured one by one (`efficiency`).
        # Workers that compute on the same cores divide the rate.
        device = self.profile.device
        return device.efficiency / (self.layout.workers_per_host if self.shares_device else 1)


_WRITES_OF_FINISH = 2
"""Numbers that are written for each that gets a bias, an activation and dropout, and its gradient."""
_COLUMNS_OF_SCORE, _OF_DOT_PRODUCTS = 8, 0.2
"""Columns behind each score in the layer whose score rate is measured, and the share of its time that dot products
over them take, which are the gradients of scores."""
_PASSES_OF_HEADS = 1.5
"""Sums, in each direction, over rows of keys and values, of which either half is read three times in both."""
_MESSAGE_PASSES = 8
"""How often a step writes, reads or sums a number of an edge's message, in layers that materialise messages."""


FORWARD_SHARE = 1 / 3
"""Share of the time of activations, scores and small steps that the forward pass takes."""


class LayerWork(NamedTuple):
    """The part of a layer that one worker computes.

    Attributes:
        sources: Source rows.
        destinations: Output rows.
        edges: Edges between them.
        attention_share: Share of the edges whose attention this worker computes.
    """

    sources: float
    destinations: float
    edges: float
    attention_share: float = 1.0


class LayerSeconds(NamedTuple):
    """Seconds of a layer, forward and backward, by type of work."""

    products: float
    sums: float
    scores: float
    other: float


def step_seconds(
    work: Workload,
    costs: CostModel,
    layers: Sequence[LayerWork],
    *,
    cached_aggregate: bool,
    slices: int = 1,
    backward: bool = True,
) -> list[LayerSeconds]:
    """Return the seconds of each layer of a step, forward and, unless told otherwise, backward.

    Each matrix is multiplied once in the forward pass and twice in the backward pass; in the first layer once, for the
    gradient of the matrix. Aggregation runs once in each direction, but not for the gradient of raw features.

    Args:
        work: The graph and the model.
        costs: The rates.
        layers: The work in each layer, from the bottom up.
        cached_aggregate: Whether the aggregate of constant features is computed once and kept.
        slices: Number of column slices that aggregation is divided into.
        backward: Whether gradients are computed, as in training but not in an evaluation.
    """
    found = [
        _layer_seconds(
            layer,
            work.graph,
            costs,
            done,
            first=index == 0 and work.model.reads_features,
            cached_aggregate=cached_aggregate,
            slices=slices,
            backward=backward,
        )
        for index, (layer, done) in enumerate(zip(work.model.layers, layers, strict=True))
    ]
    # The encoder reads raw features, so it needs the forward product and the gradient of its matrix only.
    encoder = (1 + backward) * _matmul_seconds(
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
    backward: bool,
) -> LayerSeconds:
    widths = layer.spec
    # Forward, gradient of the matrix, and gradient of the input, which raw features do not need.
    num_products = 1 if not backward else 2 if first else 3
    # Rates of element-wise work are of both directions together.
    share = 1.0 if backward else FORWARD_SHARE
    products = num_products * sum(
        _matmul_seconds(graph, costs, rows, weights, layer, raw=first)
        for rows, weights in zip((work.sources, work.destinations), layer.weights, strict=True)
    )
    if layer.edge_dim:
        # The features of each edge are multiplied forward, and again for the gradient of the matrix.
        made = layer.edge_scores or widths.source[0] * widths.source[1] // slices
        products += (1 + backward) * costs.matmul_seconds(work.edges, layer.edge_dim * made, min(layer.edge_dim, made))
    updated = widths.out_features + layer.update_numbers
    if first and widths.source_is_input and layer.scaled_weights:
        # Constants get no gradient: that of their scale takes a product with the input instead (`matmul_of_sum`).
        products += backward * _matmul_seconds(graph, costs, work.destinations, layer.scaled_weights, layer, raw=True)
        updated -= widths.aggregate[1]
    other = costs.epilogue_seconds(work.destinations * updated)
    other += costs.layer_overhead_seconds(1)
    # With slices, a worker sums its share of the columns, but over the rows of all nodes.
    columns = widths.source[0] * widths.source[1] / slices
    sources, destinations = work.sources * slices, work.destinations * slices
    # A cached aggregate costs nothing in an epoch; raw features get no gradient, so no sum runs backward.
    sums = costs.aggregation_seconds(work.edges, columns, sources, destinations)
    if cached_aggregate and layer.has_static_aggregate:
        sums = 0.0
    elif backward and not (first and widths.source_is_input):
        # Gradients of sums are read, those of all source rows written.
        sums += costs.aggregation_seconds(work.edges, columns, destinations, sources)
    if layer.groups_by_pair:
        # Keys and values are read by dot products and sums, each again for two gradients.
        sums *= _PASSES_OF_HEADS if layer.heads else 1
    # The backward pass takes a dot product over the columns for each edge, wide rows with few scores too.
    scores = (1 - _OF_DOT_PRODUCTS) * widths.score * work.attention_share
    scores += _OF_DOT_PRODUCTS * columns / _COLUMNS_OF_SCORE
    if layer.is_parameter_free:
        scores = 0
    if layer.groups_by_pair:
        # No scores but those of heads, whose dot products are sums by pair: counted above.
        scores = layer.heads
    # PyG layers materialise a message for each edge, and pass over it element by element.
    other += costs.epilogue_seconds(_MESSAGE_PASSES * work.edges * layer.edge_numbers)
    attention = share * costs.attention_seconds(work.edges * scores, work.edges / max(1.0, destinations))
    return LayerSeconds(products, sums, attention, share * other)


def _matmul_seconds(
    graph: DatasetSizes, costs: CostModel, rows: float, weights: int, layer: LayerSizes, *, raw: bool
) -> float:
    """Return the seconds to multiply rows by a layer's matrices; raw sparse rows cost an SpMM instead."""
    if not weights:
        return 0.0
    # A sparse row selects and sums rows of the matrix, one for each stored entry, as an edge does.
    if raw and graph.sparse:
        return costs.aggregation_seconds(rows * graph.row_entries, weights / graph.features, graph.features, rows)
    if raw and graph.in_blocks:
        rows *= graph.row_entries / graph.features  # of its own columns alone
    widths = layer.spec
    # Attention by type projects to rows of keys and values, however few the outputs are.
    out = widths.aggregate[0] * widths.aggregate[1] if layer.heads else widths.out_features
    return costs.matmul_seconds(rows, weights, min(widths.in_features, out))
