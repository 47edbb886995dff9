"""What mini-batches are like whose hot nodes are computed apart, from some that are drawn."""

from __future__ import annotations

from functools import cache
from itertools import product

import torch
from torch import Tensor

from outgrow.engine.features.cache import hottest
from outgrow.planning.draws import BEFORE, EPOCH, STEPS_BEFORE, Draws, Growth, Tally, evenly
from outgrow.planning.workload import Halves, Hot
from outgrow.strategies.orchestrate.sampling import Drawing as PartDrawing
from outgrow.strategies.orchestrate.sampling import bottom_counts, hot_step, super_batches

_SUPERS = 4


class HotDraws:
    """Super-batches of all workers. Final.

    Args:
        draws: Batches of all workers.
        hot_ratio: Share of all nodes that are hot.
        super_batch: Batches of a super-batch.
    """

    def __init__(self, draws: Draws, hot_ratio: float, super_batch: int) -> None:
        self.draws, self.super_batch, self.drawing = draws, super_batch, cache(self._drawing)
        self.share = round(hot_ratio * draws.topology.num_nodes / draws.parts)

    def look(self) -> Halves:
        """What some super-batches of the first epoch are like."""
        draws, steps = self.draws, len(self.draws.seeds(EPOCH))
        [supers] = super_batches(0, steps, self.super_batch, None)
        later = [each for each in supers[1:] if len(each) == self.super_batch] or supers[1:]
        some = [later[place] for place in evenly(len(later), _SUPERS)]
        cold, warm, hot = Tally(draws), Tally(draws), Tally(draws)
        hot_nodes, hot_edges, growth = 0, 0, Growth(draws.parts, len(draws.drawing.views))
        for part, each in product(range(draws.parts), some or [range(max(1, steps - 1))]):
            drawing = self.drawing(part)
            for step in each:
                draw = drawing.draw(step, all_cold=True)
                cold.add(part, draw.cold.src_nodes)
                if not some:
                    growth.add(part, [[draw.cold, *draw.above]])
            if some:
                drawn = [drawing.draw(step, all_cold=False) for step in each]
                for draw in drawn:
                    warm.add(part, draw.cold.src_nodes)
                    growth.add(part, [[draw.cold, *draw.above]])
                queue = torch.unique(torch.cat([draw.hot for draw in drawn]))
                hot_nodes += len(queue)
                block = drawing.bottom(queue, hot_step(each[0]))
                hot_edges += block.edges.num_edges
                hot.add(part, block.src_nodes)
        count = max(1, len(some))
        made = Hot(hot_nodes / count, hot_edges / count, hot.mean())
        return Halves(steps, draws.full, growth.mean(), cold.mean(), warm.mean(), made)

    def _drawing(self, part: int) -> PartDrawing:
        draws, num_nodes = self.draws, self.draws.topology.num_nodes

        def mine(seeds: Tensor) -> Tensor:
            return seeds[draws.owner[seeds] == part]

        none = torch.zeros(num_nodes, dtype=torch.bool)
        is_hot = none.clone()
        if self.share:
            some = draws.some(STEPS_BEFORE)
            before = [
                PartDrawing(draws.sampler, epoch, [draws.seeds(epoch)[step] for step in some], mine, none)
                for epoch in (BEFORE, BEFORE - 1)
            ]
            is_hot[hottest(bottom_counts(before), self.share)] = True
        return PartDrawing(draws.sampler, EPOCH, draws.seeds(EPOCH), mine, is_hot)
