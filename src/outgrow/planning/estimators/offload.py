"""What `offload` takes, in a number of chunks that is known."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import beside, of_whole_layers
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.estimators.full import estimate_of_full
from outgrow.planning.estimators.offload_chunks import cutting_of, held_bytes, kept_waves, rates_of, with_chunks
from outgrow.planning.graph_stats.chunk_waves import Waves
from outgrow.planning.sizes import LayerSizes
from outgrow.planning.traffic import ID_BYTES, Bytes, Place, Traffic, added, of_training
from outgrow.planning.workload import Workload
from outgrow.strategies.full import Full
from outgrow.strategies.offload.reorder import Throughputs
from outgrow.strategies.offload.strategy import Offload

_END_BYTES = 8
_OF_MOST = 0.91
"""What runs hold of the most that their chunks may take, which is what counts when chunks are chosen."""


def traffic_of_offload(
    strategy: Offload, work: Workload, place: Place, rates: Throughputs, *, kept: int | None = None
) -> Traffic:
    """Rows of sources come to the device wave by wave and aggregates stay on HOST: HongTu, algorithms 1 to 3.

    Args:
        strategy: How; its chunks are given.
        work: What is trained.
        place: Where the workers are.
        rates: What the machine moves in a second, by which the order of the chunks is chosen.
        kept: Waves of a worker that stay in memory once they were read; None for all.
    """
    assert strategy.chunks is not None
    layers, views = work.model.layers, tuple(sorted(set(work.model.views)))
    chunked = work.shape.chunked(cutting_of(strategy, work, rates), views, place.workers, strategy.techniques)
    cut = work.shape.cut(strategy.partition, place.workers)
    traffic = of_training(work, cut.nodes, cut.owner_bytes, place, logits=False)
    added(traffic.once, Kind.TOPOLOGY, place.shared(chunked.order_bytes))
    for waves in chunked.waves.values():
        added(traffic.once, Kind.IDS, place.sent(waves.told), ID_BYTES)
    passes = _Passes(work, strategy, place, chunked.waves)
    for moved, found in (
        (traffic.once, passes.prepared()),
        (traffic.epoch, passes.epoch()),
        (traffic.evaluation, passes.inference()),
    ):
        moved.update(found)
    _add_waves(traffic, layers, chunked.waves, strategy.chunks if kept is None else kept)
    return traffic


def _add_waves(traffic: Traffic, layers: tuple[LayerSizes, ...], waves: dict[bool, Waves], kept: int) -> None:
    """What waves are told of their chunks: once, where it stays in memory; else each time that a layer goes by."""
    seen = Counter(layer.widths.self_loops for layer in layers)
    for view, of_view in waves.items():
        staying, coming = (int(part.sum()) for part in np.split(of_view.file_bytes, [kept], 1))
        bottom, last = (layers[i].widths.self_loops == view for i in (0, -1))
        prepared = bottom and layers[0].constant
        for moved, num_bytes in (
            (traffic.once, staying + prepared * coming),
            (traffic.epoch, (2 * seen[view] - last) * coming),
            (traffic.evaluation, seen[view] * coming),
        ):
            added(moved, Kind.TOPOLOGY, {Link.HOST_TO_DEVICE: num_bytes})


class _Passes(NamedTuple):
    """Bytes of rows that cross links in passes over all waves.

    Attributes:
        work: What is trained.
        strategy: How.
        place: Where the workers are.
        waves: Rows that an assembled layer moves, by view of the graph.
    """

    work: Workload
    strategy: Offload
    place: Place
    waves: dict[bool, Waves]

    def prepared(self) -> Bytes:
        """A constant aggregate is computed and written."""
        bottom = self.layers[0]
        if not bottom.constant:
            return Counter()
        return self._assembled(0) + self._inputs(0) + self._written(bottom.aggregate)

    def forward(self, *, training: bool) -> Bytes:
        """All layers but the last: each writes the source rows of the next, and what its destinations read."""
        layers = self.layers
        moved = Counter() if self._takes_raw else self._features() + self._written(layers[0].source_row)
        for index, following in enumerate(layers[1:]):
            moved += self._aggregate_read(index) if layers[index].constant else self._assembled(index)
            moved += self._inputs(index) + self._written(following.source_row)
            if not following.widths.raw_source:
                moved += self._written(self._target(following))
            if training and self._cached(index):
                moved += self._written(layers[index].aggregate)
        return moved

    def epoch(self) -> Bytes:
        """Forward; the last layer both ways at once, its rows assembled once; the other layers backward."""
        moved, nodes = self.forward(training=True), self.work.graph.nodes
        for index, layer in enumerate(self.layers):
            known = self._cached(index) or layer.constant
            moved += self._aggregate_read(index) if known else self._assembled(index)
            moved += self._inputs(index)
            target = self._target(layer)
            if index > 0:
                moved += self._gradients(Link.DEVICE_TO_HOST, nodes * target)
                moved += self._gradients(Link.HOST_TO_DEVICE, nodes * (layer.source_row + target))
            if index > 0 or not self._takes_raw:
                waves = self.waves[layer.widths.self_loops]
                moved += self._gradients(Link.DEVICE_TO_HOST, waves.loaded * layer.source_row)
                for link, count in self.place.sent(waves.sent.T).items():
                    moved += self._gradients(link, count * layer.source_row)
        if not self._takes_raw:
            moved += self._features() + self._gradients(Link.HOST_TO_DEVICE, nodes * self.layers[0].source_row)
        return moved

    def inference(self) -> Bytes:
        """Forward, where nothing is kept for a backward pass, and the last layer."""
        last = len(self.layers) - 1
        return self.forward(training=False) + self._assembled(last) + self._inputs(last)

    @property
    def layers(self) -> tuple[LayerSizes, ...]:
        """From the bottom up."""
        return self.work.model.layers

    @property
    def _takes_raw(self) -> bool:
        return self.work.model.takes_raw

    def _cached(self, index: int) -> bool:
        layer = self.layers[index]
        return self.strategy.cache and layer.fixed and index < len(self.layers) - 1 and not layer.constant

    @staticmethod
    def _target(layer: LayerSizes) -> int:
        """Numbers of the input that destinations read."""
        return layer.widths.in_features if layer.reads_target else 0

    def _assembled(self, index: int) -> Bytes:
        layer, graph = self.layers[index], self.work.graph
        raw = index == 0 and self._takes_raw
        kind, size = (Kind.FEATURES, graph.feature_bytes) if raw else (Kind.ACTIVATIONS, self.work.model.number_bytes)
        waves, moved = self.waves[layer.widths.self_loops], Counter[tuple[Link, Kind]]()
        added(moved, kind, {Link.HOST_TO_DEVICE: waves.loaded}, layer.source_row * size)
        added(moved, kind, self.place.sent(waves.sent), layer.source_row * size)
        return moved

    def _inputs(self, index: int) -> Bytes:
        target = self._target(self.layers[index])
        if index == 0 and self.work.model.reads_features:
            return self._features() if target else Counter()
        return self._moved(Link.HOST_TO_DEVICE, target * self.work.graph.nodes)

    def _features(self) -> Bytes:
        """All features, once, chunk by chunk; the ends of sparse rows are one more than these."""
        graph = self.work.graph
        chunks = (self.strategy.chunks or 1) * self.place.workers
        num_bytes = round(graph.nodes * graph.row_bytes) + _END_BYTES * chunks * graph.sparse
        return Counter({(Link.HOST_TO_DEVICE, Kind.FEATURES): num_bytes})

    def _written(self, width: int) -> Bytes:
        return self._moved(Link.DEVICE_TO_HOST, self.work.graph.nodes * width)

    def _aggregate_read(self, index: int) -> Bytes:
        return self._moved(Link.HOST_TO_DEVICE, self.work.graph.nodes * self.layers[index].aggregate)

    def _moved(self, link: Link, numbers: int) -> Bytes:
        return Counter({(link, Kind.ACTIVATIONS): numbers * self.work.model.number_bytes})

    def _gradients(self, link: Link, numbers: int) -> Bytes:
        return Counter({(link, Kind.GRADIENTS): numbers * self.work.model.number_bytes})


def parts_of_offload(strategy: Offload, work: Workload, pace: Pace, traffic: Traffic, *, kept: int) -> list[Part]:
    """Every layer chunk by chunk, its aggregates once more where they are not kept; rows come and go meanwhile."""
    assert strategy.chunks is not None
    cut, layers = work.shape.cut(strategy.partition, pace.place.workers), work.model.layers
    slowest = int(cut.edges.argmax())
    found = of_whole_layers(work, pace, int(cut.nodes[slowest]), int(cut.edges[slowest]))
    passes, coming = 2 * len(layers) - 1, 1 - kept / strategy.chunks
    new = pace.made_ready(passes * coming * int(cut.edges[slowest]))
    found.append(Part(name="new edges", seconds=new))
    found.append(Part(name="small steps of chunks", seconds=pace.layers(2 * len(layers) * (strategy.chunks - 1))))
    busy = sum(part.seconds for part in found)
    waves = strategy.chunks * passes
    for link, seconds in pace.crossing(traffic.epoch, 2 * waves).items():
        loaded = seconds + waves * pace.profile.links[link].message_seconds
        name = link.value.replace("_", " ")
        found.append(beside(pace, name, loaded, busy) if strategy.overlap else Part(name=name, seconds=loaded))
    return found


def estimate_of_offload(strategy: Offload, work: Workload, pace: Pace) -> Estimate:
    """Estimate an epoch all at once where that fits, as `full`; else in as few chunks as fit."""
    chosen = with_chunks(strategy, work, pace)
    if chosen.chunks is None:
        whole = estimate_of_full(Full(partition=strategy.partition), work, pace)
        return replace(whole, strategy=strategy, chunks=0)
    kept = kept_waves(chosen, work, pace)
    traffic = traffic_of_offload(chosen, work, pace.place, rates_of(pace), kept=kept)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(parts_of_offload(chosen, work, pace, traffic, kept=kept)),
        peak_bytes=round(_OF_MOST * held_bytes(chosen, work, pace)),
        chunks=chosen.chunks,
    )
