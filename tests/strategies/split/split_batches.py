"""Batches that several workers draw together, in one process: they take turns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.engine.batches import SamplingOptions
from outgrow.graph.sampling.edge_sampler import FASTGCN, LABOR, NEIGHBOR, WITH_REPLACEMENT, Fanout
from outgrow.graph.topology import Topology
from outgrow.strategies.split.sampler import RemoteRequest, SampledSplitBlock, SplitSampler
from support import random_topology, with_relations

RELATIONS = 3
Hops = list[SampledSplitBlock]


class Case(NamedTuple):
    """A graph as each layer wants it, what is drawn of it, who owns its nodes, and the seeds of some batches."""

    views: list[Topology]
    fanout: list[Fanout]
    weighted: bool
    owner: Tensor
    size: int
    batches: list[Tensor]
    seed: int = 3
    sampler: str = NEIGHBOR

    def samplers(self) -> list[SplitSampler]:
        """One for each worker."""
        options = {"owner": self.owner, "size": self.size, **self.sampling_options}
        return [SplitSampler(self.views, self.fanout, self.seed, rank=rank, **options) for rank in range(self.size)]

    @property
    def sampling_options(self) -> SamplingOptions:
        """How edges are drawn."""
        return {"weighted": self.weighted, "sampler": self.sampler}


def together(samplers: Sequence[SplitSampler], seeds: Tensor, epoch: int, step: int) -> list[Hops]:
    """What each worker draws; the workers take turns, and tell each other what they want after each hop."""
    talks = [
        sampler.sample_hops(seeds[sampler.owner[seeds] == rank], epoch, step) for rank, sampler in enumerate(samplers)
    ]
    wishes, found = [next(talk) for talk in talks], list[Hops]()
    while not found:
        parts = [torch.split(wish.nodes, list(wish.sizes)) for wish in wishes]
        for rank, talk in enumerate(talks):
            mine = [of_peer[rank] for of_peer in parts]
            try:
                wishes[rank] = talk.send(RemoteRequest(torch.cat(mine), tuple(map(len, mine))))
            except StopIteration as end:
                found.append(end.value)
        assert len(found) in (0, len(talks))  # all have the same number of hops
    return found


WAYS: dict[str, tuple[list[Fanout], bool, str]] = {
    "uniform": ([4, 3, 2], False, NEIGHBOR),
    "all": ([-1, 2, -1], False, NEIGHBOR),
    "weighted": ([4, 3, 2], True, NEIGHBOR),
    "related": ([(2, 1, 3), (1, 2, -1), 3], False, NEIGHBOR),
    "replaced": ([4, 3, -1], False, WITH_REPLACEMENT),
    "labor": ([4, 3, 2], False, LABOR),
    "labor by weight": ([4, 3, 2], True, LABOR),
    "fastgcn": ([60, -1, 40], False, FASTGCN),
}


def case_of(way: str, size: int, deal: str = "scattered") -> Case:
    """Batches of 400 nodes, of which the last is empty and the one before has seeds of one worker only."""
    topology = with_relations(random_topology(400, 8_000, weighted=True), RELATIONS)
    nodes = torch.arange(400)
    owner = nodes * 7 % size if deal == "scattered" else (size - 1) * (nodes != 200)
    batches = [torch.randperm(400, generator=torch.manual_seed(step))[:40] for step in range(4)]
    batches += [nodes[owner == size - 1][:20], nodes[:0]]
    fanout, weighted, sampler = WAYS[way]
    views = [topology, topology.with_self_loops, topology]
    return Case(views, fanout, weighted, owner, size, batches, sampler=sampler)


def assert_equal(one: Hops, other: Hops) -> None:
    """Every number of every layer."""
    for a, b in zip(one, other, strict=True):
        for name in ("num_owned", "recv_counts", "send_counts", "num_local_edges"):
            assert getattr(a, name) == getattr(b, name), name
        assert torch.equal(a.send_index, b.send_index)
        for x, y in ((a.block, b.block), (a.block.edges, b.block.edges)):
            for field in fields(x):
                mine, theirs = getattr(x, field.name), getattr(y, field.name)
                if isinstance(mine, Tensor):
                    assert torch.equal(mine, theirs), field.name
                else:
                    assert field.name in ("edges", "cache") or mine == theirs, field.name
