"""Bytes of `offload` in passes over waves: rows, aggregates and gradients, and the files that waves are in."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from outgrow.core.ledger import Kind, Link
from outgrow.ops.rows.row_encoding import stored_row_bytes
from outgrow.planning.graph_stats.chunk_waves import WaveStats
from outgrow.planning.model_sizes import LayerSizes
from outgrow.planning.traffic import Bytes, Traffic, WorkerLayout, add_bytes, count_sent_numbers
from outgrow.planning.workload import Workload
from outgrow.strategies.offload.strategy import Offload

_END_BYTES = 8
"""Bytes of an entry in the row pointer of sparse rows."""


def add_wave_topology(
    traffic: Traffic,
    layers: tuple[LayerSizes, ...],
    waves: dict[bool, WaveStats],
    cached_waves: int,
    *,
    last_passes: int = 1,
    transposed: Sequence[bool] = (),
) -> None:
    """Add the wave files: cached waves are read once, all others in each pass of a layer.

    Args:
        traffic: The traffic to add to.
        layers: The layers.
        waves: Statistics of the waves, by view of the graph.
        cached_waves: Waves that a worker keeps in memory after the first read.
        last_passes: Passes of the last layer in a step: forward and backward in one, or apart.
        transposed: Whether the backward pass of each layer reads the out-edges of the waves; none if empty.
    """
    layers_by_view = Counter(layer.spec.self_loops for layer in layers)
    for view, of_view in waves.items():
        cached, reread = (int(part.sum()) for part in np.split(of_view.file_bytes, [cached_waves], 1))
        back = int(of_view.transpose_bytes[:, cached_waves:].sum())
        readers = sum(reads and layers[i].spec.self_loops == view for i, reads in enumerate(transposed))
        bottom, last = (layers[i].spec.self_loops == view for i in (0, -1))
        # A static first aggregate is computed in a pass of its own before the first epoch.
        prepared = bottom and layers[0].has_static_aggregate
        for moved, num_bytes in (
            (traffic.once, cached + prepared * reread),
            (traffic.epoch, (2 * layers_by_view[view] - (2 - last_passes) * last) * reread + readers * back),
            (traffic.evaluation, layers_by_view[view] * reread),
        ):
            add_bytes(moved, Kind.TOPOLOGY, {Link.HOST_TO_DEVICE: num_bytes})


class PassTraffic(NamedTuple):
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
            Counter() if self._source_is_features else self._feature_bytes() + self._write_bytes(layers[0].source_width)
        )
        if not self.work.model.reads_features and not layers[0].spec.source_is_input:
            moved += self._write_bytes(self._target_width(layers[0]))
        for index, following in enumerate(layers[1:]):
            moved += (
                self._read_aggregate_bytes(index) if layers[index].has_static_aggregate else self._source_bytes(index)
            )
            moved += self._target_bytes(index) + self._write_bytes(following.source_width)
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
            # Target gradients are written chunk by chunk; the layer below, or the encoder, then loads the sums.
            if index > 0 or not self.work.model.reads_features:
                moved += self._gradient_bytes(Link.DEVICE_TO_HOST, nodes, target)
                moved += self._gradient_bytes(Link.HOST_TO_DEVICE, nodes, layer.source_width)
                moved += self._gradient_bytes(Link.HOST_TO_DEVICE, nodes, target)
            elif not self._source_is_features:
                moved += self._gradient_bytes(Link.HOST_TO_DEVICE, nodes, layer.source_width)
            if index > 0 or not self._source_is_features:
                waves = self.waves[layer.spec.self_loops]
                # Gradients of source rows go back by the way the rows came: to HOST, and to the other workers.
                moved += self._gradient_bytes(Link.DEVICE_TO_HOST, waves.loaded_rows, layer.source_width)
                add_bytes(moved, Kind.GRADIENTS, self._sent_numbers(layer, waves), self.work.model.number_bytes)
        if not self._source_is_features:
            moved += self._feature_bytes()
        if self.work.links is not None:
            # The loss couples rows of several chunks: the last layer is computed once more before it runs both ways.
            moved += self._last_layer_bytes()
        return moved

    def inference_bytes(self) -> Bytes:
        """Return the bytes of an evaluation: all layers forward, with nothing kept for a backward pass."""
        return self.forward_bytes(training=False) + self._last_layer_bytes()

    def _last_layer_bytes(self) -> Bytes:
        last = len(self.layers) - 1
        return self._source_bytes(last) + self._target_bytes(last)

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
        # Rows lie on HOST as wide as those of the widest type; to others only what is used of them is sent.
        row_bytes = layer.source_width * size if raw else self._row_bytes(layer.source_width)
        add_bytes(moved, kind, {Link.HOST_TO_DEVICE: waves.loaded_rows}, row_bytes)
        add_bytes(moved, kind, self._sent_numbers(layer, waves), size)
        return moved

    def _sent_numbers(self, layer: LayerSizes, waves: WaveStats) -> dict[Link, int]:
        # What is summed over pairs of workers is the same in both directions, so gradients are as many.
        return self.layout.sum_by_link(count_sent_numbers(layer, waves.sent_rows, waves.typed_rows))

    def _target_bytes(self, index: int) -> Bytes:
        target = self._target_width(self.layers[index])
        if index == 0 and self.work.model.reads_features:
            return self._feature_bytes() if target else Counter()
        return self._activation_bytes(Link.HOST_TO_DEVICE, target)

    def _feature_bytes(self) -> Bytes:
        """Return the bytes of all raw features, loaded once, chunk by chunk."""
        graph = self.work.graph
        # The row pointer of sparse rows has one more entry than the rows of each chunk.
        chunks = (self.strategy.chunks or 1) * self.layout.workers
        num_bytes = round(graph.nodes * graph.row_bytes) + _END_BYTES * chunks * graph.sparse
        return Counter({(Link.HOST_TO_DEVICE, Kind.FEATURES): num_bytes})

    def _write_bytes(self, width: int) -> Bytes:
        return self._activation_bytes(Link.DEVICE_TO_HOST, width)

    def _read_aggregate_bytes(self, index: int) -> Bytes:
        return self._activation_bytes(Link.HOST_TO_DEVICE, self.layers[index].aggregate_width)

    def _row_bytes(self, width: int) -> int:
        """Return the bytes of a row of activations or gradients in HOST."""
        return stored_row_bytes(width, self.work.model.number_bytes, self.strategy.storage_precision)

    def _activation_bytes(self, link: Link, width: int) -> Bytes:
        """Return the bytes of a row of every node."""
        return Counter({(link, Kind.ACTIVATIONS): self.work.graph.nodes * self._row_bytes(width)})

    def _gradient_bytes(self, link: Link, rows: float, width: int) -> Bytes:
        return Counter({(link, Kind.GRADIENTS): round(rows) * self._row_bytes(width)})
