"""Seconds of a worker's computation, from what its machine does in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from outgrow.planning.profile import Profile
from outgrow.planning.workload import LayerSizes, ModelSizes

_FORWARD, _BACKWARD = 1, 2  # products of a weight matrix: forward, and of two gradients


@dataclass(frozen=True, kw_only=True)
class Pace:
    """How fast a worker is, among so many of its host.

    Attributes:
        profile: Of the machine.
        per_host: Workers of a host, which share a CPU.
    """

    profile: Profile
    per_host: int

    @property
    def _share(self) -> float:
        return 1 / self.per_host if self.profile.device.shared else 1.0

    def products(self, rows: float, weights: float, width: float) -> float:
        """Seconds of rows multiplied by matrices of so many numbers in all, the narrower side of which is ``width``."""
        return 2 * rows * weights / (self._share * self.profile.device.product.at(width))

    def sums(self, edges: float, columns: float, number_bytes: int) -> float:
        """Seconds of a sum over so many edges."""
        if not columns:
            return 0.0
        return edges * columns * number_bytes / (self._share * self.profile.device.aggregate.at(columns))

    def passes(self, num_bytes: float) -> float:
        """Seconds of bytes read and written in order."""
        return num_bytes / (self._share * self.profile.device.copy)


@dataclass(frozen=True, kw_only=True)
class LayerTime:
    """Seconds of a layer in a step, forward and backward, by what is done."""

    products: float
    sums_forward: float
    sums_backward: float
    element_wise: float


def layer_times(model: ModelSizes, pace: Pace, nodes: float, edges: float) -> Iterator[LayerTime]:
    """Of each layer, on a worker with so many nodes and in-edges.

    Each node is multiplied by each matrix once, and twice in the backward pass, but for the gradient of raw features,
    which nobody wants. Sums are done once in each direction. Of rows that are computed about five are read or written
    in the forward pass and as many in the backward one.
    """
    for index, layer in enumerate(model.layers):
        own = layer.edges(int(edges), int(nodes))
        turns = _FORWARD + _BACKWARD - (index == 0)
        constant = layer.constant
        forward = 0.0 if constant else pace.sums(own, layer.source, model.number_bytes)
        back = 0.0 if constant or (index == 0 and layer.widths.raw_source) else forward
        yield LayerTime(
            products=turns * pace.products(nodes, layer.weights, _narrow(layer)),
            sums_forward=forward,
            sums_backward=back,
            element_wise=pace.passes(10 * nodes * layer.widths.out_features * model.number_bytes),
        )


def _narrow(layer: LayerSizes) -> float:
    return max(1, min(layer.widths.in_features, layer.widths.out_features))
