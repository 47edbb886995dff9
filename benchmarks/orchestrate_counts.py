"""What `orchestrate.py transfer` counts: bytes of features and of what is reused that go to the device.

Nothing is trained. A static cache keeps the raw features of nodes that have most out-edges (PaGraph), or that batches
ask for most in an epoch that is sampled first (GNNLab), and everything else goes to the device with each batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.engine.features.cache import count_accesses, count_out_degrees, hottest_nodes
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.strategies.orchestrate.sampling import HotColdSampler, SuperBatches, count_bottom_nodes, plan_super_batches

BEFORE, EPOCH = (0, -1), 1
_NUMBER = 4  # bytes of float32


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Columns of what goes to the device.

    Attributes:
        features: Of raw features.
        reused: Of what is made of a hot node and sent to the device: embedding; for the gradient there aggregate and
            its own input.
        returned: Of what goes back to the CPU each time that a hot node is used: the gradient of its embedding.
        parameters: Numbers of the bottom layer: their gradient goes to the device in each batch where the CPU computes
            it, and they themselves to the CPU.
    """

    features: int
    reused: int
    returned: int = 0
    parameters: int = 0


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch of one worker's batches.

    Attributes:
        topology: The graph.
        sampler: Draws neighbourhoods.
        batches: For each epoch, its batches.
        super_batch: Batches of a super-batch.
    """

    topology: Topology
    sampler: NeighborSampler
    batches: dict[int, Sequence[Tensor]]
    super_batch: int

    def drawing(self, epoch: int, is_hot: Tensor) -> HotColdSampler:
        """How an epoch is drawn."""
        return HotColdSampler(self.sampler, epoch, self.batches[epoch], lambda seeds: seeds, is_hot)

    def nobody(self) -> Tensor:
        """``[V]``: no node is hot."""
        return torch.zeros(self.sampler.sampling.num_nodes, dtype=torch.bool)

    def bottoms(self, epoch: int) -> Iterable[Block]:
        """The bottom layer's block of each batch, all of it."""
        drawing = self.drawing(epoch, self.nobody())
        return (drawing.sample_batch(step, all_cold=True).cold_block for step in range(len(drawing.batches)))

    def orchestrated(self, ratio: float, costs: Costs) -> Counter[str]:
        """Bytes, rows of the bottom layer that the device computes, and the most memory for what is reused.

        While one super-batch uses its rows, those of the next arrive.
        """
        found, counts = Counter[str](), count_bottom_nodes([self.drawing(each, self.nobody()) for each in BEFORE])
        is_hot = self.nobody()
        is_hot[hottest_nodes(counts, round(ratio * len(is_hot)))] = True
        drawing, held = self.drawing(EPOCH, is_hot), [0]
        # As in each epoch but the first: what its first super-batch reuses was computed in the epoch before.
        supers = plan_super_batches(len(drawing.batches), self.super_batch)
        draws = (drawing.sample_batch(step, all_cold=False) for steps in supers for step in steps)
        batches = SuperBatches(draws, [len(steps) for steps in supers])
        for number in range(len(supers)):
            used = [draw.hot_nodes for draw in batches.get_super_batch(number)]
            held.append(len(torch.unique(torch.cat(used))))
            for draw in batches.get_super_batch(number):
                found.update(
                    rows=draw.cold_block.edges.num_src, computed=draw.cold_block.edges.num_dst, hits=len(draw.hot_nodes)
                )
        found["reused_rows"] = sum(held)
        sums = len(drawing.batches) * costs.parameters if costs.returned else 0
        found["bytes"] = _NUMBER * (found["rows"] * costs.features + sum(held) * costs.reused + sums)
        found["back"] = _NUMBER * (found["hits"] * costs.returned + len(drawing.batches) * costs.parameters)
        found["memory"] = _NUMBER * costs.reused * max(map(sum, pairwise(held)))
        return found

    def static(self, by: str, rows: int, costs: Costs) -> Counter[str]:
        """The same with a cache of the features of so many nodes, by ``"degree"`` or ``"presampling"``."""
        asked = (block.src_nodes for block in self.bottoms(BEFORE[0]))
        num_nodes = len(self.nobody())
        counts = count_out_degrees(self.topology) if by == "degree" else count_accesses(asked, num_nodes)
        kept = self.nobody()
        kept[hottest_nodes(counts, rows)] = True
        found = Counter[str]()
        for block in self.bottoms(EPOCH):
            missing = int((~kept[block.src_nodes]).sum())
            found.update(rows=missing, hits=block.edges.num_src - missing, computed=block.edges.num_dst)
        found["bytes"] = _NUMBER * costs.features * (found["rows"] + int(kept.sum()))
        found["memory"] = _NUMBER * costs.features * int(kept.sum())
        return found
