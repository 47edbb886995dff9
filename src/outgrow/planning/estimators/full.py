"""What `full` takes."""

from __future__ import annotations

from outgrow.core.ledger import Kind
from outgrow.planning.cost_model import Pace
from outgrow.planning.epoch_parts import crossed, of_whole_layers
from outgrow.planning.estimate import Estimate, Part
from outgrow.planning.peak_memory import whole_bytes_of
from outgrow.planning.traffic import Place, Traffic, added, halo_numbers, of_resident
from outgrow.planning.workload import Cut, Workload
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


def _parts(work: Workload, pace: Pace, cut: Cut, traffic: Traffic) -> list[Part]:
    """Every worker computes its own nodes, and waits for rows of others once for each layer and direction."""
    slowest = int(cut.edges.argmax())
    found = of_whole_layers(work, pace, int(cut.nodes[slowest]), int(cut.edges[slowest]))
    return found + crossed(pace, traffic.epoch, 2 * (len(work.model.layers) - work.model.takes_raw))


def estimate_of_full(strategy: Full, work: Workload, pace: Pace) -> Estimate:
    """See `outgrow.planning.estimators.registry`."""
    cut, traffic = work.shape.cut(strategy.partition, pace.place.workers), traffic_of_full(strategy, work, pace.place)
    return Estimate(
        strategy=strategy,
        traffic=traffic,
        parts=tuple(_parts(work, pace, cut, traffic)),
        peak_bytes=whole_bytes_of(work, pace, cut),
    )
