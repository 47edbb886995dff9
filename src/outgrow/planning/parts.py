"""Parts of an epoch of training, in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outgrow.core.types import Link
from outgrow.engine.batches import Batches
from outgrow.planning.estimate import Part
from outgrow.planning.layer_work import LayerSeconds, LayerWork, step_seconds
from outgrow.planning.pace import Pace
from outgrow.planning.traffic import Traffic
from outgrow.planning.workload import Drawing, Workload

_OPTIMIZER = 7
"""How often a parameter is read or written when the optimizer steps."""
_CALLS_OF_TENSOR = 8
_LOSS = 6


def parts_of_full(work: Workload, pace: Pace, traffic: Traffic, partition: str) -> tuple[Part, ...]:
    """Of `full`: every worker computes its own nodes, and waits for rows of others twice for each layer."""
    cut = work.shape.cut(partition, pace.place.workers)
    slowest = int(cut.edges.argmax())
    nodes, edges = int(cut.nodes[slowest]), int(cut.edges[slowest])
    layers = [LayerWork(nodes, nodes, layer.edges(edges, nodes)) for layer in work.model.layers]
    computed = _computed(step_seconds(work, pace, layers, kept=True))
    exchanges = 2 * (len(layers) - work.model.takes_raw) + 1
    return (*computed, _end(work, pace, nodes, 1), *_crossed(pace, traffic, exchanges))


def parts_of_batches(
    work: Workload, pace: Pace, traffic: Traffic, drawing: Drawing, threads: int | None
) -> tuple[Part, ...]:
    """Of strategies whose workers draw around their seeds by themselves: later batches are drawn beside the work."""
    drawn = work.shape.drawn(drawing, pace.place.workers)
    slowest = int(drawn.edges.sum(1).argmax())
    rows, edges = drawn.rows[slowest], drawn.edges[slowest]
    layers = [LayerWork(rows[i], rows[i + 1], edges[i]) for i in range(len(edges))]
    computed = _computed(step_seconds(work, pace, layers, kept=False), drawn.full)
    drawing_seconds = drawn.full * pace.drawn(float(edges.sum()), threads or max(1, int(pace.cores) // 2))
    row_bytes = work.graph.feature_row_bytes
    gathering = drawn.full * pace.gathered(float(rows[0]), row_bytes, row_bytes / pace.number_bytes)
    busy = sum(part.seconds for part in computed)
    beside = [
        _beside(pace, "neighbours drawn", drawing_seconds, busy),
        _beside(pace, "features gathered", gathering, busy),
    ]
    end = _end(work, pace, float(rows[-1]), drawn.steps)
    return (*computed, end, *beside, *_crossed(pace, traffic, 2 * drawn.steps))


def drawing_for(work: Workload, batches: Batches, seed: int, partition: str) -> Drawing:
    """How batches are drawn without caches."""
    return Drawing(batches, work.model.views, seed, partition)


def _computed(layers: Sequence[LayerSeconds], steps: float = 1) -> list[Part]:
    names = ("products", "sums over neighbours", "norms, activations, small steps")
    return [
        Part(name=name, seconds=steps * sum(each)) for name, each in zip(names, zip(*layers, strict=True), strict=True)
    ]


def _end(work: Workload, pace: Pace, rows: float, steps: int) -> Part:
    """The loss, and the optimizer's step."""
    tensors, numbers = work.model.parameters
    seconds = pace.passes(_OPTIMIZER * numbers) + pace.calls(_CALLS_OF_TENSOR * tensors)
    seconds += pace.passes(_LOSS * rows * work.graph.classes)
    return Part(name="loss and optimizer", seconds=steps * seconds)


def _crossed(pace: Pace, traffic: Traffic, exchanges: float) -> list[Part]:
    messages: Mapping[Link, float] = {Link.PEER: exchanges, Link.NETWORK: exchanges}
    names = {link: link.value.replace("_", " ") for link in Link}
    return [Part(name=names[link], seconds=took) for link, took in pace.crossing(traffic.epoch, messages).items()]


def _beside(pace: Pace, name: str, seconds: float, busy: float) -> Part:
    """What is done beside the computation: at its cost, where both need the same cores."""
    if pace.profile.device.shared:
        return Part(name=name, seconds=seconds, hidden=seconds * (1 - 1 / pace.cores))
    return Part(name=name, seconds=seconds, hidden=min(seconds, busy))
