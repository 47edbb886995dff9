"""What mini-batches are like whose hot nodes are computed apart, from some that are drawn."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outgrow.engine.orchestra.draws import Drawing as PartDrawing
from outgrow.engine.orchestra.draws import bottom_counts, hottest, super_batches
from outgrow.planning.draws import BEFORE, EPOCH, Draws
from outgrow.planning.workload import Gathered, Halves

_HOT_STEP = -3
_SUPERS, _STEPS_BEFORE = 4, 32


class HotDraws:
    """Super-batches of all workers. Final.

    Args:
        draws: Batches of all workers.
        hot_ratio: Share of all nodes that are hot.
        super_batch: Batches of a super-batch.
    """

    def __init__(self, draws: Draws, hot_ratio: float, super_batch: int) -> None:
        self.draws, self.super_batch = draws, super_batch
        self.share = round(hot_ratio * draws.topology.num_nodes / draws.parts)

    def look(self) -> Halves:
        """What some super-batches of the first epoch are like."""
        steps, parts = len(self.draws.seeds(EPOCH)), self.draws.parts
        [supers] = super_batches(0, steps, self.super_batch, None)
        some = _some([each for each in supers[1:] if len(each) == self.super_batch] or supers[1:])
        cold, warm, hot = (_Tally(parts) for _ in range(3))
        hot_nodes = 0
        for part in range(parts):
            drawing = self._drawing(part)
            for each in some or [range(max(1, steps - 1))]:
                nodes = list[Tensor]()
                for step in each:
                    cold.add(part, self.draws, drawing.draw(step, all_cold=True).cold.src_nodes)
                    if some:
                        draw = drawing.draw(step, all_cold=False)
                        warm.add(part, self.draws, draw.cold.src_nodes)
                        nodes.append(draw.hot)
                if some:
                    queue = torch.unique(torch.cat(nodes))
                    hot_nodes += len(queue)
                    hot.add(part, self.draws, drawing.bottom(queue, _HOT_STEP - each[0]).src_nodes)
        return Halves(
            steps=steps,
            full=self.draws.full,
            cold=cold.mean(parts),
            warm=warm.mean(parts),
            hot=hot.mean(parts),
            hot_nodes=hot_nodes / max(1, len(some)),
        )

    def _drawing(self, part: int) -> PartDrawing:
        draws, num_nodes = self.draws, self.draws.topology.num_nodes

        def mine(seeds: Tensor) -> Tensor:
            return seeds[draws.owner[seeds] == part]

        none = torch.zeros(num_nodes, dtype=torch.bool)
        is_hot = none.clone()
        if self.share:
            some = draws.some(_STEPS_BEFORE)
            before = [
                PartDrawing(draws.sampler, epoch, [draws.seeds(epoch)[step] for step in some], mine, none)
                for epoch in (BEFORE, BEFORE - 1)
            ]
            is_hot[hottest(bottom_counts(before), self.share)] = True
        return PartDrawing(draws.sampler, EPOCH, draws.seeds(EPOCH), mine, is_hot)


def _some(supers: list[range]) -> list[range]:
    """A few, evenly apart."""
    if not supers:
        return []
    return [supers[place] for place in np.unique(np.linspace(0, len(supers) - 1, _SUPERS).round().astype(int))]


class _Tally:
    """Rows that are taken from memory, counted."""

    def __init__(self, parts: int) -> None:
        self.rows, self.count, self.entries, self.asked = 0, 0, 0.0, np.zeros((parts, parts))

    def add(self, part: int, draws: Draws, nodes: Tensor) -> None:
        """Those of a worker, once."""
        self.rows += len(nodes)
        self.count += 1
        self.asked[part] += draws.by_owner(nodes)
        self.entries += float(draws.entries[nodes[draws.owner[nodes] != part]].sum())

    def mean(self, parts: int) -> Gathered:
        """Of all workers together."""
        times = max(1, self.count // parts)
        np.fill_diagonal(self.asked, 0)
        return Gathered(self.rows / times, self.asked / times, self.entries / max(1.0, self.asked.sum()))
