"""The estimate of `offload`: the number of chunks, the bytes that cross links, and the parts of an epoch."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import CostModel
from outgrow.planning.estimate import EpochPart, Estimate, full_graph_parts, overlapped_part
from outgrow.planning.estimators.full import estimate_full
from outgrow.planning.graph_stats.chunk_waves import ChunkingSpec, WaveStats
from outgrow.planning.peak_memory import base_bytes
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Bytes, Traffic, WorkerLayout, add_bytes, training_traffic
from outgrow.planning.workload import ChunkStats, Workload
from outgrow.strategies.full import Full
from outgrow.strategies.offload.chunking import MAX_CHUNKS, choose_cached_waves, fewest_chunks, fits_whole
from outgrow.strategies.offload.memory import WaveSizes, chunked_bytes
from outgrow.strategies.offload.reorder import Bandwidths
from outgrow.strategies.offload.strategy import Offload

_END_BYTES = 8
_OF_MOST = 0.91
"""Measured share of the upper bound on memory that runs hold; chunks are chosen by the bound itself."""
_STEP = 1
"""Step of `fewest_chunks`: the number of chunks doubles until it fits, so few numbers are estimated."""


def choose_chunks(strategy: Offload, work: Workload, costs: CostModel) -> Offload:
    """Set the fewest chunks that fit into a worker's memory, at most 1024; leave None if the whole graph fits."""
    if strategy.chunks is not None or _fits_unchunked(strategy, work, costs):
        return strategy
    most = max_chunks(work, costs.layout)
    found = fewest_chunks(
        lambda count: offload_peak_bytes(replace(strategy, chunks=count), work, costs),
        most,
        budget=costs.memory,
        step=_STEP,
    )
    return replace(strategy, chunks=most if found is None else found)


