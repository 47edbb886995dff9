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
from outgrow.engine.features.cache import by_batches, by_degree, hottest
from outgrow.graph.sampling.neighbor_sampler import Sampler
from outgrow.strategies.orchestrate.sampling import Drawing, SuperBatches, bottom_counts, super_batches

BEFORE, EPOCH = (0, -1), 1
_NUMBER = 4  # bytes of float32


@dataclass(frozen=True, kw_only=True)
class Costs:
    """Columns of what goes to the device.

    Attributes:
        features: Of raw features.
        reused: Of what is made of a hot node: embedding, aggregate, its own input.
    """

    features: int
    reused: int


@dataclass(frozen=True, kw_only=True)
class Epoch:
    """One epoch of one worker's batches.

    Attributes:
        sampler: Draws neighbourhoods.
        batches: For each epoch, its batches.
        super_batch: Batches of a super-batch.
    """

    sampler: Sampler
    batches: dict[int, Sequence[Tensor]]
    super_batch: int

    def drawing(self, epoch: int, is_hot: Tensor) -> Drawing:
        """How an epoch is drawn."""
        return Drawing(self.sampler, epoch, self.batches[epoch], lambda seeds: seeds, is_hot)

    def nobody(self) -> Tensor:
        """``[V]``: no node is hot."""
        return torch.zeros(self.sampler.draws.num_nodes, dtype=torch.bool)

    def bottoms(self, epoch: int) -> Iterable[Block]:
        """The bottom layer's block of each batch, all of it."""
        drawing = self.drawing(epoch, self.nobody())
        return (drawing.draw(step, all_cold=True).cold for step in range(len(drawing.batches)))

    def orchestrated(self, ratio: float, costs: Costs) -> Counter[str]:
        """Bytes, rows of the bottom layer that the device computes, and the most memory for what is reused.

        While one super-batch uses its rows, those of the next arrive.
        """
        found, counts = Counter[str](), bottom_counts([self.drawing(each, self.nobody()) for each in BEFORE])
        is_hot = self.nobody()
        is_hot[hottest(counts, round(ratio * len(is_hot)))] = True
        drawing, held = self.drawing(EPOCH, is_hot), [0]
        [supers] = super_batches(0, len(drawing.batches), self.super_batch, None)
        draws = (drawing.draw(step, all_cold=step in supers[0]) for steps in supers for step in steps)
        batches = SuperBatches(draws, [len(steps) for steps in supers])
        for number in range(len(supers)):
            used = [draw.hot for draw in batches.at(number)]
            held.append(len(torch.unique(torch.cat(used))))
            for draw in batches.at(number):
                found.update(rows=draw.cold.edges.num_src, computed=draw.cold.edges.num_dst, hits=len(draw.hot))
        found["reused_rows"] = sum(held)
        found["bytes"] = _NUMBER * (found["rows"] * costs.features + sum(held) * costs.reused)
        found["memory"] = _NUMBER * costs.reused * max(map(sum, pairwise(held)))
        return found

    def static(self, by: str, rows: int, costs: Costs) -> Counter[str]:
        """The same with a cache of the features of so many nodes, by ``"degree"`` or ``"presampling"``."""
        asked = (block.src_nodes for block in self.bottoms(BEFORE[0]))
        num_nodes = len(self.nobody())
        counts = by_degree(self.sampler.draws.views[0]) if by == "degree" else by_batches(asked, num_nodes)
        kept = self.nobody()
        kept[hottest(counts, rows)] = True
        found = Counter[str]()
        for block in self.bottoms(EPOCH):
            missing = int((~kept[block.src_nodes]).sum())
            found.update(rows=missing, hits=block.edges.num_src - missing, computed=block.edges.num_dst)
        found["bytes"] = _NUMBER * costs.features * (found["rows"] + int(kept.sum()))
        found["memory"] = _NUMBER * costs.features * int(kept.sum())
        return found
