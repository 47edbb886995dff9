"""Parts of an epoch of training, in seconds."""

from __future__ import annotations

from collections.abc import Sequence

from outgrow.core.ledger import Link
from outgrow.planning.cost_model import LayerSeconds, LayerWork, Pace, step_seconds
from outgrow.planning.estimate import Part
from outgrow.planning.traffic import Bytes
from outgrow.planning.workload import Grown, Workload

_OPTIMIZER = 7
"""How often a parameter is read or written when the optimizer steps."""
_LOSS = 6
_SUMMED = 3
"""Messages of a step in which gradients and losses are summed."""


def of_whole_layers(
    work: Workload, pace: Pace, nodes: float, edges: float, slices: int = 1, attended: float = 1.0
) -> list[Part]:
    """Every layer once, forward and backward; the loss, and a step of the optimizer.

    Args:
        work: What is trained.
        pace: How fast.
        nodes: Of a worker.
        edges: Over which it sums.
        slices: Into how many slices the columns of these sums are dealt out.
        attended: Share of the edges whose attention it computes, in layers that only propagate.
    """
    seen = nodes * slices
    layers = [
        LayerWork(nodes, nodes, edges + layer.widths.self_loops * seen, attended if layer.propagates else 1.0)
        for layer in work.model.layers
    ]
    return [*computed(step_seconds(work, pace, layers, kept=True, slices=slices)), end_of_step(work, pace, nodes, 1)]


def of_batches(work: Workload, pace: Pace, grown: Grown, full: float, steps: int) -> list[Part]:
    """Every layer over the neighbourhoods of a worker's seeds, for each batch; the slowest worker counts."""
    slowest = int(grown.edges.sum(1).argmax())
    rows, edges = grown.rows[slowest], grown.edges[slowest]
    layers = [LayerWork(rows[i], rows[i + 1], edges[i]) for i in range(len(edges))]
    found = computed(step_seconds(work, pace, layers, kept=False), full)
    found.append(Part(name="new edges", seconds=full * pace.made_ready(float(edges.sum()))))
    return [*found, end_of_step(work, pace, float(rows[-1]), steps)]


def computed(layers: Sequence[LayerSeconds], steps: float = 1) -> list[Part]:
    """What layers take in so many steps, by what is done."""
    names = ("products", "sums over neighbours", "attention", "activations, dropout, small steps")
    found = [
        Part(name=name, seconds=steps * sum(each)) for name, each in zip(names, zip(*layers, strict=True), strict=True)
    ]
    return [part for part in found if part.seconds]


def end_of_step(work: Workload, pace: Pace, rows: float, steps: float) -> Part:
    """The loss, and the optimizer's step."""
    numbers = work.model.parameters[1]
    seconds = pace.passes(_OPTIMIZER * numbers)
    seconds += pace.passes(_LOSS * rows * work.graph.classes)
    return Part(name="loss and optimizer", seconds=steps * seconds)


def crossed(pace: Pace, epoch: Bytes, exchanges: float, steps: int = 1) -> list[Part]:
    """What crosses links in an epoch, in so many exchanges between workers and the sums of each step."""
    messages = exchanges + _SUMMED * steps
    return [
        Part(name=link.value.replace("_", " "), seconds=took) for link, took in pace.crossing(epoch, messages).items()
    ]


def beside(pace: Pace, name: str, seconds: float, busy: float) -> Part:
    """What is done beside the computation: at its cost, where both need the same cores."""
    if pace.shared:
        return Part(name=name, seconds=seconds, hidden=min(seconds * (1 - 1 / pace.cores), busy))
    return Part(name=name, seconds=seconds, hidden=min(seconds, busy))


def made_ready(
    work: Workload, pace: Pace, edges: float, rows: float, busy: float, threads: tuple[int | None, int | None]
) -> list[Part]:
    """Batches of an epoch that are drawn, and whose features are gathered, while those before are computed.

    Args:
        work: What is trained.
        pace: How fast.
        edges: That are drawn.
        rows: Of features that are gathered, and come to the device.
        busy: Seconds of the computation.
        threads: Of a worker, that draw and that gather; None for half as many as compute.
    """
    drawing, gathering = pace.drawn(edges, threads[0]), pace.gathered(rows, work.graph.row_bytes, threads[1])
    found = [beside(pace, "neighbours drawn", drawing, busy), beside(pace, "features gathered", gathering, busy)]
    return found + to_device(work, pace, rows, busy)


def to_device(work: Workload, pace: Pace, rows: float, busy: float) -> list[Part]:
    """Rows of features that come to a device with memory of its own, while batches before are computed."""
    if pace.shared:
        return []
    seconds = pace.profile.links[Link.HOST_TO_DEVICE].seconds(rows * work.graph.row_bytes)
    return [Part(name="features to the device", seconds=seconds, hidden=min(seconds, busy))]
