"""What `full` takes."""

from __future__ import annotations

from outgrow.core.types import Kind
from outgrow.planning.traffic import ID_BYTES, Place, Traffic, added, of_training
from outgrow.planning.workload import Workload
from outgrow.strategies.full import Full


def traffic_of_full(strategy: Full, work: Workload, place: Place) -> Traffic:
    """Rows of the halo cross: raw features once, where they are sources; what layers give, forward and back.

    ``sum_i |R_i|`` rows of ``C F + K`` numbers for each layer that sends what it has computed.
    """
    model, graph = work.model, work.graph
    cut = work.shape.cut(strategy.partition, place.workers)
    traffic = of_training(work, cut.nodes, cut.owner_bytes, place)
    if place.workers == 1:
        return traffic
    halo = place.sent(cut.halo)
    added(traffic.once, Kind.IDS, halo, ID_BYTES)
    if model.takes_raw:
        added(traffic.once, Kind.FEATURES, halo, graph.features * graph.feature_bytes)
    sent = sum(layer.source_row for layer in model.layers[model.takes_raw :])
    added(traffic.epoch, Kind.ACTIVATIONS, halo, sent * model.number_bytes)
    added(traffic.epoch, Kind.GRADIENTS, halo, sent * model.number_bytes)
    added(traffic.evaluation, Kind.ACTIVATIONS, halo, sent * model.number_bytes)
    return traffic