def max_chunks(work: Workload, layout: WorkerLayout) -> int:
    """Return the largest number of chunks of a worker."""
    return min(MAX_CHUNKS, max(1, work.graph.nodes // layout.workers))


def offload_peak_bytes(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """Return an upper bound on the bytes that a worker holds with the strategy's chunks, cached waves left out."""
    base = base_bytes(work, costs)
    extent = _max_wave_sizes(strategy, work, costs)
    return chunked_bytes(base, work.model.layer_plans, extent, work.model.number_bytes)


def count_cached_waves(strategy: Offload, work: Workload, costs: CostModel) -> int:
    """Return the number of waves that a worker keeps in memory after the first read."""
    assert strategy.chunks is not None
    spare = costs.memory - offload_peak_bytes(strategy, work, costs)
    views = len(set(work.model.views))
    return choose_cached_waves(strategy.chunks, _max_wave_sizes(strategy, work, costs), views=views, spare=spare)


def _max_wave_sizes(strategy: Offload, work: Workload, costs: CostModel) -> WaveSizes:
    """Return the largest sizes of a wave, over the views of the graph."""
    # The buffers are allocated once and serve every view, so each of their sizes is the largest by itself.
    extents = [waves.max_sizes for waves in chunk_stats_for(strategy, work, costs).waves.values()]
    return WaveSizes(*(max(sizes) for sizes in zip(*extents, strict=True)))


def chunk_stats_for(strategy: Offload, work: Workload, costs: CostModel) -> ChunkStats:
    """Return the statistics of the strategy's chunks."""
    views = tuple(sorted(set(work.model.views)))
    spec = make_chunking_spec(strategy, work, bandwidths_from_profile(costs))
    return work.partitioning.chunk_stats(spec, views, costs.layout.workers, strategy.transfer_options)


def make_chunking_spec(strategy: Offload, work: Workload, bandwidths: Bandwidths) -> ChunkingSpec:
    """Return the specification by which `offload` cuts the graph; the strategy's chunks are set."""
    assert strategy.chunks is not None
    layers = work.model.layers
    # One order of chunks serves all layers, so the mean row decides it.
    row_bytes = round(sum(each.sent_width for each in layers) * work.model.number_bytes / len(layers))
    return ChunkingSpec(strategy.partition, strategy.chunks, strategy.reorganise, row_bytes, bandwidths)


def bandwidths_from_profile(costs: CostModel) -> Bandwidths:
    """Return the bandwidths by which the order of the chunks is chosen."""
    links = costs.profile.links
    copy = costs.profile.device.copy
    between = links.get(Link.PEER) or links.get(Link.NETWORK)
    return Bandwidths(
        host=links[Link.HOST_TO_DEVICE].bytes_per_second,
        device=copy if between is None else between.bytes_per_second,
        reuse=copy,
    )


def _fits_unchunked(strategy: Offload, work: Workload, costs: CostModel) -> bool:
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    # Workers agree on one mode, so the largest part decides.
    part = int(cut.edges.argmax())
    return fits_whole(
        base_bytes(work, costs),
        work.model.layer_plans,
        num_own=int(cut.nodes[part]),
        num_edges=int(cut.edges[part]),
        num_nodes=work.graph.nodes,
        number_bytes=work.model.number_bytes,
        edge_row_bytes=work.graph.edge_row_bytes,
        budget=costs.memory,
    )


def offload_traffic(
    strategy: Offload, work: Workload, layout: WorkerLayout, bandwidths: Bandwidths, *, cached_waves: int | None = None
) -> Traffic:
    """Return the traffic: source rows are loaded wave by wave, aggregates stay on HOST (HongTu, algorithms 1 to 3).

    Args:
        strategy: The strategy, with its chunks set.
        work: The graph and the model.
        layout: The workers.
        bandwidths: Bandwidths by which the order of the chunks is chosen.
        cached_waves: Waves that a worker keeps in memory after the first read; None for all.
    """
    assert strategy.chunks is not None
    layers = work.model.layers
    views = tuple(sorted(set(work.model.views)))
    chunked = work.partitioning.chunk_stats(
        make_chunking_spec(strategy, work, bandwidths), views, layout.workers, strategy.transfer_options
    )
    cut = work.partitioning.partition_stats(strategy.partition, layout.workers)
    traffic = training_traffic(work, cut.nodes, cut.owner_bytes, layout, logits=False)
    add_bytes(traffic.once, Kind.TOPOLOGY, layout.broadcast_bytes(chunked.order_bytes))
    # Workers tell each other once, for each view, which rows their waves need.
    for waves in chunked.waves.values():
        add_bytes(traffic.once, Kind.IDS, layout.sum_by_link(waves.requested_ids), ID_BYTES)
    passes = _PassTraffic(work, strategy, layout, chunked.waves)
    for moved, found in (
        (traffic.once, passes.setup_bytes()),
        (traffic.epoch, passes.epoch_bytes()),
        (traffic.evaluation, passes.inference_bytes()),
    ):
        moved.update(found)
    _add_wave_topology(traffic, layers, chunked.waves, strategy.chunks if cached_waves is None else cached_waves)
    return traffic


def _add_wave_topology(
    traffic: Traffic, layers: tuple[LayerSizes, ...], waves: dict[bool, WaveStats], cached_waves: int
) -> None:
    """Add the wave files: cached waves are read once, all others in each pass of a layer."""
    layers_by_view = Counter(layer.spec.self_loops for layer in layers)
    for view, of_view in waves.items():
        cached, reread = (int(part.sum()) for part in np.split(of_view.file_bytes, [cached_waves], 1))
        bottom, last = (layers[i].spec.self_loops == view for i in (0, -1))
        # A static first aggregate is computed in a pass of its own before the first epoch.
        prepared = bottom and layers[0].has_static_aggregate
        # The last layer runs forward and backward in a single pass over the waves.
        for moved, num_bytes in (
            (traffic.once, cached + prepared * reread),
            (traffic.epoch, (2 * layers_by_view[view] - last) * reread),
            (traffic.evaluation, layers_by_view[view] * reread),
        ):
            add_bytes(moved, Kind.TOPOLOGY, {Link.HOST_TO_DEVICE: num_bytes})


class _PassTraffic(NamedTuple):
    """Bytes of rows that cross links in passes over all waves.

    Attributes:
        work: The graph and the model.
        strategy: The strategy.
        layout: The workers.
        waves: Rows that a pass of a layer moves, by view of the graph.
    """

    work: Workload
    strategy: Offload
    layout: WorkerLayout
    waves: dict[bool, WaveStats]

    def setup_bytes(self) -> Bytes:
        """Return the bytes of computing a static first aggregate and writing it to HOST."""
        bottom = self.layers[0]
        if not bottom.has_static_aggregate:
            return Counter()
        return self._source_bytes(0) + self._target_bytes(0) + self._write_bytes(bottom.aggregate_width)

    def forward_bytes(self, *, training: bool) -> Bytes:
        """Return the bytes of all layers but the last; each writes the source and target rows of the next one."""
        layers = self.layers
        # The source rows of the first layer are computed from raw features in a pass of their own.
        moved = (
            Counter() if self._source_is_features else self._feature_bytes() + self._write_bytes(layers[0].sent_width)
        )
        for index, following in enumerate(layers[1:]):
            moved += (
                self._read_aggregate_bytes(index) if layers[index].has_static_aggregate else self._source_bytes(index)
            )
            moved += self._target_bytes(index) + self._write_bytes(following.sent_width)
            # Where source rows are the input itself, they serve as target rows too.
            if not following.spec.source_is_input:
                moved += self._write_bytes(self._target_width(following))
            if training and self._caches_aggregate(index):
                moved += self._write_bytes(layers[index].aggregate_width)
        return moved

    def epoch_bytes(self) -> Bytes:
        """Return the bytes of an epoch: forward, the last layer in one pass both ways, the other layers backward."""
        moved = self.forward_bytes(training=True)
        nodes = self.work.graph.nodes
        for index, layer in enumerate(self.layers):
            # The backward pass recomputes a layer from its aggregate; without a kept one it loads the sources again.
            known = self._caches_aggregate(index) or layer.has_static_aggregate
            moved += self._read_aggregate_bytes(index) if known else self._source_bytes(index)
            moved += self._target_bytes(index)
            target = self._target_width(layer)
            # Target gradients are written chunk by chunk; the layer below then loads the sums for its output.
            if index > 0:
                moved += self._gradient_bytes(Link.DEVICE_TO_HOST, nodes * target)
                moved += self._gradient_bytes(Link.HOST_TO_DEVICE, nodes * (layer.sent_width + target))
            if index > 0 or not self._source_is_features:
                waves = self.waves[layer.spec.self_loops]
                # Gradients of source rows go back by the way the rows came: to HOST, and to the other workers.
                moved += self._gradient_bytes(Link.DEVICE_TO_HOST, waves.loaded_rows * layer.sent_width)
                for link, count in self.layout.sum_by_link(waves.sent_rows.T).items():
                    moved += self._gradient_bytes(link, count * layer.sent_width)
        if not self._source_is_features:
            moved += self._feature_bytes() + self._gradient_bytes(
                Link.HOST_TO_DEVICE, nodes * self.layers[0].sent_width
            )
        return moved

    def inference_bytes(self) -> Bytes:
        """Return the bytes of an evaluation: all layers forward, with nothing kept for a backward pass."""
        last = len(self.layers) - 1
        return self.forward_bytes(training=False) + self._source_bytes(last) + self._target_bytes(last)

    @property
    def layers(self) -> tuple[LayerSizes, ...]:
        """Layers from the bottom up."""
        return self.work.model.layers

    @property
    def _source_is_features(self) -> bool:
        return self.work.model.source_is_features

    def _caches_aggregate(self, index: int) -> bool:
        layer = self.layers[index]
        return (
            self.strategy.cache
            and layer.is_parameter_free
            and index < len(self.layers) - 1
            and not layer.has_static_aggregate
        )

    @staticmethod
    def _target_width(layer: LayerSizes) -> int:
        """Return the width of the input that destinations read."""
        return layer.spec.in_features if layer.reads_target else 0

    def _source_bytes(self, index: int) -> Bytes:
        layer = self.layers[index]
        graph = self.work.graph
        raw = index == 0 and self._source_is_features
        kind, size = (Kind.FEATURES, graph.feature_bytes) if raw else (Kind.ACTIVATIONS, self.work.model.number_bytes)
        waves = self.waves[layer.spec.self_loops]
        moved = Counter[tuple[Link, Kind]]()
        # Rows of which only some numbers are used count by their mean: waves do not tell types apart.
        crossed = {Link.HOST_TO_DEVICE: waves.loaded_rows, **self.layout.sum_by_link(waves.sent_rows)}
        add_bytes(moved, kind, {link: round(rows * layer.sent_width) for link, rows in crossed.items()}, size)
        return moved

    def _target_bytes(self, index: int) -> Bytes:
        target = self._target_width(self.layers[index])
        if index == 0 and self.work.model.reads_features:
            return self._feature_bytes() if target else Counter()
        return self._activation_bytes(Link.HOST_TO_DEVICE, target * self.work.graph.nodes)

    def _feature_bytes(self) -> Bytes:
        """Return the bytes of all raw features, loaded once, chunk by chunk."""
        graph = self.work.graph
        # The row pointer of sparse rows has one more entry than the rows of each chunk.
        chunks = (self.strategy.chunks or 1) * self.layout.workers
        num_bytes = round(graph.nodes * graph.row_bytes) + _END_BYTES * chunks * graph.sparse
        return Counter({(Link.HOST_TO_DEVICE, Kind.FEATURES): num_bytes})

    def _write_bytes(self, width: float) -> Bytes:
        return self._activation_bytes(Link.DEVICE_TO_HOST, self.work.graph.nodes * width)

    def _read_aggregate_bytes(self, index: int) -> Bytes:
        return self._activation_bytes(Link.HOST_TO_DEVICE, self.work.graph.nodes * self.layers[index].aggregate_width)

    def _activation_bytes(self, link: Link, numbers: float) -> Bytes:
        return Counter({(link, Kind.ACTIVATIONS): round(numbers) * self.work.model.number_bytes})

    def _gradient_bytes(self, link: Link, numbers: float) -> Bytes:
        return Counter({(link, Kind.GRADIENTS): round(numbers) * self.work.model.number_bytes})


def offload_parts(
    strategy: Offload, work: Workload, costs: CostModel, traffic: Traffic, *, cached_waves: int
) -> list[EpochPart]:
    """Return the parts of an epoch: every layer chunk by chunk, while rows are loaded and written."""
    assert strategy.chunks is not None
    cut = work.partitioning.partition_stats(strategy.partition, costs.layout.workers)
    layers = work.model.layers
    # Waves synchronise the workers, so the one with the most edges counts.
    slowest = int(cut.edges.argmax())
    found = full_graph_parts(work, costs, int(cut.nodes[slowest]), int(cut.edges[slowest]))
    # The last layer runs both ways in one pass; only waves that are not cached prepare their edges again.
    passes = 2 * len(layers) - 1
    reread = 1 - cached_waves / strategy.chunks
    new = costs.new_edge_seconds(passes * reread * int(cut.edges[slowest]))
    found.append(EpochPart(name="new edges", seconds=new))
    # The full-graph estimate includes the fixed cost of one chunk of each layer.
    small = costs.layer_overhead_seconds(2 * len(layers) * (strategy.chunks - 1))
    found.append(EpochPart(name="small steps of chunks", seconds=small))
    busy = sum(part.seconds for part in found)
    waves = strategy.chunks * passes
    # Each wave exchanges rows before and after it is computed, and each of its copies has a latency of its own.
    for link, seconds in costs.transfer_seconds(traffic.epoch, 2 * waves).items():
        loaded = seconds + waves * costs.profile.links[link].message_seconds
        name = link.value.replace("_", " ")
        found.append(
            overlapped_part(costs, name, loaded, busy) if strategy.overlap else EpochPart(name=name, seconds=loaded)
        )
    return found


def estimate_offload(strategy: Offload, work: Workload, costs: CostModel) -> Estimate:
    """Estimate `offload`: as `full` where the whole graph fits, else in as few chunks as fit."""
    chosen = choose_chunks(strategy, work, costs)
    if chosen.chunks is None:
        whole = estimate_full(Full(partition=strategy.partition), work, costs)
        return replace(whole, strategy=strategy, chunks=0)
    kept = count_cached_waves(chosen, work, costs)
    traffic = offload_traffic(chosen, work, costs.layout, bandwidths_from_profile(costs), cached_waves=kept)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(offload_parts(chosen, work, costs, traffic, cached_waves=kept)),
        peak_bytes=round(_OF_MOST * offload_peak_bytes(chosen, work, costs)),
        chunks=chosen.chunks,
    )
