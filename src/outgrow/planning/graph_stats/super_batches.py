"""Statistics of super-batches of `orchestrate`, from a sample of those that a run will train on."""

from __future__ import annotations

from functools import cache
from itertools import product

import torch
from torch import Tensor

from outgrow.engine.features.cache import hottest_nodes
from outgrow.engine.link_batches import Batch
from outgrow.planning.batch_stats import HotStats, OrchestrateStats
from outgrow.planning.graph_stats.batch_counters import NeighborhoodCounter, choose_evenly_spaced
from outgrow.planning.graph_stats.sampled_batches import BEFORE, EPOCH, STEPS_BEFORE, SampledBatches
from outgrow.strategies.orchestrate.sampling import HotColdSampler as PartDrawing
from outgrow.strategies.orchestrate.sampling import count_bottom_nodes, hot_step, plan_super_batches

_SUPERS = 4
"""Super-batches sampled of an epoch."""


class SampledSuperBatches:
    """Super-batches of all workers, sampled as in training. Final.

    Args:
        batches: Batches of all workers.
        hot_ratio: Share of all nodes that are hot.
        super_batch: Batches of a super-batch.
    """

    def __init__(self, batches: SampledBatches, hot_ratio: float, super_batch: int) -> None:
        self.batches = batches
        self.super_batch = super_batch
        self.sampler = cache(self._make_sampler)
        self.num_hot_nodes = round(hot_ratio * batches.topology.num_nodes / batches.parts)

    def collect_orchestrate_stats(self) -> OrchestrateStats:
        """Return statistics of some super-batches of the first epoch."""
        draws = self.batches
        steps = len(draws.epoch_batches(EPOCH))
        supers = plan_super_batches(steps, self.super_batch)
        # Without a short last one, and without a short last batch, if others are there.
        full = max(1, int(draws.num_full_batches))
        whole = [each for each in supers if len(each) == self.super_batch and each.stop <= full] or [range(full)]
        some = [whole[place] for place in choose_evenly_spaced(len(whole), _SUPERS)]
        cold, warm, hot = (draws.gather_counter() for _ in range(3))
        hot_nodes, hot_edges, uses = 0, 0, 0
        growth = NeighborhoodCounter(draws.parts, len(draws.spec.views))
        for part, each in product(range(draws.parts), some):
            drawing = self.sampler(part)
            for step in each:
                cold.add_rows(part, drawing.sample_batch(step, all_cold=True).cold_block.src_nodes)
            drawn = [drawing.sample_batch(step, all_cold=False) for step in each]
            for draw in drawn:
                warm.add_rows(part, draw.cold_block.src_nodes)
                growth.add_batch(part, [[draw.cold_block, *draw.upper_blocks]])
                uses += len(draw.hot_nodes)
            # Batches of a super-batch share hot nodes, which the CPU computes once.
            queue = torch.unique(torch.cat([draw.hot_nodes for draw in drawn]))
            hot_nodes += len(queue)
            block = drawing.bottom_block(queue, hot_step(each[0]))
            hot_edges += block.edges.num_edges
            hot.add_rows(part, block.src_nodes)
        count = len(some)
        made = HotStats(hot_nodes / count, hot_edges / count, hot.mean_stats(), uses / count)
        return OrchestrateStats(
            steps, draws.num_full_batches, growth.mean_stats(), cold.mean_stats(), warm.mean_stats(), made
        )

    def _make_sampler(self, part: int) -> PartDrawing:
        draws = self.batches
        num_nodes = draws.topology.num_nodes

        def select_seeds(batch: Batch) -> Tensor:
            return draws.select_seeds(batch, part)

        none = torch.zeros(num_nodes, dtype=torch.bool)
        is_hot = none.clone()
        if self.num_hot_nodes:
            # Hot nodes are chosen as training does: by how often presampled batches compute them.
            some = draws.choose_steps(STEPS_BEFORE)
            before = [
                PartDrawing(
                    draws.sampler, epoch, [draws.epoch_batches(epoch)[step] for step in some], select_seeds, none
                )
                for epoch in (BEFORE, BEFORE - 1)
            ]
            is_hot[hottest_nodes(count_bottom_nodes(before), self.num_hot_nodes)] = True
        return PartDrawing(draws.sampler, EPOCH, draws.epoch_batches(EPOCH), select_seeds, is_hot)
