"""The bytes that `split` must send in an epoch, computed from the whole batches, the owners and the widths of rows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from outgrow.core.block import Block
from outgrow.core.ledger import Kind
from outgrow.engine.batches import BatchConfig
from outgrow.engine.shard import PartitionShard
from outgrow.graph.sampling.neighbor_sampler import NeighborSampler
from outgrow.graph.topology import Topology
from outgrow.nn import GAT, GCN, GIN, SAGE, Model
from outgrow.nn.tasks import NodeClassification
from outgrow.runtime.distributed.worker import WorkerContext
from outgrow.strategies.base import Problem
from outgrow.strategies.split.strategy import SplitParallel
from suites.traffic import LONG, ring
from support import destinations_of, normal, random_topology

NUMBER = 8
"""Bytes of a float64."""
SEED, EPOCH = 5, 2
TOPOLOGY = random_topology(60, 900)
TRAIN = torch.arange(0, 60, 2)


class Sent(NamedTuple):
    """What a layer sends.

    Attributes:
        columns: Numbers in the row of a source, its scores too.
        summed: Whether parts of sums may be sent.
        weighed: Whether its edges have weights.
        raw: Whether sources are features as they are.
    """

    columns: int
    summed: bool = True
    weighed: bool = True
    raw: bool = False


class Traffic(NamedTuple):
    """A model of 8 features and 3 classes, and what its layers send."""

    build: Callable[[], Model]
    sent: tuple[Sent, ...]
    batches: BatchConfig
    partial: bool = True


FEW = BatchConfig(size=10, fanout=(4, 5))
MODELS = {
    "gcn aggregates first": Traffic(lambda: GCN(8, 16, 3), (Sent(8, raw=True), Sent(3)), FEW),
    "gcn projects first": Traffic(lambda: GCN(8, 4, 3), (Sent(4), Sent(3)), FEW),
    "wide rows": Traffic(lambda: SAGE(8, 64, 40), (Sent(8, raw=True), Sent(40)), FEW),
    "wide rows, sources only": Traffic(
        lambda: SAGE(8, 64, 40), (Sent(8, summed=False, raw=True), Sent(40, summed=False)), FEW, partial=False
    ),
    "gat sends columns and scores": Traffic(
        lambda: GAT(8, 6, 3, heads=2, out_heads=3), (Sent(6 + 2, summed=False), Sent(3 * 3 + 3, summed=False)), FEW
    ),
    "gin of all neighbours": Traffic(
        lambda: GIN(8, 16, 3), (Sent(8, weighed=False, raw=True), Sent(3, weighed=False)), BatchConfig(size=12)
    ),
}


class Pairs(NamedTuple):
    """For each pair of workers, ``[P, P]`` from the first to the second: distinct sources, destinations, and edges."""

    sources: Tensor
    destinations: Tensor
    edges: Tensor


def pairs_of(block: Block, owner: Tensor, workers: int) -> Pairs:
    """What crosses in a block of all workers."""
    source, target = block.src_nodes[block.edges.indices.long()], block.dst_nodes[destinations_of(block.edges)]
    edges = torch.stack([owner[source].long(), owner[target].long(), source, target])
    edges = edges[:, edges[0] != edges[1]]

    def counted(*rows: int) -> Tensor:
        distinct = edges[[0, 1, *rows]].unique(dim=1)
        return torch.bincount(distinct[0] * workers + distinct[1], minlength=workers**2).view(workers, workers)

    every = torch.bincount(edges[0] * workers + edges[1], minlength=workers**2).view(workers, workers)
    return Pairs(counted(2), counted(3), every)


def bytes_of_layer(pairs: Pairs, sent: Sent, workers: int, *, partial: bool) -> Counter[Kind]:
    """What a layer sends in a step, all workers together."""
    row = sent.columns * NUMBER * (1 if sent.raw else 2)
    told = 4 * pairs.destinations + (4 + NUMBER * sent.weighed) * pairs.edges
    parts = (pairs.destinations * row + told < pairs.sources * row) & sent.summed & partial
    rows = int(torch.where(parts, pairs.destinations, pairs.sources).sum())
    counts = 1 + 3 * (sent.summed or not partial)  # who wants how much, and of layers that are sums the sizes of parts
    found = Counter({Kind.IDS: LONG * (workers * (workers - 1) * counts + int(pairs.sources.sum()))})
    found[Kind.TOPOLOGY] = int((told * parts).sum())
    found[Kind.FEATURES if sent.raw else Kind.ACTIVATIONS] += rows * sent.columns * NUMBER
    found[Kind.GRADIENTS] += 0 if sent.raw else rows * sent.columns * NUMBER
    return found


def bytes_of_epoch(traffic: Traffic, owner: Tensor, workers: int) -> Counter[Kind]:
    """What an epoch sends, all workers together."""
    model, found = traffic.build(), Counter[Kind]()
    views = [TOPOLOGY.with_self_loops if layer.spec.self_loops else TOPOLOGY for layer in model.layers_list()]
    sampler = NeighborSampler(views, traffic.batches.fanout_per_hop(len(views)), SEED)
    numbers = sum(1 + parameter.numel() for parameter in model.parameters())
    for step, seeds in enumerate(traffic.batches.seeds_of_epoch(TRAIN, SEED, EPOCH)):
        for sent, block in zip(traffic.sent, sampler.sample_blocks(seeds, EPOCH, step), strict=True):
            found += bytes_of_layer(pairs_of(block, owner, workers), sent, workers, partial=traffic.partial)
        found += Counter({Kind.PARAMETERS: ring(numbers * NUMBER, workers), Kind.METRICS: ring(LONG, workers)})
    return +found


def owner_of(topology: Topology, workers: int) -> Tensor:
    """Nodes dealt out without order."""
    return torch.from_numpy(normal(topology.num_nodes, seed=3).argsort().numpy() % workers)


def bytes_by_model(place: WorkerContext) -> dict[str, Counter[Kind]]:
    """What a worker sends in an epoch of each model."""
    found, comm = {}, place.comm
    for name, traffic in MODELS.items():
        torch.manual_seed(0)
        problem = Problem.from_node_labels(
            PartitionShard(TOPOLOGY, owner_of(TOPOLOGY, comm.size), comm),
            features=normal(60, 8, seed=1),
            labels=torch.arange(60) % 3,
            train=TRAIN,
            task=NodeClassification(),
            model=traffic.build().double(),
            seed=SEED,
            batches=traffic.batches,
        )
        execution = SplitParallel(partial_sums=traffic.partial).prepare(problem)
        before = comm.ledger.bytes_by_link.copy()
        for _ in execution.steps(EPOCH):
            problem.model.zero_grad()
        execution.close()
        added = comm.ledger.bytes_by_link - before
        found[name] = Counter({kind: count for (_, kind), count in added.items()})
    return found
