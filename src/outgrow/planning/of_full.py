"""What `full` takes."""

from __future__ import annotations

from outgrow.core.types import Kind
from outgrow.planning.traffic import Place, Traffic, added, halo_numbers, of_resident
from outgrow.planning.workload import Workload
from outgrow.strategies.full import Full


def traffic_of_full(strategy: Full, work: Workload, place: Place) -> Traffic:
    """Rows of the halo cross: raw features once, where they are sources; what layers give, forward and back.

    ``sum_i |R_i|`` rows of ``C F + K`` numbers for each layer that sends what it has computed.
    """
    cut = work.shape.cut(strategy.partition, place.workers)
    traffic = of_resident(work, cut, place)
    row_bytes = halo_numbers(work.model) * work.model.number_bytes
    for kind in (Kind.ACTIVATIONS, Kind.GRADIENTS):
        added(traffic.epoch, kind, place.sent(cut.halo), row_bytes)
    return traffic
